"""From what a worker process did to what its simulated card would show. Pure arithmetic: values in, values out.

Every figure comes from the worker (its schedule statistics, its resident set, the KV cache of its server); nothing is invented
but the card's own limits, which are in its profile, and the few constants below, which only shape the curves between them.
What workers send each other is in traffic.py. docs/testbed.md has every formula and constant; a test compares them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

# Below this share a card counts as idle: a worker without work looks at its queue now and then, for one or two percent.
IDLE_SHARE = 0.05
# A thread that waited nearly all the time is judged by no less than this part of it: the kernel adds up waiting when it
# ends, so that a long wait can show in the second after it.
LEAST_SHARE = 0.1
# A GPU under full load settles within about a minute: first-order lag of its temperature.
TEMPERATURE_SECONDS = 20.0
# Under full LLM load cards draw close to, not at, their limit.
FULL_LOAD_OF_LIMIT = 0.9
# Full load heats a card to so many degrees below its highest operating point.
FULL_LOAD_MARGIN_CELSIUS = 10.0
# A card that nothing cools heats to so many degrees above its slowdown point: less than three below its shutdown point (H20).
UNCOOLED_CELSIUS = 2.0
# … and does so faster than load heats a cooled one.
UNCOOLED_SECONDS = 5.0
# The SM clock, as a share of the top, under each reason that lowers it. Hardware slowdowns: "reducing the core clocks by a factor
# of 2 or more" (nvml.h, nvmlClocksEventReasonHwThermalSlowdown, …HwPowerBrakeSlowdown). The other two name no figure; 0.8 lies
# between, and 0.6 is a power cap that a neighbour's card does not have.
CLOCK_SHARES = {"hw_thermal_slowdown": 0.5, "hw_power_brake": 0.5, "sw_power_cap": 0.6, "sw_thermal_slowdown": 0.8}


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """Nanoseconds since a thread began: on a core, and waiting for one while it could have run."""

    ran: int
    waited: int


def parse_schedstat(text: str) -> ThreadTimes:
    """The first two fields of /proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst of the kernel).

    Raises ValueError for anything else.
    """
    ran, waited, _ = text.split()
    return ThreadTimes(int(ran), int(waited))


def busy_share(before: Mapping[int, ThreadTimes], after: Mapping[int, ThreadTimes], seconds: float) -> float:
    """Share 0..1 of `seconds` in which a process had work, from the times of its threads (by thread id).

    A thread's share is the time it ran, of the time in which it was not kept waiting for a core: what it would have run with
    a core of its own, as a card's kernels have the card. (Waiting alone says nothing: on a busy machine an idle worker that
    looks at its queue fifty times a second waits longer than it runs.) Threads count together, cut at 1: a card with one
    kernel running is as busy, by NVML's meaning, as a card with many. A thread that began in between counts from its birth;
    one that ended is lost with its last part.
    """
    if seconds <= 0:
        return 0.0
    whole = seconds * 1e9
    share = 0.0
    for thread, times in after.items():
        earlier = before.get(thread, ThreadTimes(0, 0))
        ran, waited = times.ran - earlier.ran, times.waited - earlier.waited
        if ran > 0:
            share += ran / max(whole - max(0, waited), LEAST_SHARE * whole)
    return min(1.0, share)


@dataclass(frozen=True, slots=True)
class CardLimits:
    """What a card's profile says of it: watts, degrees Celsius, megahertz of the SM clock."""

    idle_watts: float
    limit_watts: float
    idle_celsius: float
    highest_celsius: float  # of operation: above it the driver lowers clocks
    slowdown_celsius: float  # the card itself halves them
    idle_megahertz: float
    full_megahertz: float


def memory_bytes(resident: int, weights: int, cache: int) -> int:
    """What a worker holds of its card: its resident set, and no less than its part of the weights and its KV cache.

    vLLM's CPU build writes its whole KV cache once at start (torch.zeros, vllm/v1/worker/utils.py of 0.32), as a card gives it
    away whole: so it is in the resident set already, with weights and activations, and adding it would count it twice. The
    least is for a worker of which the kernel has swapped out a part: a card gives nothing back.
    """
    return max(resident, weights + cache)


def power_watts(limits: CardLimits, share: float, megahertz: float) -> float:
    """Between idle and nearly the limit, in proportion to the busy share and to the SM clock."""
    span = FULL_LOAD_OF_LIMIT * limits.limit_watts - limits.idle_watts
    return limits.idle_watts + span * share * megahertz / limits.full_megahertz


def temperature_celsius(limits: CardLimits, previous: float, watts: float, seconds: float, cooled: bool = True) -> float:
    """The temperature `seconds` later: it follows the power with a lag, and leaves it behind when nothing cools the card."""
    span = FULL_LOAD_OF_LIMIT * limits.limit_watts - limits.idle_watts
    load = (watts - limits.idle_watts) / span if span > 0 else 0.0
    full = limits.highest_celsius - FULL_LOAD_MARGIN_CELSIUS
    goal = limits.idle_celsius + (full - limits.idle_celsius) * max(0.0, load)
    lag = TEMPERATURE_SECONDS
    if not cooled:
        goal, lag = limits.slowdown_celsius + UNCOOLED_CELSIUS, UNCOOLED_SECONDS
    return goal + (previous - goal) * math.exp(-max(0.0, seconds) / lag)


def thermal_reasons(limits: CardLimits, celsius: float) -> set[str]:
    """Why heat lowers the clocks: the driver's doing above the highest operating point, the card's own above its slowdown point
    (nvml.h, nvmlClocksEventReasonSwThermalSlowdown, …HwThermalSlowdown; HwSlowdown stands for all that the card does itself)."""
    reasons = {"sw_thermal_slowdown"} if celsius > limits.highest_celsius else set()
    return reasons | {"hw_thermal_slowdown", "hw_slowdown"} if celsius > limits.slowdown_celsius else reasons


def clock_megahertz(limits: CardLimits, share: float, reasons: Collection[str] = ()) -> float:
    """A card raises its SM clock to the top, or as far as the reasons let it, when it has work, and drops it when it has none."""
    if share < IDLE_SHARE:
        return limits.idle_megahertz
    lowest = min((CLOCK_SHARES.get(reason, 1.0) for reason in reasons), default=1.0)
    return max(limits.idle_megahertz, lowest * limits.full_megahertz)
