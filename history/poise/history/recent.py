"""The last minutes of every scraped series in memory: latest values, rates, histogram quantiles.

Owns the window and the arithmetic over it. Knows no network, no page and no meaning of a series. Time is an argument: every question
is about the window that ends at the newest successful scrape. A series that this scrape lacks is gone, and no question finds it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import inf, isnan

from poise.history.scrape import Scrape
from poise.history.text_format import Series

#: Seconds that are kept.
WINDOW = 900.0
#: Series that are kept, gone ones included; over it the longest gone are forgotten first.
MAX_SERIES = 60_000


class Bound(StrEnum):
    """How a quantile stands to its value."""

    EXACT = "="
    AT_LEAST = "≥"
    BELOW = "<"


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile from histogram buckets. In the open bucket it is AT_LEAST the last finite bound, in the first BELOW its bound.

    `count` is the number of observations it was taken from.
    """

    value: float
    bound: Bound
    count: float


@dataclass(frozen=True, slots=True)
class Point:
    """A value at a time (Unix seconds)."""

    at: float
    value: float


class _Column:
    """The samples of one series, oldest first."""

    __slots__ = ("times", "values")

    def __init__(self) -> None:
        self.times = array("d")
        self.values = array("d")

    def append(self, at: float, value: float) -> None:
        self.times.append(at)
        self.values.append(value)

    def forget_before(self, at: float) -> None:
        if self.times and self.times[0] < at:
            cut = bisect_left(self.times, at)
            del self.times[:cut]
            del self.values[:cut]

    def since(self, at: float) -> tuple[Sequence[float], Sequence[float]]:
        cut = bisect_left(self.times, at)
        return self.times[cut:], self.values[cut:]


class RecentWindow:
    """Every series of one target over the last `seconds`. One thread appends and reads; it is not locked."""

    def __init__(self, seconds: float = WINDOW, max_series: int = MAX_SERIES) -> None:
        self._seconds = seconds
        self._max_series = max_series
        self._columns: dict[str, dict[Series, _Column]] = defaultdict(dict)
        self._size = 0
        self._attempt: Scrape | None = None
        self._newest: Scrape | None = None
        self._names: dict[str, list[Series]] = {}

    # ------------------------------------------------------------------------------------------------------------- writing
    def append(self, scrape: Scrape) -> None:
        """Take in an attempt; a failed one keeps the window as it is and shows in `attempt`."""
        self._attempt = scrape
        if not scrape.up or (self._newest is not None and scrape.at == self._newest.at):
            return
        if self._newest is not None and scrape.at < self._newest.at:
            # The clock was set back. What is kept has times that are yet to come: beside it the new samples could not be told in order, and
            # without the new ones the present would not be shown until the clock has caught up.
            self._columns.clear()
            self._size = 0
        self._newest = scrape
        self._names = defaultdict(list)
        for series, value in scrape.samples.items():
            if isnan(value):
                continue
            self._names[series.name].append(series)
            column = self._columns[series.name].get(series)
            if column is None:
                column = self._columns[series.name][series] = _Column()
                self._size += 1
            column.append(scrape.at, value)
        self._forget(scrape.at - self._seconds)

    def _forget(self, horizon: float) -> None:
        for name, columns in list(self._columns.items()):
            for series, column in list(columns.items()):
                column.forget_before(horizon)
                if not column.times:
                    del columns[series]
                    self._size -= 1
            if not columns:
                del self._columns[name]
        if self._size > self._max_series:
            gone = sorted(
                ((column.times[-1], series) for columns in self._columns.values() for series, column in columns.items()),
                key=lambda item: item[0],
            )
            for _, series in gone[: self._size - self._max_series]:
                del self._columns[series.name][series]
                self._size -= 1

    # ------------------------------------------------------------------------------------------------------------- reading
    @property
    def attempt(self) -> Scrape | None:
        """The last attempt, successful or not; None before the first."""
        return self._attempt

    @property
    def newest(self) -> Scrape | None:
        """The newest successful scrape, which all questions are about; None before the first."""
        return self._newest

    @property
    def size(self) -> int:
        """How many series are kept, those that are gone but still within the window included."""
        return self._size

    def select(self, name: str, **labels: str) -> list[Series]:
        """The present series of this name whose labels have these values ("" is satisfied by a missing label), in page order."""
        wanted = labels.items()
        return [one for one in self._names.get(name, ()) if all(one.label(label) == value for label, value in wanted)]

    def value(self, series: Series) -> float | None:
        """The value of a present series."""
        return self._newest.samples.get(series) if self._newest else None

    def one(self, name: str, **labels: str) -> float | None:
        """The value of the first present series that fits, None when there is none."""
        found = self.select(name, **labels)
        return self.value(found[0]) if found else None

    def total(self, name: str, **labels: str) -> float | None:
        """The sum over the present series that fit, None when there is none."""
        values = [value for series in self.select(name, **labels) if (value := self.value(series)) is not None]
        return sum(values) if values else None

    def points(self, series: Series, seconds: float) -> list[Point]:
        """The samples of the last `seconds` before the newest scrape, oldest first."""
        return [Point(at, value) for at, value in zip(*self._since(series, seconds), strict=True)]

    def slopes(self, series: Series, seconds: float) -> list[Point]:
        """Of a counter: its rate per second between each two samples in a row, at the later one's time. A reset counts from zero."""
        times, values = self._since(series, seconds)
        return [
            Point(at, _grown(before, value) / (at - earlier))
            for (earlier, before), (at, value) in pairwise(zip(times, values, strict=True))
        ]

    def increase(self, series: Series, seconds: float) -> float | None:
        """By how much a counter grew over its samples of the last `seconds`; resets count from zero. None with fewer than two."""
        _, values = self._since(series, seconds)
        return sum(_grown(before, value) for before, value in pairwise(values)) if len(values) > 1 else None

    def rate(self, series: Series, seconds: float) -> float | None:
        """The counter's increase per second between its first and last sample of the last `seconds`, not extrapolated."""
        times, values = self._since(series, seconds)
        if len(times) < 2:
            return None
        return sum(_grown(before, value) for before, value in pairwise(values)) / (times[-1] - times[0])

    def total_increase(self, name: str, seconds: float, **labels: str) -> float | None:
        """The sum of increases over the series that fit, None when none has two samples."""
        return _sum(self.increase(series, seconds) for series in self.select(name, **labels))

    def total_rate(self, name: str, seconds: float, **labels: str) -> float | None:
        """The sum of rates over the series that fit, None when none has two samples."""
        return _sum(self.rate(series, seconds) for series in self.select(name, **labels))

    def quantile(self, q: float, name: str, seconds: float, **labels: str) -> Quantile | None:
        """The q-quantile of what a histogram observed in the last `seconds`, over all its series that fit.

        `name` is the histogram's without suffix. Linear within a bucket, as Prometheus' histogram_quantile. None when nothing was
        observed or there are not two scrapes.
        """
        grown: dict[float, float] = defaultdict(float)
        histograms: dict[str, list[tuple[float, Series]]] = defaultdict(list)
        for series in self.select(f"{name}_bucket", **labels):
            try:
                bound = float(series.label("le"))
            except ValueError:
                continue
            rest = "\0".join(f"{label}={value}" for label, value in series.labels.items() if label != "le")
            histograms[rest].append((bound, series))
        for buckets in histograms.values():
            for bound, increase in self._bucket_increases(buckets, seconds):
                grown[bound] += increase
        return _quantile(q, sorted(grown.items()))

    def _bucket_increases(self, buckets: list[tuple[float, Series]], seconds: float) -> list[tuple[float, float]]:
        """Increase per bound of one histogram. If one bucket fell, the engine restarted, and all of them count from zero there."""
        columns = [(bound, self._since(series, seconds)) for bound, series in buckets]
        times = columns[0][1][0]
        if any(list(column_times) != list(times) for _, (column_times, _) in columns):
            return []  # bounds changed within the window: another server answers there now
        rows = list(zip(*(values for _, (_, values) in columns), strict=True))
        sums = [0.0] * len(columns)
        for before, after in pairwise(rows):
            reset = any(new < old for old, new in zip(before, after, strict=True))
            for position, (old, new) in enumerate(zip(before, after, strict=True)):
                sums[position] += new if reset else new - old
        return [(bound, grown) for (bound, _), grown in zip(columns, sums, strict=True)]

    def _since(self, series: Series, seconds: float) -> tuple[Sequence[float], Sequence[float]]:
        column = self._columns.get(series.name, {}).get(series)
        if column is None or self._newest is None:
            return (), ()
        # Half a second of tolerance: scrapes never come exactly on the interval, and a window of 60 s means 12 steps of 5 s.
        return column.since(self._newest.at - seconds - 0.5)


def _grown(before: float, after: float) -> float:
    return after - before if after >= before else after


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _quantile(q: float, buckets: list[tuple[float, float]]) -> Quantile | None:
    """From (bound, cumulative count), sorted, the last bound +Inf."""
    if len(buckets) < 2 or buckets[-1][0] != inf or buckets[-1][1] <= 0:
        return None
    count = buckets[-1][1]
    rank = q * count
    below = 0.0
    for position, (bound, cumulative) in enumerate(buckets):
        if cumulative >= rank and cumulative > below:
            if bound == inf:
                return Quantile(buckets[-2][0], Bound.AT_LEAST, count)
            if position == 0:
                return Quantile(bound, Bound.BELOW, count)
            lower = buckets[position - 1][0]
            return Quantile(lower + (bound - lower) * (rank - below) / (cumulative - below), Bound.EXACT, count)
        below = max(below, cumulative)
    return Quantile(buckets[-2][0], Bound.AT_LEAST, count)
