/* events.c — event sets: who registered for what, and waiting for the next event (an XID, an ECC error, ...). */
#include <pthread.h>
#include <stdlib.h>

#include "library.h"

/* Events are written into the mapped file by another process: nobody wakes us. A program that waits for good looks twenty times a second. */
#define WAIT_POLL_US 50000u

struct nvmlEventSet_st {
    pthread_mutex_t lock;
    uint64_t seen;            /* events up to here were delivered or were before the registration */
    uint64_t mask[MAX_CARDS]; /* registered types by card */
};

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    ENTER_NODE(nvmlEventSetCreate);
    if (set == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *set = calloc(1, sizeof **set);
    if (*set == NULL) return NVML_ERROR_MEMORY;
    pthread_mutex_init(&(*set)->lock, NULL);
    (*set)->seen = __atomic_load_n(&session_state()->events_written, __ATOMIC_ACQUIRE);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    nvmlReturn_t refused = gate_memory(FN_nvmlEventSetFree);
    if (refused != NVML_SUCCESS) return refused;
    if (set == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    pthread_mutex_destroy(&set->lock);
    free(set);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    ENTER(nvmlDeviceGetSupportedEventTypes, device, types);
    *types = card->supported_events;
    return NVML_SUCCESS;
}

/* One type that the card does not have fails the whole registration. */
EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    ENTER(nvmlDeviceRegisterEvents, device, set);
    if (types & ~card->supported_events) return NVML_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&set->lock);
    set->mask[session_card_of(device)] |= types;
    pthread_mutex_unlock(&set->lock);
    return NVML_SUCCESS;
}

/* Takes the next event that the set asked for; 0 when there is none yet. */
static int next_event(nvmlEventSet_t set, struct event *result)
{
    const struct state *state = session_state();
    uint64_t written = __atomic_load_n(&state->events_written, __ATOMIC_ACQUIRE);
    int found = 0;

    pthread_mutex_lock(&set->lock);
    if (written > MAX_EVENTS && set->seen < written - MAX_EVENTS) set->seen = written - MAX_EVENTS; /* overwritten */
    while (!found && set->seen < written) {
        struct event event = state->events[set->seen++ % MAX_EVENTS];
        if (event.card < 0 || (uint32_t)event.card >= MAX_CARDS || !(set->mask[event.card] & event.type)) continue;
        *result = event;
        found = 1;
    }
    pthread_mutex_unlock(&set->lock);
    return found;
}

static nvmlReturn_t wait_for_event(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    uint64_t deadline = monotonic_us() + timeout_ms * 1000ull;
    struct event event;

    if (set == NULL || data == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    while (!next_event(set, &event)) {
        nvmlReturn_t dead = session_check();
        if (dead != NVML_SUCCESS) return dead;
        if (monotonic_us() >= deadline) return NVML_ERROR_TIMEOUT;
        sleep_us(WAIT_POLL_US);
    }
    memset(data, 0, sizeof *data);
    data->device = session_handle(event.card);
    data->eventType = event.type;
    data->eventData = event.data;
    data->gpuInstanceId = event.gpu_instance;
    data->computeInstanceId = event.compute_instance;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    ENTER_NODE(nvmlEventSetWait_v2);
    return wait_for_event(set, data, timeout_ms);
}

EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    ENTER_NODE(nvmlEventSetWait);
    return wait_for_event(set, data, timeout_ms);
}
