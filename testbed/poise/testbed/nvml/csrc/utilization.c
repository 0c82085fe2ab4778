/* utilization.c — how busy a card is: present percentages, and the ring of the driver's own samples. */
#include "library.h"

#define ENGINE_PERIOD_US 167000u /* told with encoder, decoder, JPEG and OFA: a sixth of a second */

/* With MIG a card has no utilization of its own. */
static nvmlReturn_t whole_card_only(const struct card_state *card)
{
    return card->mig_current ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    ENTER(nvmlDeviceGetUtilizationRates, device, utilization);
    CONSISTENT(card)
    {
        utilization->gpu = card->gpu_percent;
        utilization->memory = card->memory_percent;
    }
    return whole_card_only(card);
}

#define ENGINE_FUNCTION(name, member)                                                                                  \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *utilization, unsigned int *period_us)                  \
    {                                                                                                                  \
        ENTER(name, device, utilization);                                                                              \
        if (period_us == NULL) return NVML_ERROR_INVALID_ARGUMENT;                                                     \
        *utilization = card->member;                                                                                   \
        *period_us = ENGINE_PERIOD_US;                                                                                 \
        return whole_card_only(card);                                                                                  \
    }

ENGINE_FUNCTION(nvmlDeviceGetEncoderUtilization, encoder_percent)
ENGINE_FUNCTION(nvmlDeviceGetDecoderUtilization, decoder_percent)
ENGINE_FUNCTION(nvmlDeviceGetJpgUtilization, jpeg_percent)
ENGINE_FUNCTION(nvmlDeviceGetOfaUtilization, ofa_percent)

/* Copies the samples newer than `since`, oldest first; returns how many. */
static unsigned int newer_samples(const struct sample_ring *ring, uint64_t since, nvmlSample_t *samples,
                                  unsigned int room)
{
    uint64_t written = ring->written;
    uint64_t first = written > SAMPLES_KEPT ? written - SAMPLES_KEPT : 0;
    unsigned int count = 0;

    for (uint64_t i = first; i < written && count < room; i++) {
        const struct sample *sample = &ring->entries[i % SAMPLES_KEPT];
        if (sample->at_us <= since) continue;
        memset(&samples[count], 0, sizeof samples[count]);
        samples[count].timeStamp = sample->at_us;
        samples[count].sampleValue.uiVal = (unsigned int)sample->value;
        count++;
    }
    return count;
}

/* Without a buffer the call tells how many samples there can be; a caller has to bring room for that many. */
EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long last_seen_us,
                                         nvmlValueType_t *value_type, unsigned int *count, nvmlSample_t *samples)
{
    ENTER(nvmlDeviceGetSamples, device, count);
    if ((unsigned int)type >= SAMPLE_KINDS || value_type == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (whole_card_only(card) != NVML_SUCCESS) return NVML_ERROR_NOT_SUPPORTED;
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    if (samples == NULL) {
        *count = SAMPLES_KEPT;
        return NVML_SUCCESS;
    }
    unsigned int room = *count;
    CONSISTENT(card) { *count = newer_samples(&card->samples[type], last_seen_us, samples, room); }
    return *count > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
