"""What the engine reads: stored series, where they come from, and the mark of a series that ended. Owns no syntax and no evaluation."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from poise.history.promql.labels import Labels
from poise.history.promql.nodes import Matcher

Floats = npt.NDArray[np.float64]
Times = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: The bits of the NaN that says "this series ended here" (Prometheus, model/value.StaleNaN); any other NaN is a value.
STALE_BITS = 0x7FF0000000000002
STALE: float = struct.unpack("<d", struct.pack("<Q", STALE_BITS))[0]


def stale_flags(values: Floats) -> Flags:
    """Where values are stale markers."""
    flags: Flags = values.view(np.int64) == STALE_BITS
    return flags


def any_stale(several: Sequence[Floats]) -> bool:
    """Whether there is a stale marker in any of several arrays."""
    return bool(several) and bool(np.count_nonzero(stale_flags(np.concatenate(several))))


def at_any(present: Flags) -> Flags:
    """Per step (the last axis): whether any row is present."""
    flags: Flags = np.asarray(present.any(axis=0))
    return flags


@dataclass(frozen=True, slots=True)
class StoredSeries:
    """One series: labels with the metric's name, times in milliseconds since 1970 (rising), values with stale markers among them."""

    labels: Labels
    times: Times
    values: Floats


class Storage(Protocol):
    """Where series come from."""

    def select(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[StoredSeries]:
        """The series that fit all matchers with their samples of start ≤ time ≤ end (milliseconds); those without any may be left out."""
        ...


def fits(labels: Labels, matchers: Sequence[Matcher]) -> bool:
    """Whether a label set fits all matchers; a missing label is "" to them."""
    own = dict(labels)
    return all(matcher.holds(own.get(matcher.name, "")) for matcher in matchers)


@dataclass(frozen=True, slots=True)
class MemoryStorage:
    """Series in a list, for tests and for short windows."""

    series: Sequence[StoredSeries]

    def select(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[StoredSeries]:
        found = []
        for one in self.series:
            if fits(one.labels, matchers):
                first, last = np.searchsorted(one.times, (start, end + 1))
                if first < last:
                    found.append(StoredSeries(one.labels, one.times[first:last], one.values[first:last]))
        return found
