/* ecc.c — memory errors: ECC mode and counters, remapped rows, retired pages. */
#include "library.h"

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
    ENTER(nvmlDeviceGetEccMode, device, current);
    if (pending == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *current = (nvmlEnableState_t)card->ecc_current;
    *pending = (nvmlEnableState_t)card->ecc_pending;
    return NVML_SUCCESS;
}

static nvmlReturn_t counted(const struct card_state *card, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter)
{
    if ((unsigned int)type >= NVML_MEMORY_ERROR_TYPE_COUNT || (unsigned int)counter >= NVML_ECC_COUNTER_TYPE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    return card->ecc_current ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                                nvmlEccCounterType_t counter, unsigned long long *count)
{
    ENTER(nvmlDeviceGetTotalEccErrors, device, count);
    nvmlReturn_t refused = counted(card, type, counter);
    if (refused != NVML_SUCCESS) return refused;
    *count = card->ecc_errors[type][counter];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                                    nvmlEccCounterType_t counter, nvmlMemoryLocation_t place,
                                                    unsigned long long *count)
{
    ENTER(nvmlDeviceGetMemoryErrorCounter, device, count);
    nvmlReturn_t refused = counted(card, type, counter);
    if (refused != NVML_SUCCESS) return refused;
    if ((unsigned int)place >= NVML_MEMORY_LOCATION_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    *count = card->ecc_errors_by_place[type][counter][place];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                                   nvmlEccCounterType_t counter, nvmlEccErrorCounts_t *counts)
{
    ENTER(nvmlDeviceGetDetailedEccErrors, device, counts);
    nvmlReturn_t refused = counted(card, type, counter);
    if (refused != NVML_SUCCESS) return refused;
    CONSISTENT(card)
    {
        const uint64_t *by_place = card->ecc_errors_by_place[type][counter];
        counts->l1Cache = by_place[NVML_MEMORY_LOCATION_L1_CACHE];
        counts->l2Cache = by_place[NVML_MEMORY_LOCATION_L2_CACHE];
        counts->deviceMemory = by_place[NVML_MEMORY_LOCATION_DRAM];
        counts->registerFile = by_place[NVML_MEMORY_LOCATION_REGISTER_FILE];
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *status)
{
    ENTER(nvmlDeviceGetSramEccErrorStatus, device, status);
    unsigned int version = status->version;
    if (version != nvmlEccSramErrorStatus_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!card->ecc_current) return NVML_ERROR_NOT_SUPPORTED;
    CONSISTENT(card)
    {
        memset(status, 0, sizeof *status);
        status->version = version;
        status->volatileCor = card->ecc_errors_by_place[0][0][NVML_MEMORY_LOCATION_SRAM];
        status->aggregateCor = card->ecc_errors_by_place[0][1][NVML_MEMORY_LOCATION_SRAM];
        status->volatileUncParity = card->ecc_errors_by_place[1][0][NVML_MEMORY_LOCATION_SRAM];
        status->aggregateUncParity = card->ecc_errors_by_place[1][1][NVML_MEMORY_LOCATION_SRAM];
        status->bThresholdExceeded = card->sram_threshold_exceeded;
    }
    return NVML_SUCCESS;
}

/* ---- row remapping: Ampere and newer ---- */

nvmlReturn_t remaps_rows(const struct card_state *card)
{
    int remaps = card->ecc_current && card->architecture >= NVML_DEVICE_ARCH_AMPERE && !card->mig_current;
    return remaps ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable,
                                              unsigned int *uncorrectable, unsigned int *pending, unsigned int *failed)
{
    ENTER(nvmlDeviceGetRemappedRows, device, correctable);
    if (uncorrectable == NULL || pending == NULL || failed == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    CONSISTENT(card)
    {
        *correctable = card->remapped_correctable;
        *uncorrectable = card->remapped_uncorrectable;
        *pending = card->remap_pending;
        *failed = card->remap_failed;
    }
    return remaps_rows(card);
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows_v2(nvmlDevice_t device, nvmlRemappedRowsInfo_v2_t *info)
{
    ENTER(nvmlDeviceGetRemappedRows_v2, device, info);
    CONSISTENT(card)
    {
        memset(info, 0, sizeof *info);
        info->corrActiveRemaps = card->remapped_correctable;
        info->uncActiveRemaps = card->remapped_uncorrectable;
        info->bPending = card->remap_pending;
        info->bFailureOccurred = card->remap_failed;
    }
    return remaps_rows(card);
}

EXPORT nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values)
{
    ENTER(nvmlDeviceGetRowRemapperHistogram, device, values);
    CONSISTENT(card)
    {
        values->max = card->remap_histogram[0];
        values->high = card->remap_histogram[1];
        values->partial = card->remap_histogram[2];
        values->low = card->remap_histogram[3];
        values->none = card->remap_histogram[4];
    }
    return remaps_rows(card);
}

EXPORT nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t device, nvmlRepairStatus_t *status)
{
    ENTER(nvmlDeviceGetRepairStatus, device, status);
    if (status->version != nvmlRepairStatus_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    status->bChannelRepairPending = 0;
    status->bTpcRepairPending = 0;
    return remaps_rows(card);
}

/* ---- page retirement: the way before Ampere ---- */

#define PAGE_BYTES 65536ull /* retired pages are 64 KiB; simulated ones follow each other */

nvmlReturn_t retires_pages(const struct card_state *card)
{
    int retires = card->ecc_current && card->architecture < NVML_DEVICE_ARCH_AMPERE;
    return retires ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t retired(const struct card_state *card, nvmlPageRetirementCause_t cause, unsigned int *count,
                            unsigned long long *addresses, unsigned long long *timestamps)
{
    if ((unsigned int)cause >= NVML_PAGE_RETIREMENT_CAUSE_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t refused = retires_pages(card);
    if (refused != NVML_SUCCESS) return refused;
    unsigned int room = addresses == NULL ? 0 : *count;
    *count = card->retired_pages[cause];
    if (*count > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < *count; i++) {
        addresses[i] = i * PAGE_BYTES;
        if (timestamps != NULL) timestamps[i] = 0;
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                              unsigned long long *addresses)
{
    ENTER(nvmlDeviceGetRetiredPages, device, count);
    return retired(card, cause, count, addresses, NULL);
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, nvmlPageRetirementCause_t cause,
                                                 unsigned int *count, unsigned long long *addresses,
                                                 unsigned long long *timestamps)
{
    ENTER(nvmlDeviceGetRetiredPages_v2, device, count);
    return retired(card, cause, count, addresses, timestamps);
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t *pending)
{
    ENTER(nvmlDeviceGetRetiredPagesPendingStatus, device, pending);
    nvmlReturn_t refused = retires_pages(card);
    if (refused != NVML_SUCCESS) return refused;
    *pending = card->retired_pending[0] || card->retired_pending[1] ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}
