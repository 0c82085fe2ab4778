/* pcie.c — the PCIe link, its replays and its throughput. */
#include "library.h"

#define THROUGHPUT_WINDOW_US 20000u /* the real call measures for 20 ms and blocks that long (nvml.h) */

/* By generation, as NVML counts (NVML_PCIE_LINK_MAX_SPEED_*). */
static const unsigned int SPEED_MBPS[] = {0, 2500, 5000, 8000, 16000, 32000, 64000};

#define PCIE_FUNCTION(name, member)                                                                                    \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *value)                                                 \
    {                                                                                                                  \
        ENTER(name, device, value);                                                                                    \
        *value = card->member;                                                                                         \
        return NVML_SUCCESS;                                                                                           \
    }

PCIE_FUNCTION(nvmlDeviceGetCurrPcieLinkGeneration, pcie_generation)
PCIE_FUNCTION(nvmlDeviceGetMaxPcieLinkGeneration, pcie_generation_max)
PCIE_FUNCTION(nvmlDeviceGetGpuMaxPcieLinkGeneration, pcie_generation_max_gpu)
PCIE_FUNCTION(nvmlDeviceGetCurrPcieLinkWidth, pcie_width)
PCIE_FUNCTION(nvmlDeviceGetMaxPcieLinkWidth, pcie_width_max)
PCIE_FUNCTION(nvmlDeviceGetPcieReplayCounter, pcie_replays)

EXPORT nvmlReturn_t nvmlDeviceGetPcieSpeed(nvmlDevice_t device, unsigned int *mbps)
{
    ENTER(nvmlDeviceGetPcieSpeed, device, mbps);
    if (card->pcie_generation >= sizeof SPEED_MBPS / sizeof *SPEED_MBPS) return NVML_ERROR_NOT_SUPPORTED;
    *mbps = SPEED_MBPS[card->pcie_generation];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter,
                                                unsigned int *kb_per_s)
{
    ENTER(nvmlDeviceGetPcieThroughput, device, kb_per_s);
    if ((unsigned int)counter >= NVML_PCIE_UTIL_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    sleep_us(THROUGHPUT_WINDOW_US);
    *kb_per_s = counter == NVML_PCIE_UTIL_TX_BYTES ? card->pcie_tx_kb_per_s : card->pcie_rx_kb_per_s;
    return NVML_SUCCESS;
}
