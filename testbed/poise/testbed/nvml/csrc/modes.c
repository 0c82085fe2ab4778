/* modes.c — persistence, compute, display and MIG modes, and the MIG devices of a card. */
#include "library.h"

EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
    ENTER(nvmlDeviceGetPersistenceMode, device, mode);
    *mode = (nvmlEnableState_t)card->persistence;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
    ENTER(nvmlDeviceGetComputeMode, device, mode);
    *mode = (nvmlComputeMode_t)card->compute_mode;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
    ENTER(nvmlDeviceGetDisplayMode, device, mode);
    (void)card;
    *mode = NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, nvmlEnableState_t *active)
{
    ENTER(nvmlDeviceGetDisplayActive, device, active);
    (void)card;
    *active = NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

/* ---- MIG ---- */

static nvmlReturn_t mig_capable(const struct card_state *card)
{
    return card->mig_max_devices == 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    ENTER(nvmlDeviceGetMigMode, device, current);
    if (pending == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *current = card->mig_current;
    *pending = card->mig_pending;
    return mig_capable(card);
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
    ENTER(nvmlDeviceIsMigDeviceHandle, device, is_mig);
    (void)card;
    *is_mig = session_mig_of(device) >= 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    ENTER(nvmlDeviceGetMaxMigDeviceCount, device, count);
    *count = card->mig_max_devices;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
    ENTER(nvmlDeviceGetMigDeviceHandleByIndex, device, mig);
    if (mig_capable(card) != NVML_SUCCESS) return NVML_ERROR_NOT_SUPPORTED;
    if (index >= card->mig_max_devices || index >= MAX_MIG_DEVICES) return NVML_ERROR_INVALID_ARGUMENT;
    if (!card->mig_current || !card->mig_devices[index].given) return NVML_ERROR_NOT_FOUND;
    *mig = session_mig_handle(session_card_of(device), index);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
    ENTER(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, mig, device);
    (void)card;
    if (session_mig_of(mig) < 0) return NVML_ERROR_INVALID_ARGUMENT;
    *device = session_handle(session_card_of(mig));
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    ENTER(nvmlDeviceGetGpuInstanceId, device, id);
    if (session_mig_of(device) < 0) return NVML_ERROR_NOT_SUPPORTED;
    *id = card->mig_devices[session_mig_of(device)].gpu_instance;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    ENTER(nvmlDeviceGetComputeInstanceId, device, id);
    if (session_mig_of(device) < 0) return NVML_ERROR_NOT_SUPPORTED;
    *id = card->mig_devices[session_mig_of(device)].compute_instance;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    ENTER(nvmlDeviceGetAttributes_v2, device, attributes);
    int mig = session_mig_of(device);
    if (mig < 0) return NVML_ERROR_NOT_SUPPORTED;
    CONSISTENT(card)
    {
        memset(attributes, 0, sizeof *attributes);
        attributes->multiprocessorCount = card->mig_devices[mig].multiprocessors;
        attributes->gpuInstanceSliceCount = 1;
        attributes->computeInstanceSliceCount = 1;
        attributes->memorySizeMB = card->mig_devices[mig].memory_total_bytes >> 20;
    }
    return NVML_SUCCESS;
}
