/* gpm.c — GPU performance monitoring (Hopper and newer): averages over the time between two samples.
 *
 * The state holds each metric's integral over time; a sample copies the integrals, and a metric is the difference of
 * two of them by the time between. So a value that changed half-way counts for the time in which it held.
 */
#include <stdlib.h>

#include "library.h"

#define MICRO 1e-6

struct nvmlGpmSample_st {
    double taken_at_s; /* CLOCK_MONOTONIC, as since_s in the state; 0: never taken */
    int card;
    uint32_t limit; /* metric ids that the driver knew */
    uint8_t given[MAX_GPM_METRICS];
    double integral[MAX_GPM_METRICS];
};

EXPORT nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    ENTER(nvmlGpmQueryDeviceSupport, device, support);
    if (support->version != NVML_GPM_SUPPORT_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    support->isSupportedDevice = card->gpm_supported;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
    ENTER_NODE(nvmlGpmSampleAlloc);
    if (sample == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *sample = calloc(1, sizeof **sample);
    return *sample == NULL ? NVML_ERROR_MEMORY : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
    nvmlReturn_t refused = gate_memory(FN_nvmlGpmSampleFree);
    if (refused != NVML_SUCCESS) return refused;
    if (sample == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    free(sample);
    return NVML_SUCCESS;
}

static nvmlReturn_t take_sample(struct card_state *card, int position, nvmlGpmSample_t sample)
{
    if (!card->gpm_supported) return NVML_ERROR_NOT_SUPPORTED;
    CONSISTENT(card)
    {
        sample->taken_at_s = (double)monotonic_us() * MICRO;
        sample->card = position;
        sample->limit = driver_gpm_limit(session_state());
        for (uint32_t id = 0; id < MAX_GPM_METRICS; id++) {
            const struct gpm_metric *metric = &card->gpm[id];
            sample->given[id] = metric->given != 0;
            sample->integral[id] = metric->integral + metric->value * (sample->taken_at_s - metric->since_s);
        }
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
    ENTER(nvmlGpmSampleGet, device, sample);
    return take_sample(card, session_card_of(device), sample);
}

EXPORT nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gpu_instance, nvmlGpmSample_t sample)
{
    ENTER(nvmlGpmMigSampleGet, device, sample);
    for (uint32_t i = 0; i < MAX_MIG_DEVICES; i++)
        if (card->mig_current && card->mig_devices[i].given && card->mig_devices[i].gpu_instance == gpu_instance)
            return take_sample(card, session_card_of(device), sample);
    return NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *request)
{
    static char nothing[] = "";

    ENTER_NODE(nvmlGpmMetricsGet);
    if (request == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (request->version != NVML_GPM_METRICS_GET_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const struct nvmlGpmSample_st *older = request->sample1;
    const struct nvmlGpmSample_st *newer = request->sample2;
    if (older == NULL || newer == NULL || request->numMetrics > NVML_GPM_METRIC_MAX) return NVML_ERROR_INVALID_ARGUMENT;
    double seconds = newer->taken_at_s - older->taken_at_s;
    if (older->taken_at_s == 0 || newer->taken_at_s == 0 || older->card != newer->card || seconds <= 0)
        return NVML_ERROR_INVALID_ARGUMENT;

    for (unsigned int i = 0; i < request->numMetrics; i++) {
        nvmlGpmMetric_t *metric = &request->metrics[i];
        uint32_t id = metric->metricId;
        metric->metricInfo.shortName = metric->metricInfo.longName = metric->metricInfo.unit = nothing;
        metric->value = 0;
        if (id == 0 || id >= newer->limit) {
            metric->nvmlReturn = NVML_ERROR_INVALID_ARGUMENT;
        } else if (!older->given[id] || !newer->given[id]) {
            metric->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
        } else {
            metric->nvmlReturn = NVML_SUCCESS;
            metric->value = (newer->integral[id] - older->integral[id]) / seconds;
        }
    }
    return NVML_SUCCESS;
}
