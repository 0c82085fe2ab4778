"""Adds up the series behind one count so that the sum is a counter: it does not fall when one of them vanishes. Pure but for what it remembers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

#: So many vanished series are remembered one by one, for one may come back; older ones are only in the sum.
LOST_LIMIT = 1024


@dataclass(slots=True)
class HeldSums(Generic[Key]):
    """Sums of counters by key. A router drops the series of a worker that was taken out; what that worker did stays in the sum.

    When any series falls, or all are gone, the router has started again: then everything is forgotten, and the sums fall as counters do.
    """

    _last: dict[Key, dict[str, float]] = field(default_factory=dict)
    _lost: dict[Key, dict[str, float]] = field(default_factory=dict)
    _lost_for_good: dict[Key, float] = field(default_factory=dict)

    def update(self, counts: Mapping[Key, Mapping[str, float]]) -> Mapping[Key, float]:
        """The sums after the newest page, for its keys."""
        if self._has_started_again(counts):
            self._last, self._lost, self._lost_for_good = {}, {}, {}
        for key in counts.keys() | self._last.keys():
            self._carry(key, counts.get(key, {}))
        self._last = {key: dict(series) for key, series in counts.items()}
        return {key: sum(series.values()) + self._held(key) for key, series in counts.items()}

    def _has_started_again(self, counts: Mapping[Key, Mapping[str, float]]) -> bool:
        before = {(key, name): value for key, series in self._last.items() for name, value in series.items()}
        now = {(key, name): value for key, series in counts.items() for name, value in series.items()}
        return bool(before) and (not now or any(now[item] < value for item, value in before.items() if item in now))

    def _carry(self, key: Key, series: Mapping[str, float]) -> None:
        lost = self._lost.setdefault(key, {})
        lost.update({name: value for name, value in self._last.get(key, {}).items() if name not in series})
        for name in series.keys() & lost.keys():
            value = lost.pop(name)
            if series[name] < value:  # the worker is back and counts from the start
                self._lost_for_good[key] = self._lost_for_good.get(key, 0.0) + value
        while len(lost) > LOST_LIMIT:
            self._lost_for_good[key] = self._lost_for_good.get(key, 0.0) + lost.pop(next(iter(lost)))

    def _held(self, key: Key) -> float:
        return self._lost_for_good.get(key, 0.0) + sum(self._lost.get(key, {}).values())
