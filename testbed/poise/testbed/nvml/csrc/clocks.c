/* clocks.c — clocks in MHz, performance state, why clocks are lowered now, and for how long they have been. */
#include "library.h"

static nvmlReturn_t clock_value(const uint32_t clocks[4], nvmlClockType_t type, unsigned int *mhz)
{
    if ((unsigned int)type >= NVML_CLOCK_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    if (clocks[type] == 0) return NVML_ERROR_NOT_SUPPORTED;
    *mhz = clocks[type];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
    ENTER(nvmlDeviceGetClockInfo, device, mhz);
    return clock_value(card->clock_mhz, type, mhz);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
    ENTER(nvmlDeviceGetMaxClockInfo, device, mhz);
    return clock_value(card->clock_max_mhz, type, mhz);
}

EXPORT nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
    ENTER(nvmlDeviceGetApplicationsClock, device, mhz);
    return clock_value(card->clock_application_mhz, type, mhz);
}

EXPORT nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id, unsigned int *mhz)
{
    ENTER(nvmlDeviceGetClock, device, mhz);
    switch (id) {
    case NVML_CLOCK_ID_CURRENT: return clock_value(card->clock_mhz, type, mhz);
    case NVML_CLOCK_ID_APP_CLOCK_TARGET:
    case NVML_CLOCK_ID_APP_CLOCK_DEFAULT: return clock_value(card->clock_application_mhz, type, mhz);
    case NVML_CLOCK_ID_CUSTOMER_BOOST_MAX: return clock_value(card->clock_max_mhz, type, mhz);
    default: return NVML_ERROR_INVALID_ARGUMENT;
    }
}

EXPORT nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, nvmlPstates_t *state)
{
    ENTER(nvmlDeviceGetPerformanceState, device, state);
    *state = (nvmlPstates_t)card->performance_state;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerState(nvmlDevice_t device, nvmlPstates_t *state)
{
    ENTER(nvmlDeviceGetPowerState, device, state);
    *state = (nvmlPstates_t)card->performance_state;
    return NVML_SUCCESS;
}

/* ---- event reasons: the same mask under its new and its old name ---- */

#define REASONS_FUNCTION(name, member)                                                                                 \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned long long *reasons)                                         \
    {                                                                                                                  \
        ENTER(name, device, reasons);                                                                                  \
        *reasons = card->member;                                                                                       \
        return NVML_SUCCESS;                                                                                           \
    }

REASONS_FUNCTION(nvmlDeviceGetCurrentClocksEventReasons, event_reasons)
REASONS_FUNCTION(nvmlDeviceGetCurrentClocksThrottleReasons, event_reasons)
REASONS_FUNCTION(nvmlDeviceGetSupportedClocksEventReasons, event_reasons_supported)
REASONS_FUNCTION(nvmlDeviceGetSupportedClocksThrottleReasons, event_reasons_supported)

/* Policies 0 to 5 stand first in policy_ns, 10 and 11 after them. */
EXPORT nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, nvmlPerfPolicyType_t policy,
                                                 nvmlViolationTime_t *violation)
{
    unsigned int slot;

    ENTER(nvmlDeviceGetViolationStatus, device, violation);
    switch (policy) {
    case NVML_PERF_POLICY_TOTAL_APP_CLOCKS: slot = 6; break;
    case NVML_PERF_POLICY_TOTAL_BASE_CLOCKS: slot = 7; break;
    default: slot = (unsigned int)policy;
    }
    if ((unsigned int)policy > NVML_PERF_POLICY_RELIABILITY && slot == (unsigned int)policy)
        return NVML_ERROR_INVALID_ARGUMENT;
    violation->referenceTime = realtime_us();
    violation->violationTime = card->policy_ns[slot];
    return NVML_SUCCESS;
}
