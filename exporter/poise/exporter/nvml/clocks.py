"""Clocks, performance state, and why the clocks are where they are: now (a mask) and for how long in sum (seconds).

The driver counts some reasons in nanoseconds, under field ids that moved between drivers (see `counter_fields`). Reasons that it does not
count are integrated from the mask at each tick, which misses what is shorter.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import lru_cache

import pynvml
from poise.exporter.metrics import (
    GPU_CLOCK,
    GPU_CLOCK_MAX,
    GPU_CLOCKS_EVENT,
    GPU_CLOCKS_EVENT_SECONDS,
    GPU_PERFORMANCE_STATE,
)
from poise.exporter.nvml.card import Card, Collector, Labels, Read, Tick
from poise.exporter.nvml.fields import FieldBatch
from poise.exporter.nvml.library import REFUSALS, SUCCESS, Call

_MEGA = 1e6
_NANO = 1e-9

#: Label → nvmlClockType_t.
CLOCKS = {
    "graphics": pynvml.NVML_CLOCK_GRAPHICS,
    "sm": pynvml.NVML_CLOCK_SM,
    "memory": pynvml.NVML_CLOCK_MEM,
    "video": pynvml.NVML_CLOCK_VIDEO,
}
#: Label → bit of nvmlClocksEventReasons (nvml.h).
REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake": 0x80,
    "display_clock": 0x100,
}
#: NVML_PSTATE_UNKNOWN
_PERFORMANCE_STATE_UNKNOWN = 32

#: Ids of the same counter in every driver (nvml.h: NVML_FI_DEV_PERF_POLICY_POWER, NVML_FI_DEV_PERF_POLICY_SYNC_BOOST).
_STABLE_COUNTERS = {"sw_power_cap": 74, "sync_boost": 76}
#: nvml.h 12.9 and 13.0 (drivers 575.… to 580.65) have the three slowdown counters here, …
_COUNTERS_575 = {"sw_thermal_slowdown": 251, "hw_thermal_slowdown": 252, "hw_power_brake": 253}
#: … nvml.h 13.1 and newer here, and gave 251 to 253 another meaning.
_COUNTERS_580 = {"sw_thermal_slowdown": 269, "hw_thermal_slowdown": 270, "hw_power_brake": 271}


def counter_fields(driver: tuple[int, ...]) -> dict[str, int]:
    """Label → field id of the driver's nanosecond counter, for a driver version such as (580, 95, 5).

    Between 580.65 (exclusive) and 580.82 it is not known which header a build follows, so the moved counters are left out there.
    """
    fields = dict(_STABLE_COUNTERS)
    version = (*driver, 0, 0)[:2]
    if (575, 0) <= version <= (580, 65):
        fields |= _COUNTERS_575
    elif version >= (580, 82):
        fields |= _COUNTERS_580
    return fields


@lru_cache(maxsize=64)
def reasons_in(mask: int) -> tuple[str, ...]:
    """The labels of the reasons that a mask names."""
    return tuple(reason for reason, bit in REASONS.items() if mask & bit)


@lru_cache(maxsize=64)
def _events(mask: int) -> Mapping[Labels, float]:
    """The state of every reason. Masks repeat, so their (never changed) results do."""
    return {(reason,): float(bool(mask & bit)) for reason, bit in REASONS.items()}


class EventMeter:
    """Seconds per reason, integrated from masks. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(REASONS, 0.0)
        self._last: float | None = None

    def advance(self, now: float, mask: int, longest_gap: float) -> None:
        """Counts the time since the last tick for each reason in the mask; a gap longer than `longest_gap` seconds is left out."""
        elapsed = 0.0 if self._last is None else now - self._last
        self._last = now
        if 0 < elapsed <= longest_gap:
            for reason in reasons_in(mask):
                self.seconds[reason] += elapsed


def prepare(card: Card, fields: FieldBatch) -> Read:
    """Clocks of the driver are MHz, counters ns."""
    mask = ctypes.c_ulonglong()
    get_mask = card.call(("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"), ctypes.byref(mask))
    clocks: list[tuple[Labels, ctypes.c_uint, Call]] = []
    for label, kind in CLOCKS.items():
        number = ctypes.c_uint()
        clocks.append(((label,), number, card.call("nvmlDeviceGetClockInfo", ctypes.c_int(kind), ctypes.byref(number))))
    state = ctypes.c_int()
    get_state = card.call("nvmlDeviceGetPerformanceState", ctypes.byref(state))
    places = {reason: fields.add(field_id) for reason, field_id in counter_fields(card.driver_version).items()}
    uncounted = [reason for reason in REASONS if reason not in places]
    meter = card.keep("clocks", EventMeter)
    longest_gap = 3 * card.interval
    labels: dict[str, Labels] = {reason: (reason,) for reason in REASONS}

    def read_clocks(tick: Tick) -> None:
        values = {key: number.value * _MEGA for key, number, call in clocks if tick.ask(call)}
        if values:
            tick.put(GPU_CLOCK, values)
        else:
            tick.refuse(clocks[0][2].run(), "nvmlDeviceGetClockInfo", GPU_CLOCK)

    def read_seconds(tick: Tick, mask_known: bool) -> None:
        seconds: dict[Labels, float] = {}
        refusal = SUCCESS
        for reason, place in tuple(places.items()):
            code = fields.code(place)
            if code == SUCCESS:
                seconds[labels[reason]] = fields.value(place) * _NANO
            elif code in REFUSALS:
                uncounted.append(reason)
                del places[reason]
            else:
                refusal = code
        if mask_known:
            for reason in uncounted:
                seconds.setdefault(labels[reason], meter.seconds[reason])
        tick.put(GPU_CLOCKS_EVENT_SECONDS, seconds)
        if refusal:
            tick.refuse(refusal, "nvmlDeviceGetFieldValues", *(() if seconds else (GPU_CLOCKS_EVENT_SECONDS,)))
        elif not seconds:
            tick.refuse(get_mask.refusal or pynvml.NVML_ERROR_UNKNOWN, get_mask.name, GPU_CLOCKS_EVENT_SECONDS)

    def read(tick: Tick) -> None:
        read_clocks(tick)
        if tick.ask(get_state, GPU_PERFORMANCE_STATE):
            if state.value == _PERFORMANCE_STATE_UNKNOWN:
                tick.refuse(pynvml.NVML_ERROR_NOT_SUPPORTED, get_state.name, GPU_PERFORMANCE_STATE)
            else:
                tick.set(GPU_PERFORMANCE_STATE, state.value)
        mask_known = tick.ask(get_mask, GPU_CLOCKS_EVENT)
        if mask_known:
            now = mask.value
            tick.put(GPU_CLOCKS_EVENT, _events(now))
            meter.advance(tick.now, now, longest_gap)
        read_seconds(tick, mask_known)

    return read


def prepare_limits(card: Card, fields: FieldBatch) -> Read:
    """The highest clocks: static."""
    asked: list[tuple[Labels, ctypes.c_uint, Call]] = []
    for label, kind in CLOCKS.items():
        number = ctypes.c_uint()
        asked.append(((label,), number, card.call("nvmlDeviceGetMaxClockInfo", ctypes.c_int(kind), ctypes.byref(number))))

    def read(tick: Tick) -> None:
        tick.put(GPU_CLOCK_MAX, {key: number.value * _MEGA for key, number, call in asked if tick.ask(call)})
        if GPU_CLOCK_MAX not in tick.readings:
            tick.refuse(asked[0][2].run(), "nvmlDeviceGetMaxClockInfo", GPU_CLOCK_MAX)

    return read


COLLECTOR = Collector(
    name="clocks",
    help="clocks, performance state and clock events of each card",
    metrics=(GPU_CLOCK, GPU_PERFORMANCE_STATE, GPU_CLOCKS_EVENT, GPU_CLOCKS_EVENT_SECONDS),
    prepare=prepare,
)
LIMITS = Collector(
    name="clock_limits",
    help="highest clocks of each card",
    metrics=(GPU_CLOCK_MAX,),
    prepare=prepare_limits,
    interval=60.0,
)
