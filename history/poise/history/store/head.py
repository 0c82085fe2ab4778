"""Every known series with its newest samples in memory. Knows no lock: store.py holds it."""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from poise.history.promql.labels import NAME, Labels, get
from poise.history.promql.nodes import Matcher, MatchOperator
from poise.history.promql.series import Floats, StoredSeries, Times, fits
from poise.history.store.chunks import DamagedChunk, decode_tick
from poise.history.store.reader import Reader

logger = logging.getLogger(__name__)


#: Selectors of one name of a series whose records are remembered until a series of this name comes or goes; the shipped rules have at most 10.
MOST_SELECTORS = 50
#: Made once: making them out of their names takes longer than a window's samples.
_TIME, _VALUE = np.dtype(np.int64), np.dtype(np.float64)
#: Quotes, colon and comma around a label's name and value.
_AROUND = 8


@dataclass(slots=True)
class Record:
    """A series: its number in the file (None: not there yet), the bytes of its labels, the target that brought it last ("" when that was before a
    restart), and its samples in memory, oldest first."""

    labels: Labels
    number: int | None = None
    size: int = 0
    target: str = ""
    times: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def between(self, start: int, end: int) -> tuple[Times, Floats]:
        """The samples of start ≤ time ≤ end, copied: the arrays grow on."""
        first, last = bisect_left(self.times, start), bisect_right(self.times, end)
        if first == last:
            return np.empty(0, dtype=np.int64), np.empty(0)
        return np.frombuffer(self.times[first:last], _TIME), np.frombuffer(self.values[first:last], _VALUE)

    def count(self, start: int, end: int) -> int:
        """How many samples of start ≤ time ≤ end there are."""
        return bisect_right(self.times, end) - bisect_left(self.times, start)

    def reaches(self, start: int, end: int) -> bool:
        """Whether there is a sample of start ≤ time ≤ end."""
        return bisect_left(self.times, start) < bisect_right(self.times, end)

    def forget_before(self, at: int) -> None:
        """Samples before a time."""
        cut = bisect_left(self.times, at)
        del self.times[:cut], self.values[:cut]

    def forget_after(self, at: int) -> None:
        """Samples after a time."""
        cut = bisect_right(self.times, at)
        del self.times[cut:], self.values[cut:]


def label_bytes(own: Labels) -> int:
    """Bytes that labels take as text."""
    together = "".join([text for pair in own for text in pair])
    return (len(together) if together.isascii() else len(together.encode("utf-8", "surrogatepass"))) + _AROUND * len(own)


class Head:
    """The records by name. From `floor` (milliseconds) on every sample that was ever taken in is here. `highest` is the highest number that a tick
    names, be there such a series or not."""

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self.highest = 0
        self._records: dict[Labels, Record] = {}
        self._by_name: dict[str, dict[Labels, Record]] = {}
        self._fitting: dict[str, dict[tuple[Matcher, ...], list[Record]]] = {}  # by name: what selectors found since its series changed

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records.values())

    def get(self, own: Labels) -> Record | None:
        """The record of a label set."""
        return self._records.get(own)

    def add(self, own: Labels, number: int | None = None, size: int | None = None) -> Record:
        """The record of a label set, made when it is new. `size`: `label_bytes` where they are known already."""
        record = self._records.get(own)
        if record is None:
            record = self._records[own] = Record(own, number, label_bytes(own) if size is None else size)
            name = get(own, NAME)
            self._by_name.setdefault(name, {})[own] = record
            self._fitting.pop(name, None)
        return record

    def remove(self, gone: Iterable[Record]) -> None:
        """Forgets series altogether."""
        for record in list(gone):
            del self._records[record.labels]
            name = get(record.labels, NAME)
            self._fitting.pop(name, None)
            del self._by_name[name][record.labels]
            if not self._by_name[name]:
                del self._by_name[name]

    def matching(self, matchers: Sequence[Matcher]) -> Sequence[Record]:
        """The records whose labels fit. Rules ask the same again and again, and series rarely change."""
        name = next((m.value for m in matchers if m.name == NAME and m.operator is MatchOperator.EQUAL), None)
        if name is None:
            return [record for own, record in self._records.items() if fits(own, matchers)]
        if name not in self._by_name:
            return ()
        key, known = tuple(matchers), self._fitting.setdefault(name, {})
        if key not in known:
            if len(known) >= MOST_SELECTORS:
                known.clear()
            known[key] = [record for own, record in self._by_name[name].items() if fits(own, matchers)]
        return known[key]

    @property
    def names(self) -> list[str]:
        """The names of all series."""
        return list(self._by_name)

    @property
    def samples(self) -> int:
        """Samples in memory."""
        return sum(len(record.times) for record in self._records.values())

    @property
    def newest(self) -> int | None:
        """The time of the newest sample in memory."""
        return max((record.times[-1] for record in self._records.values() if record.times), default=None)

    def restore(self, reader: Reader) -> int | None:
        """Takes in every series of a file and what no chunk has yet; the time of the first such sample (milliseconds), None without any.

        Raises:
            ReadFailed: the disk does not give what is on it.
        """
        numbers = {number: self.add(own, number) for own, number in reader.all_series().items()}
        ticks = []
        damaged: list[DamagedChunk] = []
        for at, data in reader.ticks():
            try:
                ticks.append((at, *decode_tick(data)))
            except DamagedChunk as error:
                damaged.append(error)
        if damaged:
            logger.warning("%d of %d scrapes are damaged and left out; the first: %s", len(damaged), len(damaged) + len(ticks), damaged[0])
        self.load(numbers, ticks)
        return min((tick[0] for tick in ticks), default=None)

    def load(self, numbers: dict[int, Record], ticks: Sequence[tuple[int, np.ndarray, Floats]]) -> None:
        """Takes in ticks (time, numbers of series, values), oldest first; numbers that nobody has are left out."""
        if not ticks:
            return
        identifiers = np.concatenate([tick[1] for tick in ticks])
        self.highest = max(self.highest, int(identifiers.max(initial=0)))
        times = np.repeat(np.array([tick[0] for tick in ticks], dtype=np.int64), [len(tick[1]) for tick in ticks])
        values = np.concatenate([tick[2] for tick in ticks])
        order = np.lexsort((times, identifiers))
        identifiers, times, values = identifiers[order], times[order], values[order]
        edges = np.flatnonzero(np.diff(identifiers)) + 1
        for part_ids, part_times, part_values in zip(
            np.split(identifiers, edges), np.split(times, edges), np.split(values, edges), strict=True
        ):
            record = numbers.get(int(part_ids[0]))
            if record is not None:
                rising = np.concatenate(([True], np.diff(part_times) > 0))
                record.times.frombytes(part_times[rising].tobytes())
                record.values.frombytes(part_values[rising].tobytes())


def stored(record: Record, parts: Sequence[tuple[Times, Floats]]) -> StoredSeries | None:
    """One series from parts that follow each other; None when they are all empty."""
    filled = [part for part in parts if len(part[0])]
    if not filled:
        return None
    if len(filled) == 1:
        return StoredSeries(record.labels, *filled[0])
    return StoredSeries(record.labels, np.concatenate([part[0] for part in filled]), np.concatenate([part[1] for part in filled]))
