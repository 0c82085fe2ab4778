"""A store whose clocks tests set, and what they put into it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from poise.history.promql.labels import Labels, labels
from poise.history.promql.nodes import Matcher, MatchOperator
from poise.history.promql.series import stale_flags
from poise.history.store.pruning import Retention
from poise.history.store.shares import MOST_SERIES
from poise.history.store.store import Store

#: A full hour, so that tests can count in hours from it.
START = 1_700_000_000 // 3600 * 3600.0
EVERYTHING = (Matcher("job", MatchOperator.EQUAL, "j"),)


@dataclass
class Clock:
    """Both clocks, which tests set."""

    wall: float = START
    monotonic: float = 1000.0

    def go_on(self, seconds: float) -> float:
        """Time passes; the new wall time."""
        self.wall += seconds
        self.monotonic += seconds
        return self.wall


@dataclass
class World:
    """A store that can be started again, and its clock."""

    path: Path
    clock: Clock = field(default_factory=Clock)
    retention: Retention = field(default_factory=Retention)
    most_series: int = MOST_SERIES
    store: Store = field(init=False)

    def __post_init__(self) -> None:
        self.store = self.open()

    def open(self) -> Store:
        """The store as a new process has it."""
        clock = self.clock
        return Store(self.path, self.retention, wall=lambda: clock.wall, monotonic=lambda: clock.monotonic, most_series=self.most_series)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def restart(self) -> None:
        """As after kill -9: nothing is flushed, the file is opened anew."""
        self.store.close()
        self.store = self.open()

    def samples(self, name: str, start: float = 0, end: float = 1e10) -> list[tuple[float, float]]:
        """(seconds since START, value) of one series, without stale markers."""
        matchers = (Matcher("__name__", MatchOperator.EQUAL, name), *EVERYTHING)
        found = self.store.select(matchers, round(start * 1000), round(end * 1000))
        if not found:
            return []
        assert len(found) == 1
        living = ~stale_flags(found[0].values)
        assert (np.diff(found[0].times) > 0).all()
        return list(zip((found[0].times[living] / 1000 - START).tolist(), found[0].values[living].tolist(), strict=True))


def own(name: str, **more: str) -> Labels:
    """The labels of a series."""
    return labels({"__name__": name, "job": "j", **more})


def run_hours(world: World, hours: float, name: str = "x", step: float = 300.0, beside: int = 0) -> list[tuple[float, float]]:
    """Scrapes for some hours; what was put in. `beside` further series have values that do not compress."""
    put = []
    draw = np.random.default_rng(7)
    for count in range(round(hours * 3600 / step)):
        at = world.clock.go_on(step)
        others = {own(f"beside{n}"): float(value) for n, value in enumerate(draw.random(beside))}
        world.store.append("t", at, {own(name): float(count), **others})
        put.append((at - START, float(count)))
    return put
