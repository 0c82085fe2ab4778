/* nvlink.c — questions about one NVLink: its state, version, far end and error counters. Byte counters are fields. */
#include <stdio.h>

#include "library.h"

/* A link number beyond what the driver's NVML counts is an argument error; one that the card lacks is not supported. */
nvmlReturn_t link_of(const struct state *state, const struct card_state *card, unsigned int link)
{
    if (link >= driver_link_limit(state)) return NVML_ERROR_INVALID_ARGUMENT;
    if (link >= card->link_count) return NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

#define ENTER_LINK(name, device, number, result)                                                                       \
    ENTER(name, device, result);                                                                                       \
    do {                                                                                                               \
        nvmlReturn_t missing_ = link_of(session_state(), card, number);                                                \
        if (missing_ != NVML_SUCCESS) return missing_;                                                                 \
    } while (0)

static int is_active(const struct link_state *link)
{
    return link->state != NVML_NVLINK_STATE_INACTIVE;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *active)
{
    ENTER_LINK(nvmlDeviceGetNvLinkState, device, link, active);
    *active = is_active(&card->links[link]) ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version)
{
    ENTER_LINK(nvmlDeviceGetNvLinkVersion, device, link, version);
    *version = card->links[link].version;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
                                                        nvmlIntNvLinkDeviceType_t *type)
{
    ENTER_LINK(nvmlDeviceGetNvLinkRemoteDeviceType, device, link, type);
    if (!is_active(&card->links[link])) return NVML_ERROR_NOT_SUPPORTED;
    *type = (nvmlIntNvLinkDeviceType_t)card->links[link].remote_type;
    return NVML_SUCCESS;
}

static nvmlReturn_t remote_pci(struct card_state *card, unsigned int link, nvmlPciInfo_t *pci)
{
    unsigned int function;

    if (!is_active(&card->links[link])) return NVML_ERROR_NOT_SUPPORTED;
    CONSISTENT(card)
    {
        memset(pci, 0, sizeof *pci);
        memcpy(pci->busId, card->links[link].remote_bus_id, sizeof pci->busId - 1);
    }
    if (sscanf(pci->busId, "%x:%x:%x.%x", &pci->domain, &pci->bus, &pci->device, &function) != 4)
        return NVML_ERROR_NOT_SUPPORTED;
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xffffu, pci->bus & 0xffu,
             pci->device & 0xffu);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    ENTER_LINK(nvmlDeviceGetNvLinkRemotePciInfo_v2, device, link, pci);
    return remote_pci(card, link, pci);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    ENTER_LINK(nvmlDeviceGetNvLinkRemotePciInfo, device, link, pci);
    return remote_pci(card, link, pci);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link,
                                                  nvmlNvLinkCapability_t capability, unsigned int *result)
{
    ENTER_LINK(nvmlDeviceGetNvLinkCapability, device, link, result);
    switch (capability) {
    case NVML_NVLINK_CAP_P2P_SUPPORTED:
    case NVML_NVLINK_CAP_P2P_ATOMICS:
    case NVML_NVLINK_CAP_VALID: *result = 1; return NVML_SUCCESS;
    case NVML_NVLINK_CAP_SYSMEM_ACCESS:
    case NVML_NVLINK_CAP_SYSMEM_ATOMICS:
    case NVML_NVLINK_CAP_SLI_BRIDGE: *result = 0; return NVML_SUCCESS;
    default: return NVML_ERROR_INVALID_ARGUMENT;
    }
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link,
                                                    nvmlNvLinkErrorCounter_t counter, unsigned long long *value)
{
    ENTER_LINK(nvmlDeviceGetNvLinkErrorCounter, device, link, value);
    if ((unsigned int)counter >= NVML_NVLINK_ERROR_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    /* NVLink 5 counts by fields. */
    if (card->architecture >= NVML_DEVICE_ARCH_BLACKWELL) return NVML_ERROR_NOT_SUPPORTED;
    *value = card->links[link].errors[counter];
    return NVML_SUCCESS;
}
