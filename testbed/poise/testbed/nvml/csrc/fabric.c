/* fabric.c — a card's registration with the NVSwitch fabric. */
#include "library.h"

/* Member by member, because the four versions of the struct have the same members at different places. */
#define FILL_FABRIC(info, card)                                                                                        \
    do {                                                                                                               \
        memcpy((info)->clusterUuid, (card)->fabric_cluster, sizeof(info)->clusterUuid);                                \
        (info)->status = (nvmlReturn_t)(card)->fabric_status;                                                          \
        (info)->state = (nvmlGpuFabricState_t)(card)->fabric_state;                                                    \
    } while (0)

static nvmlReturn_t has_fabric(const struct card_state *card)
{
    return card->architecture < NVML_DEVICE_ARCH_HOPPER ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
    ENTER(nvmlDeviceGetGpuFabricInfo, device, info);
    CONSISTENT(card)
    {
        FILL_FABRIC(info, card);
        info->cliqueId = card->fabric_clique;
    }
    return has_fabric(card);
}

/* Version 2 ends before healthSummary, so only its prefix may be written. Version 3 came with branch 580. */
EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info)
{
    ENTER(nvmlDeviceGetGpuFabricInfoV, device, info);
    int is_v3 = info->version == nvmlGpuFabricInfo_v3 && driver_at_least(session_state(), 580, 0);
    if (!is_v3 && info->version != nvmlGpuFabricInfo_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    CONSISTENT(card)
    {
        FILL_FABRIC(info, card);
        info->cliqueId = card->fabric_clique;
        info->healthMask = card->fabric_health_mask;
        if (is_v3) info->healthSummary = (unsigned char)card->fabric_health_summary;
    }
    return has_fabric(card);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfo_v4(nvmlDevice_t device, nvmlGpuFabricInfo_v4_t *info)
{
    ENTER(nvmlDeviceGetGpuFabricInfo_v4, device, info);
    CONSISTENT(card)
    {
        memset(info, 0, sizeof *info);
        FILL_FABRIC(info, card);
        info->cliques[0].id = card->fabric_clique; /* type 0: unicast pointer */
        info->numCliques = 1;
        info->healthMask = card->fabric_health_mask;
        info->healthSummary = (unsigned char)card->fabric_health_summary;
    }
    return has_fabric(card);
}
