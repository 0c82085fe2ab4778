/* power.c — power in milliwatts, limits, and energy in millijoules since the driver was loaded. */
#include "library.h"

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
    ENTER(nvmlDeviceGetPowerUsage, device, milliwatts);
    *milliwatts = card->power_mw;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules)
{
    ENTER(nvmlDeviceGetTotalEnergyConsumption, device, millijoules);
    *millijoules = card->energy_mj;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
    ENTER(nvmlDeviceGetPowerManagementMode, device, mode);
    *mode = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
    ENTER(nvmlDeviceGetPowerManagementLimit, device, milliwatts);
    *milliwatts = card->limit_requested_mw;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
    ENTER(nvmlDeviceGetEnforcedPowerLimit, device, milliwatts);
    *milliwatts = card->limit_enforced_mw;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
    ENTER(nvmlDeviceGetPowerManagementDefaultLimit, device, milliwatts);
    *milliwatts = card->limit_default_mw;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *minimum_mw,
                                                                 unsigned int *maximum_mw)
{
    ENTER(nvmlDeviceGetPowerManagementLimitConstraints, device, minimum_mw);
    if (maximum_mw == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    CONSISTENT(card)
    {
        *minimum_mw = card->limit_min_mw;
        *maximum_mw = card->limit_max_mw;
    }
    return NVML_SUCCESS;
}
