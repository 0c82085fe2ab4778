/* temperature.c — sensors, margin, thresholds (degrees Celsius) and fans (percent). */
#include "library.h"

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor,
                                             unsigned int *celsius)
{
    ENTER(nvmlDeviceGetTemperature, device, celsius);
    if (sensor != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
    *celsius = (unsigned int)card->temperature;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
    ENTER(nvmlDeviceGetTemperatureV, device, temperature);
    if (temperature->version != nvmlTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    switch (temperature->sensorType) {
    case NVML_TEMPERATURE_GPU: temperature->temperature = card->temperature; return NVML_SUCCESS;
    case NVML_TEMPERATURE_GPU_MAX: /* the hottest spot: new in branch 615 */
        if (!driver_at_least(session_state(), 615, 0)) return NVML_ERROR_INVALID_ARGUMENT;
        temperature->temperature = card->temperature_hotspot;
        return NVML_SUCCESS;
    default: return NVML_ERROR_INVALID_ARGUMENT;
    }
}

EXPORT nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *margin)
{
    ENTER(nvmlDeviceGetMarginTemperature, device, margin);
    if (margin->version != nvmlMarginTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    margin->marginTemperature = card->temperature_margin;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t which,
                                                      unsigned int *celsius)
{
    ENTER(nvmlDeviceGetTemperatureThreshold, device, celsius);
    if ((unsigned int)which >= NVML_TEMPERATURE_THRESHOLD_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    if (card->threshold[which] == 0) return NVML_ERROR_NOT_SUPPORTED;
    *celsius = card->threshold[which];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNumFans(nvmlDevice_t device, unsigned int *fans)
{
    ENTER(nvmlDeviceGetNumFans, device, fans);
    *fans = card->fan_count;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned int *percent)
{
    ENTER(nvmlDeviceGetFanSpeed, device, percent);
    if (card->fan_count == 0) return NVML_ERROR_NOT_SUPPORTED;
    *percent = card->fan_percent;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned int fan, unsigned int *percent)
{
    ENTER(nvmlDeviceGetFanSpeed_v2, device, percent);
    if (card->fan_count == 0) return NVML_ERROR_NOT_SUPPORTED;
    if (fan >= card->fan_count) return NVML_ERROR_INVALID_ARGUMENT;
    *percent = card->fan_percent;
    return NVML_SUCCESS;
}
