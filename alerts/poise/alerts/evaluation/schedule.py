"""When a group is evaluated: at slots that are the same after every restart, one after the other, none twice.

Prometheus' arithmetic (`rules/group.go`, EvalTimestamp): slots are an interval apart, and each group has its own offset within it so that not all
run at once. Milliseconds; no clock.
"""

from __future__ import annotations

import hashlib


def offset(key: str, interval: int) -> int:
    """The part of an interval by which the slots of the group of this key come after whole multiples of it."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % interval


def slot(key: str, interval: int, now: int) -> int:
    """The newest slot that is not after `now`."""
    shift = offset(key, interval)
    return (now - shift) // interval * interval + shift


def following(key: str, interval: int, now: int) -> int:
    """The first slot after `now`."""
    return slot(key, interval, now) + interval


def missed(last: int | None, current: int, interval: int) -> int:
    """How many slots lie between two that were evaluated; 0 for the first and after a clock that was set back."""
    return 0 if last is None else max(0, (current - last) // interval - 1)
