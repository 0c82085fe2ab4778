"""The store's file as its one process has it: its schema, and the statements that write. Those that read are in reader.py, how a file is opened
and kept alone is in sqlite_file.py.

Knows SQLite and the tables; knows no scrape and no query. Not thread-safe by itself: store.py holds the lock.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from poise.history.promql.labels import Labels
from poise.history.store.chunks import Chunk, DamagedChunk, decode_chunk, encode_chunk
from poise.history.store.reader import Reader
from poise.history.store.sqlite_file import SqliteFile, WriteFailed
from poise.history.store.tables import ChunkRow, SeriesRow, StoreModel, TickRow
from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

#: What messages tell a person whose file cannot be used.
_WAY_OUT = "choose another place with --history PATH"
#: Series that one statement names; SQLite takes 32,766 parameters.
_BATCH = 500
#: Chunks that one call writes: 2 MB of an hour at 5 s.
_CHUNKS = 1_000
#: The largest number of a series, because ticks have 32 bits for each (chunks.py).
LARGEST_NUMBER = 2**32 - 1

_series, _chunk, _tick = (StoreModel.metadata.tables[str(model.__tablename__)] for model in (SeriesRow, ChunkRow, TickRow))
#: Made once: each rule that gives something writes a tick, and making the statement takes as long as carrying it out.
_ADD_TICK = insert(_tick)
_ADD_SERIES = insert(_series)
_PUT_CHUNK = insert(_chunk).prefix_with("OR REPLACE")
_as_json = json.JSONEncoder(ensure_ascii=False).encode


class Database:
    """One file, used by this process alone."""

    def __init__(self, path: Path) -> None:
        """Opens or makes the file.

        Raises:
            StoreError: another process has it, a newer Poise made it, or it cannot be opened.
        """
        self.path = path
        self._file = SqliteFile(path, MIGRATIONS, _WAY_OUT)
        self._engine = self._file.engine
        self.reader = Reader(self._engine)
        self._next_number = 1

    def close(self) -> None:
        """Gives the file free."""
        self._file.close()

    def set_aside(self) -> None:
        """A new, empty file after a failure that says `lost`. Raises StoreError."""
        self._file.set_aside()
        # Else they go on where they were: a query that is on its way may still ask for series of the old file by their numbers.
        if self._next_number > LARGEST_NUMBER // 2:
            self._next_number = 1

    def number_after(self, used: int) -> None:
        """New series get numbers after this one, and after all that the file's tables name. Raises ReadFailed."""
        self._next_number = max(self._next_number, used + 1, self.reader.highest_number(LARGEST_NUMBER) + 1)

    # ----------------------------------------------------------------------------------------------------------- writing
    @contextlib.contextmanager
    def writing(self) -> Iterator[Writer]:
        """One transaction.

        Raises:
            WriteFailed: the disk does not take it; nothing of the transaction stays.
        """
        with self._file.writing() as connection:
            writer = Writer(connection, self._next_number)
            yield writer
        self._next_number = writer.next_number  # only now: what did not come to disk has used none


class Writer:
    """What can be written within one transaction. `next_number`: that of the next series."""

    def __init__(self, connection: Connection, next_number: int) -> None:
        self._connection = connection
        self.next_number = next_number

    def add_series(self, new: Iterable[Labels]) -> dict[Labels, int]:
        """Numbers for series that the file does not know yet, written by one statement: SQLite is asked for none.

        Raises:
            WriteFailed: there are no numbers left in this file.
        """
        numbers = {own: number for number, own in enumerate(new, self.next_number)}
        if not numbers:
            return numbers
        following = self.next_number + len(numbers)
        if following > LARGEST_NUMBER + 1:
            raise WriteFailed("the file has no numbers left for new series", lost=True)
        self._connection.execute(_ADD_SERIES, [{"id": number, "labels": _as_json(dict(own))} for own, number in numbers.items()])
        self.next_number = following
        return numbers

    def add_tick(self, at: int, data: bytes) -> None:
        """A scrape's samples."""
        self._connection.execute(_ADD_TICK, {"at": at, "data": data})

    def put_chunks(self, chunks: Iterable[Chunk], *, shelved: bool = False) -> None:
        """Chunks, each in place of one of the same series and start; many at a time, for a statement costs more than what it writes."""
        rows = ({"series": c.series, "start": c.start, "end": c.end, "shelved": shelved, "data": c.data} for c in chunks)
        while batch := list(itertools.islice(rows, _CHUNKS)):
            self._connection.execute(_PUT_CHUNK, batch)

    def forget_ticks(self, before: int | None) -> None:
        """Ticks before a time (milliseconds), or all."""
        statement = delete(_tick)
        self._connection.execute(statement if before is None else statement.where(_tick.c.at < before))

    def forget_chunks(self, before: int) -> int:
        """Chunks that end before a time; how many. What is left without any is forgotten by `forget_series`."""
        old = _chunk.c.shelved.in_((False, True)) & (_chunk.c.end < before)  # both, named: the index begins with it
        return int(self._connection.execute(delete(_chunk).where(old)).rowcount)

    def series_in_chunks(self) -> set[int]:
        """The numbers of all series that have chunks."""
        return {int(row[0]) for row in self._connection.execute(select(_chunk.c.series).distinct())}

    def forget_series(self, numbers: Sequence[int]) -> None:
        """Series with all their chunks."""
        for first in range(0, len(numbers), _BATCH):
            batch = numbers[first : first + _BATCH]
            self._connection.execute(delete(_chunk).where(_chunk.c.series.in_(batch)))
            self._connection.execute(delete(_series).where(_series.c.id.in_(batch)))

    def give_back_space(self) -> None:
        """Free pages go back to the disk."""
        # Each step of this pragma frees a page, and it has no columns, so that SQLAlchemy would take only the first step.
        cursor = self._connection.connection.cursor()
        try:
            cursor.execute("PRAGMA incremental_vacuum")
            cursor.fetchall()
        finally:
            cursor.close()

    # ------------------------------------------------------------------------------------------------------------- shelf
    def shelve_after(self, at: int) -> None:
        """Samples after a time go to the shelf; chunks that reach over it are cut there."""
        across = select(_chunk).where(_chunk.c.shelved.is_(False), _chunk.c.start <= at, _chunk.c.end > at)
        for row in self._connection.execute(across).all():
            try:
                times, values = decode_chunk(row.data)
            except DamagedChunk:
                continue
            cut = int(times.searchsorted(at, side="right"))
            here = (_chunk.c.series == row.series) & (_chunk.c.start == row.start) & _chunk.c.shelved.is_(False)
            self._connection.execute(delete(_chunk).where(here))
            self.put_chunks([Chunk(row.series, row.start, int(times[cut - 1]), encode_chunk(times[:cut], values[:cut]))])
            later = Chunk(row.series, int(times[cut]), row.end, encode_chunk(times[cut:], values[cut:]))
            self.put_chunks([later], shelved=True)
        ahead = (_chunk.c.start > at) & _chunk.c.shelved.is_(False)
        try:
            with self._connection.begin_nested():
                self._connection.execute(update(_chunk).where(ahead).values(shelved=True))
        except IntegrityError:
            # The clock was set back before, to the same place: what lies on the shelf under the same key is older and gives way.
            rows = self._connection.execute(select(_chunk).where(ahead)).all()
            self._connection.execute(delete(_chunk).where(ahead))
            self.put_chunks([Chunk(r.series, r.start, r.end, r.data) for r in rows], shelved=True)

    def unshelve(self) -> None:
        """What is on the shelf becomes history again."""
        rows = self._connection.execute(select(_chunk).where(_chunk.c.shelved.is_(True))).all()
        self.clear_shelf()
        self.put_chunks([Chunk(r.series, r.start, r.end, r.data) for r in rows])

    def clear_shelf(self) -> None:
        """What is on the shelf is forgotten."""
        self._connection.execute(delete(_chunk).where(_chunk.c.shelved.is_(True)))


def _create(connection: Connection) -> None:
    StoreModel.metadata.create_all(connection)


#: Step n brings a file of schema n to n + 1.
MIGRATIONS = (_create,)
