/* processes.c — who is on a card, with how much memory, and how busy each of them keeps it. */
#include "library.h"

enum process_kind { COMPUTE, GRAPHICS, MPS };

/* Both versions: too little room answers INSUFFICIENT_SIZE and says how much is needed; no process is a success. */
static nvmlReturn_t list(struct card_state *card, int mig, enum process_kind kind, unsigned int *count,
                         nvmlProcessInfo_v2_t *infos)
{
    unsigned int room = infos == NULL ? 0 : *count;
    unsigned int found = 0;

    CONSISTENT(card)
    {
        found = 0;
        for (uint32_t i = 0; i < card->process_count && i < MAX_PROCESSES; i++) {
            const struct process_state *process = &card->processes[i];
            if (process->kind != (uint32_t)kind) continue;
            if (mig >= 0 && process->gpu_instance != card->mig_devices[mig].gpu_instance) continue;
            if (found < room) {
                infos[found].pid = process->pid;
                infos[found].usedGpuMemory = process->used_memory_bytes;
                infos[found].gpuInstanceId = process->gpu_instance;
                infos[found].computeInstanceId = process->compute_instance;
            }
            found++;
        }
    }
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t list_v1(struct card_state *card, int mig, enum process_kind kind, unsigned int *count,
                            nvmlProcessInfo_v1_t *infos)
{
    nvmlProcessInfo_v2_t found[MAX_PROCESSES];
    unsigned int room = infos == NULL ? 0 : *count;
    unsigned int listed = MAX_PROCESSES;

    list(card, mig, kind, &listed, found);
    *count = listed;
    if (listed > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < listed; i++) {
        infos[i].pid = found[i].pid;
        infos[i].usedGpuMemory = found[i].usedGpuMemory;
    }
    return NVML_SUCCESS;
}

#define LIST_FUNCTION(name, type, lister, kind)                                                                        \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, type *infos)                                    \
    {                                                                                                                  \
        ENTER(name, device, count);                                                                                    \
        return lister(card, session_mig_of(device), kind, count, infos);                                               \
    }

LIST_FUNCTION(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, list, COMPUTE)
LIST_FUNCTION(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, list, COMPUTE)
LIST_FUNCTION(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, list_v1, COMPUTE)
LIST_FUNCTION(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, list, GRAPHICS)
LIST_FUNCTION(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, list, GRAPHICS)
LIST_FUNCTION(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, list_v1, GRAPHICS)
LIST_FUNCTION(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, list, MPS)
LIST_FUNCTION(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, list, MPS)
LIST_FUNCTION(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, list_v1, MPS)

/* ---- utilization by process ---- */

static int is_newer(const struct process_state *process, uint64_t since)
{
    return process->utilization_at_us != 0 && process->utilization_at_us > since;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                                    unsigned int *count, unsigned long long last_seen_us)
{
    ENTER(nvmlDeviceGetProcessUtilization, device, count);
    if (card->mig_current) return NVML_ERROR_NOT_SUPPORTED;

    unsigned int room = samples == NULL ? 0 : *count;
    unsigned int found = 0;
    CONSISTENT(card)
    {
        found = 0;
        for (uint32_t i = 0; i < card->process_count && i < MAX_PROCESSES; i++) {
            const struct process_state *process = &card->processes[i];
            if (!is_newer(process, last_seen_us)) continue;
            if (found < room) {
                samples[found].pid = process->pid;
                samples[found].timeStamp = process->utilization_at_us;
                samples[found].smUtil = process->sm_percent;
                samples[found].memUtil = process->memory_percent;
                samples[found].encUtil = process->encoder_percent;
                samples[found].decUtil = process->decoder_percent;
            }
            found++;
        }
    }
    *count = found;
    if (found == 0) return NVML_ERROR_NOT_FOUND;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info)
{
    ENTER(nvmlDeviceGetProcessesUtilizationInfo, device, info);
    if (info->version != nvmlProcessesUtilizationInfo_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (card->mig_current) return NVML_ERROR_NOT_SUPPORTED;

    unsigned int room = info->procUtilArray == NULL ? 0 : info->processSamplesCount;
    unsigned int found = 0;
    CONSISTENT(card)
    {
        found = 0;
        for (uint32_t i = 0; i < card->process_count && i < MAX_PROCESSES; i++) {
            const struct process_state *process = &card->processes[i];
            if (!is_newer(process, info->lastSeenTimeStamp)) continue;
            if (found < room) {
                nvmlProcessUtilizationInfo_v1_t *sample = &info->procUtilArray[found];
                sample->timeStamp = process->utilization_at_us;
                sample->pid = process->pid;
                sample->smUtil = process->sm_percent;
                sample->memUtil = process->memory_percent;
                sample->encUtil = process->encoder_percent;
                sample->decUtil = process->decoder_percent;
                sample->jpgUtil = process->jpeg_percent;
                sample->ofaUtil = process->ofa_percent;
            }
            found++;
        }
    }
    info->processSamplesCount = found;
    if (found == 0) return NVML_ERROR_NOT_FOUND;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
