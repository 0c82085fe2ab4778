"""When a group is evaluated: at slots that are the same after every restart, one after the other, none twice.

Prometheus' arithmetic (`rules/group.go`, EvalTimestamp): slots are an interval apart, and each group has its own offset within it so that not all
run at once. Milliseconds; no clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

#: Groups that record for each other in a circle wait for each other for so many of the longest of their intervals.
_LONGEST_CHAIN = 4


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


def first_slots(intervals: Mapping[str, int], before: Mapping[str, Collection[str]], begin: int) -> dict[str, int]:
    """The first slot of each group, by its key, from `begin` on that does not come before those of the groups whose series it reads (`before`).

    Until those have been evaluated once, what they record is not there, and whoever reads it would take that for an end.
    """
    found = {key: following(key, interval, begin - 1) for key, interval in intervals.items()}
    latest = begin + _LONGEST_CHAIN * max(intervals.values(), default=0)
    for _ in intervals:
        moved = False
        for key, interval in intervals.items():
            needed = max((found[other] for other in before.get(key, ()) if other in found), default=begin)
            if found[key] < needed <= latest:
                found[key] = following(key, interval, needed - 1)
                moved = True
        if not moved:
            break
    return found
