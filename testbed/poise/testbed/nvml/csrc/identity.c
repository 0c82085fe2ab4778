/* identity.c — which cards there are and who they are: count, handles, names, PCI addresses, architecture. */
#include <stdio.h>
#include <strings.h>

#include "library.h"

#define SHORT_DOMAIN_SKIP 4 /* "00000000:1A:00.0" and "0000:1A:00.0" name the same card */

/* ---- finding cards ---- */

static nvmlReturn_t count(unsigned int *result)
{
    if (result == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *result = session_card_count();
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *result)
{
    ENTER_NODE(nvmlDeviceGetCount_v2);
    return count(result);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *result)
{
    ENTER_NODE(nvmlDeviceGetCount);
    return count(result);
}

/* Finding a card is a call about that card: it can be lost, and it can be injected into. */
static nvmlReturn_t handle(enum function_number function, int card, nvmlReturn_t missing, nvmlDevice_t *device)
{
    nvmlReturn_t result = card < 0 ? gate_node(function) : gate_card(function, card);
    if (result != NVML_SUCCESS) return result;
    if (device == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (card < 0) return missing;
    *device = session_handle(card);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    return handle(FN_nvmlDeviceGetHandleByIndex_v2, session_card(index), NVML_ERROR_INVALID_ARGUMENT, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return handle(FN_nvmlDeviceGetHandleByIndex, session_card(index), NVML_ERROR_INVALID_ARGUMENT, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    int found = -1;
    for (uint32_t i = 0; uuid != NULL && i < session_card_count(); i++)
        if (strcmp(session_state()->cards[session_card(i)].uuid, uuid) == 0) found = session_card(i);
    return handle(FN_nvmlDeviceGetHandleByUUID, found, NVML_ERROR_NOT_FOUND, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    int found = -1;
    for (uint32_t i = 0; serial != NULL && i < session_card_count(); i++)
        if (strcmp(session_state()->cards[session_card(i)].serial, serial) == 0) found = session_card(i);
    return handle(FN_nvmlDeviceGetHandleBySerial, found, NVML_ERROR_NOT_FOUND, device);
}

static int card_at(const char *bus_id)
{
    for (uint32_t i = 0; bus_id != NULL && i < session_card_count(); i++) {
        nvmlPciInfo_t pci;
        fill_pci_info(&pci, &session_state()->cards[session_card(i)]);
        if (strcasecmp(pci.busId, bus_id) == 0 || strcasecmp(pci.busId + SHORT_DOMAIN_SKIP, bus_id) == 0)
            return session_card(i);
    }
    return -1;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    return handle(FN_nvmlDeviceGetHandleByPciBusId_v2, card_at(bus_id), NVML_ERROR_NOT_FOUND, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
    return handle(FN_nvmlDeviceGetHandleByPciBusId, card_at(bus_id), NVML_ERROR_NOT_FOUND, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    ENTER(nvmlDeviceGetIndex, device, index);
    *index = (unsigned int)session_index(session_card_of(device));
    return NVML_SUCCESS;
}

/* ---- texts ---- */

#define TEXT_FUNCTION(name, member)                                                                                    \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, char *text, unsigned int length)                                     \
    {                                                                                                                  \
        nvmlReturn_t result = NVML_SUCCESS;                                                                            \
        ENTER(name, device, text);                                                                                     \
        CONSISTENT(card) { result = copy_text(text, length, card->member, sizeof card->member); }                      \
        return result;                                                                                                 \
    }

TEXT_FUNCTION(nvmlDeviceGetName, name)
TEXT_FUNCTION(nvmlDeviceGetSerial, serial)
TEXT_FUNCTION(nvmlDeviceGetBoardPartNumber, part_number)
TEXT_FUNCTION(nvmlDeviceGetVbiosVersion, vbios)

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    nvmlReturn_t result = NVML_SUCCESS;
    ENTER(nvmlDeviceGetUUID, device, uuid);
    int mig = session_mig_of(device);
    CONSISTENT(card)
    {
        const char *text = mig < 0 ? card->uuid : card->mig_devices[mig].uuid;
        result = copy_text(uuid, length, text, sizeof card->uuid);
    }
    return result;
}

/* ---- numbers ---- */

#define NUMBER_FUNCTION(name, type, member)                                                                            \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, type *value)                                                         \
    {                                                                                                                  \
        ENTER(name, device, value);                                                                                    \
        *value = (type)card->member;                                                                                   \
        return NVML_SUCCESS;                                                                                           \
    }

NUMBER_FUNCTION(nvmlDeviceGetMinorNumber, unsigned int, minor)
NUMBER_FUNCTION(nvmlDeviceGetModuleId, unsigned int, module_id)
NUMBER_FUNCTION(nvmlDeviceGetBrand, nvmlBrandType_t, brand)
NUMBER_FUNCTION(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, architecture)
NUMBER_FUNCTION(nvmlDeviceGetNumaNodeId, unsigned int, numa_node)
NUMBER_FUNCTION(nvmlDeviceGetNumGpuCores, unsigned int, cores)
NUMBER_FUNCTION(nvmlDeviceGetMemoryBusWidth, unsigned int, memory_bus_bits)

EXPORT nvmlReturn_t nvmlDeviceGetBusType(nvmlDevice_t device, nvmlBusType_t *type)
{
    ENTER(nvmlDeviceGetBusType, device, type);
    *type = NVML_BUS_TYPE_PCIE;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    ENTER(nvmlDeviceGetCudaComputeCapability, device, major);
    if (minor == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *major = (int)card->compute_major;
    *minor = (int)card->compute_minor;
    return NVML_SUCCESS;
}

/* ---- PCI ---- */

void fill_pci_info(nvmlPciInfo_t *info, const struct card_state *card)
{
    memset(info, 0, sizeof *info);
    info->domain = card->pci_domain;
    info->bus = card->pci_bus;
    info->device = card->pci_device;
    info->pciDeviceId = card->pci_device_id;
    info->pciSubSystemId = card->pci_subsystem_id;
    snprintf(info->busId, sizeof info->busId, "%08X:%02X:%02X.0", info->domain, info->bus & 0xffu,
             info->device & 0xffu);
    snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "%04X:%02X:%02X.0", info->domain & 0xffffu, info->bus & 0xffu,
             info->device & 0xffu);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info)
{
    ENTER(nvmlDeviceGetPciInfo_v3, device, info);
    CONSISTENT(card) { fill_pci_info(info, card); }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *info)
{
    ENTER(nvmlDeviceGetPciInfo_v2, device, info);
    CONSISTENT(card) { fill_pci_info(info, card); }
    return NVML_SUCCESS;
}

/* The classes of a 3D controller: what a card without a display is on the bus (PCI class code 03 02). */
#define PCI_CLASS_DISPLAY 0x03u
#define PCI_SUBCLASS_3D 0x02u

EXPORT nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *info)
{
    nvmlPciInfo_t pci;

    ENTER(nvmlDeviceGetPciInfoExt, device, info);
    if (info->version != nvmlPciInfoExt_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    CONSISTENT(card) { fill_pci_info(&pci, card); }
    info->domain = pci.domain;
    info->bus = pci.bus;
    info->device = pci.device;
    info->pciDeviceId = pci.pciDeviceId;
    info->pciSubSystemId = pci.pciSubSystemId;
    info->baseClass = PCI_CLASS_DISPLAY;
    info->subClass = PCI_SUBCLASS_3D;
    memcpy(info->busId, pci.busId, sizeof info->busId);
    return NVML_SUCCESS;
}

/* ---- affinity ---- */

/* A simulated card is near every processor of its machine. */
EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int size, unsigned long *set)
{
    ENTER(nvmlDeviceGetCpuAffinity, device, set);
    memset(set, 0xff, size * sizeof *set);
    return NVML_SUCCESS;
}
