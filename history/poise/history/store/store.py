"""Keeps what scrapes bring: in memory for an hour, on disk for days; answers the PromQL engine from both.

    append ─► head (memory) ─► every hour: chunks ─► select
        └───► tick (disk, at once) ─► after a restart: head

The disk may fail at any time: observation goes on in memory, the failure is told, and writing is tried again with every scrape. The clock may
be set back: samples whose times then lie ahead go to a shelf, from where they come back when it turns out that the clock was wrong in between.

Safe from several threads, by two locks. Who writes holds `_writing` from the first sample to the commit, so that the file has everything in the order
in which memory has it. `_lock` is for memory alone: it is held while something there changes or is copied, never while the disk is asked, so that
no reader waits for one. Who holds `_lock` does not take `_writing`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from poise.history.promql.errors import Unavailable
from poise.history.promql.labels import NAME, Labels, get
from poise.history.promql.nodes import Matcher
from poise.history.promql.series import STALE, StoredSeries, stale_flags
from poise.history.store.chunks import HOUR, encode_tick
from poise.history.store.database import Database
from poise.history.store.flushing import flush
from poise.history.store.head import Head, Record
from poise.history.store.intake import MOST_NEW_SERIES, Intake
from poise.history.store.pruning import Pruning, Retention
from poise.history.store.reader import Reader
from poise.history.store.selecting import known, labels_of, newer, with_older
from poise.history.store.shares import MOST_SERIES, Shares, label_bytes_for
from poise.history.store.shelf import Shelf
from poise.history.store.sqlite_file import FileFailed, ReadFailed, StoreError, WriteFailed

logger = logging.getLogger(__name__)

#: A chunk is closed so long after its hour, when no scrape can bring samples for it any more (milliseconds).
_SETTLE = 60_000
#: Without a disk memory is bounded instead: so many milliseconds are kept.
_LONGEST_IN_MEMORY = 3 * HOUR
#: Seconds between two new files: a disk that spoils everything must not be filled with spoilt files.
_ANEW_EVERY = 60.0

Found = TypeVar("Found")


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
    postponed_series: int = 0


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
        most_new_series: int = MOST_NEW_SERIES,
    ) -> None:
        """Opens the file and brings the newest samples back to memory.

        Raises:
            StoreError: the file cannot be used.
        """
        kept = retention or Retention()
        self._wall = wall
        self._monotonic = monotonic
        self._intake = Intake(Shares(most_series, label_bytes_for(kept.bytes)), most_new_series)
        self._writing = threading.RLock()
        self._lock = threading.RLock()
        self._database = None if path is None else Database(path)
        self._pruning = None if self._database is None else Pruning(self._database, kept, wall, monotonic, self._forget)
        self._path = "" if path is None else str(path)
        self._error = ""
        self._last: dict[str, int] = {}  # when each target was scraped last
        self._head = Head(0)
        self._flushed = 0  # samples before are in chunks
        self._packed = (
            -1
        )  # no chunk has a later sample; where none can have an answer the file is not asked, which costs more than the answer
        self._shelf: Shelf | None = None
        self._unwritten: int | None = None  # the newest samples that the disk did not take
        self._files = 1  # how many were begun, this one included
        self._renewed_at = float("-inf")
        try:
            self._load()
        except ReadFailed as failure:
            self.close()
            raise StoreError(f"{path}: {failure}; choose another place with --history PATH") from None
        except StoreError:
            self.close()
            raise

    def close(self) -> None:
        """Gives the file free. Everything is on it already, but for what a disk did not take, with which it is tried a last time."""
        with self._writing:
            if self._database is None:
                return
            newest = self._head.newest
            if self._unwritten is not None and newest is not None:
                # In chunks, so that all the missing scrapes take one write; there no start finds what lived, so that it ends here.
                self._remember(newest + 1, [(record, STALE) for record in self._living()])
                self._flush(newest + 2)
            self._database.close()
            with self._lock:
                self._database = None

    def _load(self) -> None:
        now = self._now()
        if self._database is None:
            return
        try:
            floor = self._restore(self._database)
        except ReadFailed as failure:
            if not failure.lost:
                raise
            self._database.set_aside()
            floor = self._restore(self._database)
        self._head.floor = self._flushed = now if floor is None else floor
        self._intake.recount(self._head)
        # What was there when the process ended is stale from then on, or it would seem to live for five more minutes.
        newest = self._head.newest
        if newest is not None and newest < now:
            self._write(newest + 1, self._remember(newest + 1, [(record, STALE) for record in self._living()]))
        elif newest is not None and newest > now:
            self._set_back(now - 1)

    def _restore(self, database: Database) -> int | None:
        self._head = Head(0)
        self._shelf = Shelf(database)
        edges = database.reader.edges(shelved=False)
        self._packed = -1 if edges is None else edges[1]
        floor = self._head.restore(database.reader)
        database.number_after(self._head.highest)
        return floor

    def _living(self) -> list[Record]:
        """The series that have not ended, whichever target they are of and whenever that was scraped last."""
        return [record for record in self._head if record.times and not stale_flags(np.array(record.values[-1:]))[0]]

    def _now(self) -> int:
        return round(self._wall() * 1000)

    # ----------------------------------------------------------------------------------------------------------- writing
    def append(self, target: str, at: float, samples: Mapping[Labels, float]) -> None:
        """What one scrape of a target brought at `at` (Unix seconds); what it brought before and lacks now is marked stale.

        A failed scrape is one that brings nothing but its own `up`. When this returns, everything is on disk, or it was told that it is not.
        """
        moment = round(at * 1000)
        with self._writing:
            last = self._last.get(target)
            if last is not None and moment == last:
                return
            if last is not None and moment < last:
                self._set_back(moment - 1)
            self._resolve_shelf(moment)
            self._last[target] = moment
            with self._lock:
                kept = self._remember(moment, self._intake.rows(self._head, target, samples, len(self._last)))
            self._write(moment, kept)
            self._keep_house(moment)

    def forget_target(self, target: str, at: float) -> None:
        """A target that is not scraped any more: its series end now."""
        self.append(target, at, {})
        with self._writing:
            self._intake.forget(target)
            self._last.pop(target, None)

    def _remember(self, at: int, rows: Sequence[tuple[Record, float]]) -> list[tuple[Record, float]]:
        """To memory; those that are later than what it has of their series."""
        kept = []
        with self._lock:
            for record, value in rows:
                if record.times and record.times[-1] >= at:
                    continue
                record.times.append(at)
                record.values.append(value)
                kept.append((record, value))
        return kept

    def _write(self, at: int, kept: Sequence[tuple[Record, float]]) -> None:
        """To disk, as one tick."""
        if self._database is None or not kept:
            return
        try:
            with self._database.writing() as writer:
                numbers = writer.add_series(record.labels for record, _ in kept if record.number is None)
                identifiers = np.array([numbers.get(r.labels) if r.number is None else r.number for r, _ in kept], dtype=np.uint32)
                writer.add_tick(at, encode_tick(identifiers, np.array([value for _, value in kept])))
        except WriteFailed as failure:
            self._unwritten = at
            self._failed(failure)
            return
        self._number(numbers)
        self._tell("")

    def _number(self, numbers: Mapping[Labels, int]) -> None:
        for own, number in numbers.items():
            record = self._head.get(own)
            assert record is not None  # nothing goes from the head while this thread writes
            record.number = number

    def _forget(self, gone: Sequence[Record]) -> None:
        with self._lock:
            self._head.remove(gone)

    def _failed(self, failure: FileFailed) -> None:
        """A file that is lost is begun anew; any other failure is told, and what failed is tried again with the next scrape."""
        if failure.lost and self._monotonic() - self._renewed_at >= _ANEW_EVERY:
            self._begin_anew()
        else:
            self._tell(str(failure))

    def _begin_anew(self) -> None:
        """A new file, with all that is in memory."""
        assert self._database is not None
        assert self._shelf is not None
        try:
            self._database.set_aside()
        except StoreError as error:
            self._tell(str(error))
            return
        self._files += 1
        self._renewed_at = self._monotonic()
        with self._lock:
            self._head.remove([record for record in self._head if not record.times])
            for record in self._head:
                record.number = None
        self._shelf.edges = None
        self._flushed, newest = self._head.floor, self._head.newest
        if newest is None:
            return
        self._unwritten = newest
        self._flush(newest)
        self._write(newest, [(record, record.values[-1]) for record in self._head if record.times[-1] == newest])
        if self._flushed == newest and not self._error:
            self._unwritten = None

    def _tell(self, error: str) -> None:
        if error and error != self._error:
            logger.error("%s: nothing can be written (%s); observation goes on in memory, and writing is tried again", self._path, error)
        elif not error and self._error:
            logger.info("%s: written again", self._path)
        self._error = error

    # ------------------------------------------------------------------------------------------------------ housekeeping
    def _keep_house(self, at: int) -> None:
        boundary = (at - _SETTLE) // HOUR * HOUR
        if self._pruning is None:
            self._cut(at - HOUR)
            return
        due = False
        if boundary > self._flushed:
            self._flush(boundary)
            due = self._flushed == boundary
            self._cut(max(min(self._flushed, at - HOUR), at - _LONGEST_IN_MEMORY))
        if self._error:
            return
        try:
            if due or self._pruning.is_due():
                self._pruning.prune(self._head)
        except (ReadFailed, WriteFailed) as failure:
            self._failed(failure)

    def _cut(self, before: int) -> None:
        if before > self._head.floor:
            with self._lock:
                for record in self._head:
                    record.forget_before(before)
                self._head.floor = before
                if self._database is None:
                    self._head.remove([record for record in self._head if not record.times])
            self._intake.recount(self._head)
            self._intake.has_room_again()

    def _flush(self, upto: int) -> None:
        """Samples before a time go to chunks, and their ticks away; both or neither."""
        assert self._database is not None
        try:
            numbers = flush(self._database, self._head, self._flushed, upto)
        except (ReadFailed, WriteFailed) as failure:
            self._failed(failure)
            return
        self._number(numbers)
        self._flushed = upto
        self._packed = max(self._packed, upto - 1)
        if self._unwritten is not None and self._unwritten < upto:
            self._unwritten = None

    # -------------------------------------------------------------------------------------------------- a clock set back
    def _set_back(self, at: int) -> None:
        """The clock says `at`, and there are samples of later times."""
        newest = self._head.newest
        if newest is None or newest <= at:
            return
        logger.warning("the clock was set back by %.0f s; samples whose times lie ahead are put aside", (newest - at) / 1000)
        failed: FileFailed | None = None
        if self._shelf is not None:
            try:
                self._packed = max(self._packed, at)
                self._shelf.put(self._head, self._flushed, at)
            except WriteFailed as failure:
                failed = failure
        with self._lock:
            for record in self._head:
                record.forget_after(at)
            self._head.floor = min(self._head.floor, at + 1)
        self._intake.recount(self._head)
        self._flushed = at + 1
        self._last = dict.fromkeys(self._last, at - 1)
        if self._shelf is not None:
            try:
                self._shelf.look_again()
            except ReadFailed as failure:
                failed = failed or failure
        if failed is not None:
            self._failed(failed)

    def _resolve_shelf(self, at: int) -> None:
        """Past the times on the shelf it shows which clock was wrong: what was stored meanwhile at those times is right, else the shelf is."""
        if self._shelf is None or not self._shelf.is_past(at):
            return
        # All of the head goes to chunks, so that what comes back from the shelf is not hidden behind it.
        self._flush(at)
        if self._flushed != at:
            return
        try:
            self._packed = max(self._packed, self._shelf.edges[1] if self._shelf.edges else -1)
            self._shelf.decide()
        except (ReadFailed, WriteFailed) as failure:
            self._failed(failure)
            return
        self._cut(at)

    # ----------------------------------------------------------------------------------------------------------- reading
    def select(self, matchers: Sequence[Matcher], start: int, end: int) -> list[StoredSeries]:
        """As `poise.history.promql.series.Storage` says. Raises Unavailable where the disk does not give what is on it."""
        with self._lock:
            part = newer(self._head, matchers, start, end)
            reader, files = self._reader(start), self._files
        try:
            return with_older(part, reader, start, end)
        except ReadFailed as failure:
            if self._is_renewed(failure, files):
                return self.select(matchers, start, end)
            raise self._unreadable(failure) from None

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> list[Labels]:
        """The labels of the series that fit and have samples from start to end (milliseconds). Raises Unavailable as `select`."""
        with self._lock:
            part = known(self._head, matchers, start, end)
            reader, files = self._reader(start), self._files
        try:
            return labels_of(part, reader, start, end)
        except ReadFailed as failure:
            if self._is_renewed(failure, files):
                return self.series(matchers, start, end)
            raise self._unreadable(failure) from None

    def _reader(self, start: int) -> Reader | None:
        """Whoever reads the chunks that reach to `start` or beyond it; None where there are none."""
        return None if self._database is None or start > self._packed else self._database.reader

    def _is_renewed(self, failure: ReadFailed, files: int) -> bool:
        """Whether there is another file by now than the one that a reader found lost; it may have been begun for another reader."""
        with self._writing:
            if failure.lost and files == self._files and self._database is not None:
                self._failed(failure)
            return failure.lost and files != self._files

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
        edges = self._asked(lambda reader: reader.edges(shelved=False))
        with self._lock:
            first = min((record.times[0] for record in self._head if record.times), default=None)
        times = [time for time in (first, *((edges[0],) if edges else ())) if time is not None]
        return min(times) / 1000 if times else None

    def _asked(self, ask: Callable[[Reader], Found]) -> Found | None:
        """What the file says, None where there is none or the disk does not give what is on it."""
        with self._lock:
            database, files = self._database, self._files
        if database is None:
            return None
        try:
            return ask(database.reader)
        except ReadFailed as failure:
            # Who asks may be the event loop: it does not wait for one who writes, who will find out by himself.
            if self._writing.acquire(blocking=False):
                try:
                    if files == self._files and self._database is not None:
                        self._failed(failure)
                finally:
                    self._writing.release()
            return None

    def status(self) -> StoreStatus:
        """How it does; of the file nothing while the disk does not give what is on it."""
        edges = self._asked(lambda reader: reader.edges(shelved=False))
        chunks, used = self._asked(lambda reader: (reader.counts()["chunk"], reader.used_bytes())) or (0, 0)
        with self._lock:
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
                dropped_series=self._intake.dropped,
                postponed_series=self._intake.postponed,
            )
