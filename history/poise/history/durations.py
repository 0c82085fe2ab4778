"""Prometheus durations ("1h30m", "250ms") as seconds and back: parameters of its HTTP API, rule files, Alertmanager's configuration.

Durations inside an expression belong to the parser of expressions. Grammar and units: Prometheus `model/time.go` (ParseDuration).
"""

from __future__ import annotations

import re

#: Unit → milliseconds, largest first: a duration is written in this order, each unit once. A year has 365 days.
_UNITS = {"y": 31_536_000_000, "w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_DURATION = re.compile("".join(rf"(?:(?P<{unit}>\d+){unit})?" for unit in _UNITS))


def parse_duration(text: str) -> float:
    """Seconds of a duration as Prometheus writes it. Raises ValueError that names the text for anything else ("5 min", "", "1.5h")."""
    if text == "0":
        return 0.0
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise ValueError(f'"{text}" is no duration: write whole numbers with the units y, w, d, h, m, s, ms, as in 1h30m')
    return sum(int(match[unit] or 0) * factor for unit, factor in _UNITS.items()) / 1000


def format_duration(seconds: float) -> str:
    """The shortest way to write so many seconds, rounded to milliseconds. Raises ValueError below zero."""
    if seconds < 0:
        raise ValueError(f"a duration cannot be negative: {seconds} s")
    rest = round(seconds * 1000)
    if rest == 0:
        return "0s"
    words = []
    for unit, factor in _UNITS.items():
        if unit in ("y", "w"):
            continue  # "1w" and "7d" are the same; people read days
        number, rest = divmod(rest, factor)
        if number:
            words.append(f"{number}{unit}")
    return "".join(words)
