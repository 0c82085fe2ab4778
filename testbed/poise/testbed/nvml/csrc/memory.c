/* memory.c — memory of the card and of its BAR1 window. */
#include "library.h"

/* Version 1 counts the part that the driver reserved as used; version 2 tells them apart. */
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ENTER(nvmlDeviceGetMemoryInfo, device, memory);
    int mig = session_mig_of(device);
    CONSISTENT(card)
    {
        memory->total = mig < 0 ? card->memory_total_bytes : card->mig_devices[mig].memory_total_bytes;
        memory->used = mig < 0 ? card->memory_used_bytes + card->memory_reserved_bytes
                               : card->mig_devices[mig].memory_used_bytes;
        memory->free = memory->total - memory->used;
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    ENTER(nvmlDeviceGetMemoryInfo_v2, device, memory);
    if (memory->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    int mig = session_mig_of(device);
    CONSISTENT(card)
    {
        memory->total = mig < 0 ? card->memory_total_bytes : card->mig_devices[mig].memory_total_bytes;
        memory->reserved = mig < 0 ? card->memory_reserved_bytes : 0;
        memory->used = mig < 0 ? card->memory_used_bytes : card->mig_devices[mig].memory_used_bytes;
        memory->free = memory->total - memory->reserved - memory->used;
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    ENTER(nvmlDeviceGetBAR1MemoryInfo, device, memory);
    CONSISTENT(card)
    {
        memory->bar1Total = card->bar1_total_bytes;
        memory->bar1Used = card->bar1_used_bytes;
        memory->bar1Free = memory->bar1Total - memory->bar1Used;
    }
    return NVML_SUCCESS;
}
