"""Moments and durations as Prometheus' HTTP API takes them: Unix seconds or RFC 3339, seconds or "1h30m". Pure; the clock is passed in.

Source: prometheus web/api/v1/api.go, parseTime and parseDuration.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from poise.history.durations import parse_duration

#: What `parseTime` also takes: the texts of the earliest and latest time (Go's minTime and maxTime).
_EDGES = {"-292273086-05-16T16:47:06Z": -9_223_309_901_257_974.0, "292277025-08-18T07:12:54.999999999Z": 9_223_309_901_257_974.0}
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d)")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?")


def unix_seconds(text: str) -> float:
    """A moment. Raises ValueError naming the text."""
    if _NUMBER.fullmatch(text):
        seconds = float(text)
        if math.isfinite(seconds):
            return seconds
    if text in _EDGES:
        return _EDGES[text]
    match = _RFC3339.fullmatch(text)
    if match is not None:
        try:
            whole = datetime.fromisoformat(match[1] + match[3]).timestamp()
        except (ValueError, OverflowError):
            pass  # month 13 and the like: told below
        else:
            return whole + float(match[2] or 0)
    raise ValueError(f'cannot parse "{text}" to a valid timestamp')


def length(text: str) -> float:
    """A duration in seconds. Raises ValueError naming the text."""
    if _NUMBER.fullmatch(text):
        seconds = float(text)
        if math.isfinite(seconds):
            return seconds
    try:
        return parse_duration(text)
    except ValueError:
        raise ValueError(f'cannot parse "{text}" to a valid duration') from None


def moment(text: str, anchor: float) -> float:
    """As `unix_seconds`, or so long before `anchor`: "-24h". Raises ValueError."""
    if text.startswith("-") and not _NUMBER.fullmatch(text):
        return anchor - length(text[1:])
    return unix_seconds(text)


def written(seconds: float) -> str:
    """A moment as people read it: RFC 3339 in UTC, to the second; one that no calendar has as its Unix seconds."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g}"
