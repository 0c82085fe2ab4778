/* topology.c — how far two cards are from each other, and whether they reach each other's memory. */
#include "library.h"

static nvmlReturn_t pair(nvmlDevice_t first, nvmlDevice_t second, int *a, int *b)
{
    *a = session_card_of(first);
    *b = session_card_of(second);
    return *a < 0 || *b < 0 ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t first, nvmlDevice_t second,
                                                        nvmlGpuTopologyLevel_t *level)
{
    int a, b;

    ENTER(nvmlDeviceGetTopologyCommonAncestor, first, level);
    (void)card;
    if (pair(first, second, &a, &b) != NVML_SUCCESS) return NVML_ERROR_INVALID_ARGUMENT;
    *level = (nvmlGpuTopologyLevel_t)session_state()->topology[a][b];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t first, nvmlDevice_t second, nvmlGpuP2PCapsIndex_t capability,
                                           nvmlGpuP2PStatus_t *status)
{
    int a, b;

    ENTER(nvmlDeviceGetP2PStatus, first, status);
    (void)card;
    if (pair(first, second, &a, &b) != NVML_SUCCESS) return NVML_ERROR_INVALID_ARGUMENT;
    if ((unsigned int)capability > NVML_P2P_CAPS_INDEX_PCI) return NVML_ERROR_INVALID_ARGUMENT;
    *status = (nvmlGpuP2PStatus_t)session_state()->p2p[a][b][capability];
    return NVML_SUCCESS;
}

/* The other cards that are exactly this far away. Without a buffer the call tells how many there are. */
EXPORT nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level,
                                                     unsigned int *count, nvmlDevice_t *devices)
{
    ENTER(nvmlDeviceGetTopologyNearestGpus, device, count);
    (void)card;
    int here = session_card_of(device);
    unsigned int room = devices == NULL ? UINT_MAX : *count;
    unsigned int found = 0;
    for (uint32_t index = 0; index < session_card_count() && found < room; index++) {
        int other = session_card(index);
        if (other == here || session_state()->topology[here][other] != (uint32_t)level) continue;
        if (devices != NULL) devices[found] = session_handle(other);
        found++;
    }
    *count = found;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t first, nvmlDevice_t second, int *same)
{
    int a, b;

    ENTER(nvmlDeviceOnSameBoard, first, same);
    (void)card;
    if (pair(first, second, &a, &b) != NVML_SUCCESS) return NVML_ERROR_INVALID_ARGUMENT;
    *same = a == b;
    return NVML_SUCCESS;
}
