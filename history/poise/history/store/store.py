"""Keeps what scrapes bring: in memory for an hour, on disk for days; answers the PromQL engine from both.

    append ─► head (memory) ─► every hour: chunks ─► select
        └───► tick (disk, at once) ─► after a restart: head

The disk may fail at any time: observation goes on in memory, the failure is told, and writing is tried again with every scrape. The clock may
be set back: samples whose times then lie ahead go to a shelf, from where they come back when it turns out that the clock was wrong in between.
Safe from several threads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from poise.history.promql.errors import Unavailable
from poise.history.promql.labels import NAME, Labels, get
from poise.history.promql.nodes import Matcher
from poise.history.promql.series import STALE, StoredSeries
from poise.history.store.chunks import HOUR, encode_tick
from poise.history.store.database import Database
from poise.history.store.flushing import flush
from poise.history.store.head import Head, Record
from poise.history.store.selecting import known, labels_of, newer, with_older
from poise.history.store.shelf import Shelf
from poise.history.store.sqlite_file import ReadFailed, StoreError, WriteFailed

logger = logging.getLogger(__name__)

#: A chunk is closed so long after its hour, when no scrape can bring samples for it any more (milliseconds).
_SETTLE = 60_000
#: Without a disk memory is bounded instead: so many milliseconds are kept.
_LONGEST_IN_MEMORY = 3 * HOUR
#: Series that are kept; a label that changes all the time must not take all memory.
MOST_SERIES = 200_000
#: Seconds by which the wall clock may run ahead of the monotonic one between two prunings and still be believed, and for how long nothing is
#: deleted for its age after it ran further: by a clock that is wrong everything would be too old.
_BELIEVED_JUMP = 3_600.0
_DOUBT = 86_400.0


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept: `seconds` of samples and `bytes` of file, whichever is less."""

    seconds: float = 7 * 86_400.0
    bytes: int = 2_000_000_000


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """How the store does. Times in Unix seconds, None where there is nothing; `error` is empty while the disk takes what it gets."""

    path: str
    error: str
    series: int
    head_samples: int
    chunks: int
    used_bytes: int
    oldest: float | None
    newest: float | None
    dropped_series: int


class Store:
    """The series of one process. `path` None keeps them in memory only."""

    def __init__(
        self,
        path: Path | None,
        retention: Retention | None = None,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        most_series: int = MOST_SERIES,
    ) -> None:
        """Opens the file and brings the newest samples back to memory.

        Raises:
            StoreError: the file cannot be used.
        """
        self._retention = retention or Retention()
        self._wall = wall
        self._monotonic = monotonic
        self._most_series = most_series
        self._lock = threading.RLock()
        self._database = None if path is None else Database(path)
        self._path = "" if path is None else str(path)
        self._error = ""
        self._dropped = 0
        self._present: dict[str, set[Labels]] = {}  # what the last scrape of each target brought
        self._last: dict[str, int] = {}  # when that was
        self._head = Head(0)
        self._flushed = 0  # samples before are in chunks
        self._shelf: Shelf | None = None
        self._pruned_at: tuple[float, float] | None = None
        self._doubted_until = float("-inf")
        try:
            self._load()
        except ReadFailed as failure:
            self.close()
            raise StoreError(f"{path}: {failure}; choose another place with --history PATH") from None

    def close(self) -> None:
        """Gives the file free; everything is on it already."""
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    def _load(self) -> None:
        now = self._now()
        if self._database is None:
            return
        self._shelf = Shelf(self._database)
        floor = self._head.restore(self._database.reader)
        self._head.floor = self._flushed = now if floor is None else floor
        # What was there when the process ended is stale from then on, or it would seem to live for five more minutes.
        newest = self._head.newest
        if newest is not None and newest < now:
            at = newest + 1
            living = [record for record in self._head if record.times and record.times[-1] == newest]
            self._take(at, [(record, STALE) for record in living])
        elif newest is not None and newest > now:
            self._set_back(now - 1)

    def _now(self) -> int:
        return round(self._wall() * 1000)

    # ----------------------------------------------------------------------------------------------------------- writing
    def append(self, target: str, at: float, samples: Mapping[Labels, float]) -> None:
        """What one scrape of a target brought at `at` (Unix seconds); what it brought before and lacks now is marked stale.

        A failed scrape is one that brings nothing but its own `up`.
        """
        moment = round(at * 1000)
        with self._lock:
            last = self._last.get(target)
            if last is not None and moment == last:
                return
            if last is not None and moment < last:
                self._set_back(moment - 1)
            self._resolve_shelf(moment)
            self._last[target] = moment
            rows: list[tuple[Record, float]] = []
            for own, value in samples.items():
                record = self._head.get(own)
                if record is None:
                    if len(self._head) >= self._most_series:
                        self._drop()
                        continue
                    record = self._head.add(own)
                rows.append((record, value))
            now_present = {record.labels for record, _ in rows}
            for own in self._present.get(target, set()) - now_present:
                gone = self._head.get(own)
                if gone is not None:
                    rows.append((gone, STALE))
            self._present[target] = now_present
            self._take(moment, rows)
            self._keep_house(moment)

    def forget_target(self, target: str, at: float) -> None:
        """A target that is not scraped any more: its series end now."""
        self.append(target, at, {})
        with self._lock:
            self._present.pop(target, None)
            self._last.pop(target, None)

    def _drop(self) -> None:
        if self._dropped == 0:
            logger.warning("more than %d series: new ones are not kept", self._most_series)
        self._dropped += 1

    def _take(self, at: int, rows: Sequence[tuple[Record, float]]) -> None:
        """To memory and, as one tick, to disk."""
        kept = []
        for record, value in rows:
            if record.times and record.times[-1] >= at:
                continue
            record.times.append(at)
            record.values.append(value)
            kept.append((record, value))
        if self._database is None or not kept:
            return
        try:
            with self._database.writing() as writer:
                numbers = writer.add_series(record.labels for record, _ in kept if record.number is None)
                identifiers = np.array([numbers.get(r.labels) if r.number is None else r.number for r, _ in kept], dtype=np.uint32)
                writer.add_tick(at, encode_tick(identifiers, np.array([value for _, value in kept])))
        except WriteFailed as failure:
            self._tell(str(failure))
            return
        self._number(numbers)
        self._tell("")

    def _number(self, numbers: Mapping[Labels, int]) -> None:
        for own, number in numbers.items():
            self._head.add(own).number = number

    def _tell(self, error: str) -> None:
        if error and error != self._error:
            logger.error("%s: nothing can be written (%s); observation goes on in memory, and writing is tried again", self._path, error)
        elif not error and self._error:
            logger.info("%s: written again", self._path)
        self._error = error

    # ------------------------------------------------------------------------------------------------------ housekeeping
    def _keep_house(self, at: int) -> None:
        boundary = (at - _SETTLE) // HOUR * HOUR
        if self._database is None:
            self._cut(at - HOUR)
        elif boundary > self._flushed:
            self._flush(boundary)
            if self._flushed == boundary:
                self._prune()
            self._cut(max(min(self._flushed, at - HOUR), at - _LONGEST_IN_MEMORY))

    def _cut(self, before: int) -> None:
        if before > self._head.floor:
            for record in self._head:
                record.forget_before(before)
            self._head.floor = before
            if self._database is None:
                self._head.remove([record for record in self._head if not record.times])

    def _flush(self, upto: int) -> None:
        """Samples before a time go to chunks, and their ticks away; both or neither."""
        assert self._database is not None
        try:
            numbers = flush(self._database, self._head, self._flushed, upto)
        except (ReadFailed, WriteFailed) as failure:
            self._tell(str(failure))
            return
        self._number(numbers)
        self._flushed = upto

    def _prune(self) -> None:
        """Old chunks go, by age and by size; series without any samples go with them."""
        assert self._database is not None
        wall, monotonic = self._wall(), self._monotonic()
        before, self._pruned_at = self._pruned_at, (wall, monotonic)
        if before is not None and wall - before[0] > monotonic - before[1] + _BELIEVED_JUMP:
            logger.warning("the clock was set forward; nothing is deleted for its age for a day")
            self._doubted_until = monotonic + _DOUBT
        try:
            if monotonic >= self._doubted_until:
                with self._database.writing() as writer:
                    writer.forget_chunks(round((wall - self._retention.seconds) * 1000))
            while self._database.reader.used_bytes() > self._retention.bytes:
                edges = self._database.reader.edges(shelved=False)
                if edges is None:
                    break
                with self._database.writing() as writer:
                    if not writer.forget_chunks((edges[0] // HOUR + 1) * HOUR):
                        break
            with self._database.writing() as writer:
                living = writer.series_in_chunks()
                gone = [record for record in self._head if not record.times and record.number not in living]
                writer.forget_series([record.number for record in gone if record.number is not None])
                writer.give_back_space()
        except (ReadFailed, WriteFailed) as failure:
            self._tell(str(failure))
            return
        self._head.remove(gone)

    # -------------------------------------------------------------------------------------------------- a clock set back
    def _set_back(self, at: int) -> None:
        """The clock says `at`, and there are samples of later times."""
        newest = self._head.newest
        if newest is None or newest <= at:
            return
        logger.warning("the clock was set back by %.0f s; samples whose times lie ahead are put aside", (newest - at) / 1000)
        if self._shelf is not None:
            try:
                self._shelf.put(self._head, self._flushed, at)
            except WriteFailed as failure:
                self._tell(str(failure))
        for record in self._head:
            record.forget_after(at)
        self._head.floor = min(self._head.floor, at + 1)
        self._flushed = at + 1
        self._last = dict.fromkeys(self._last, at - 1)
        if self._shelf is not None:
            try:
                self._shelf.look_again()
            except ReadFailed as failure:
                self._tell(str(failure))

    def _resolve_shelf(self, at: int) -> None:
        """Past the times on the shelf it shows which clock was wrong: what was stored meanwhile at those times is right, else the shelf is."""
        if self._shelf is None or not self._shelf.is_past(at):
            return
        # All of the head goes to chunks, so that what comes back from the shelf is not hidden behind it.
        self._flush(at)
        if self._flushed != at:
            return
        try:
            self._shelf.decide()
        except (ReadFailed, WriteFailed) as failure:
            self._tell(str(failure))
            return
        self._cut(at)

    # ----------------------------------------------------------------------------------------------------------- reading
    def select(self, matchers: Sequence[Matcher], start: int, end: int) -> list[StoredSeries]:
        """As `poise.history.promql.series.Storage` says. Raises Unavailable where the disk does not give what is on it."""
        with self._lock:
            part = newer(self._head, matchers, start, end)
            reader = None if self._database is None else self._database.reader
        try:
            return with_older(part, reader, start, end)
        except ReadFailed as failure:
            raise self._unreadable(failure) from None

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> list[Labels]:
        """The labels of the series that fit and have samples from start to end (milliseconds). Raises Unavailable as `select`."""
        with self._lock:
            part = known(self._head, matchers, start, end)
            reader = None if self._database is None else self._database.reader
        try:
            return labels_of(part, reader, start, end)
        except ReadFailed as failure:
            raise self._unreadable(failure) from None

    def _unreadable(self, failure: ReadFailed) -> Unavailable:
        return Unavailable(f"{self._path} cannot be read: {failure}")

    def names(self) -> list[str]:
        """The names of all series."""
        with self._lock:
            return self._head.names

    def names_since(self, at: float) -> frozenset[str]:
        """The names of all series that have a sample in memory from `at` (Unix seconds) on."""
        moment = round(at * 1000)
        with self._lock:
            return frozenset(get(record.labels, NAME) for record in self._head if record.times and record.times[-1] >= moment)

    def oldest(self) -> float | None:
        """When the history begins (Unix seconds), None without any; while the disk does not give what is on it, that in memory."""
        with self._lock:
            edges = self._edges()
            first = min((record.times[0] for record in self._head if record.times), default=None)
        times = [time for time in (first, *((edges[0],) if edges else ())) if time is not None]
        return min(times) / 1000 if times else None

    def _edges(self) -> tuple[int, int] | None:
        """Those of what is on disk, None where nothing is or can be read."""
        try:
            return None if self._database is None else self._database.reader.edges(shelved=False)
        except ReadFailed as failure:
            self._tell(str(failure))
            return None

    def status(self) -> StoreStatus:
        """How it does; of the file nothing while the disk does not give what is on it."""
        with self._lock:
            edges = self._edges()
            chunks = used = 0
            if self._database is not None:
                try:
                    chunks, used = self._database.reader.counts()["chunk"], self._database.reader.used_bytes()
                except ReadFailed as failure:
                    self._tell(str(failure))
            first = min((record.times[0] for record in self._head if record.times), default=None)
            times = [time for time in (first, self._head.newest, *(edges or ())) if time is not None]
            return StoreStatus(
                path=self._path,
                error=self._error,
                series=len(self._head),
                head_samples=self._head.samples,
                chunks=chunks,
                used_bytes=used,
                oldest=min(times) / 1000 if times else None,
                newest=max(times) / 1000 if times else None,
                dropped_series=self._dropped,
            )
