"""From the units that people say (ratio, watts, seconds, hertz) to those of the mapped state (percent, mW, ns, MHz).

Each conversion refuses what cannot be, with a ValueError that names thing, value and range.
"""

from __future__ import annotations

from poise.testbed.nvml.codes import Clock
from poise.testbed.nvml.state import MAX_FIELDS

PERCENT = 100
MILLI = 1_000
MICRO = 1_000_000
NANO = 1_000_000_000
MEGAHERTZ = 1_000_000
KILOBYTE = 1_000  # nvmlDeviceGetPcieThroughput counts KB/s


def percent(what: str, ratio: float) -> int:
    if not 0.0 <= ratio <= 1.0:
        raise ValueError(f"{what} {ratio:g} is outside 0 to 1")
    return round(ratio * PERCENT)


def scaled(what: str, value: float, factor: float) -> int:
    if not value >= 0:
        raise ValueError(f"{what} {value:g} is not 0 or more")
    return round(value * factor)


def clock_named(name: str) -> Clock:
    try:
        return Clock[name.upper()]
    except KeyError:
        raise ValueError(f"clock {name!r} is not one of {', '.join(c.name.lower() for c in Clock)}") from None


def field_number(field: int) -> int:
    if not 0 < field < MAX_FIELDS:
        raise ValueError(f"field id {field} is outside 1 to {MAX_FIELDS - 1}")
    return field
