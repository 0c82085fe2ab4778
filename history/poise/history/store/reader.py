"""The statements that read the store's file; whoever has opened it, to write too or to read only.

Knows SQLite and the tables; knows no scrape and no query.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence

from poise.history.promql.labels import Labels, labels
from poise.history.store.chunks import HEAD_BYTES, HOUR, chunk_samples
from poise.history.store.tables import ChunkRow, SeriesRow, StoreModel, TickRow
from sqlalchemy import ColumnElement, Connection, Engine, func, select, text
from sqlalchemy.exc import DatabaseError

#: Series that one statement names; SQLite takes 32,766 parameters.
BATCH = 500

_series, _chunk, _tick = (StoreModel.metadata.tables[str(model.__tablename__)] for model in (SeriesRow, ChunkRow, TickRow))


class ReadFailed(Exception):
    """The disk does not give what is on it; the message says why."""


def _reaching(start: int, end: int) -> tuple[ColumnElement[bool], ...]:
    """Conditions on chunks that reach into start … end. None reaches over an hour, so those that begin earlier than its hour need no look.

    Written so that SQLite finds them by series and start: by `end`, which it takes for better, it would go through those of all series.
    """
    hour = start // HOUR * HOUR
    return (_chunk.c.shelved.is_(False), _chunk.c.start >= hour, _chunk.c.start <= end, _chunk.c.end + 0 >= start)


class Reader:
    """Reads one file. Every method raises ReadFailed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection
        except (DatabaseError, OSError) as error:
            raise ReadFailed(str(error.orig if isinstance(error, DatabaseError) else error)) from None

    def all_series(self) -> dict[Labels, int]:
        """Every series that the file knows, with its number."""
        with self._reading() as connection:
            return {labels(json.loads(row.labels)): row.id for row in connection.execute(select(_series.c.id, _series.c.labels))}

    def ticks(self) -> list[tuple[int, bytes]]:
        """All ticks (milliseconds, data), as they came."""
        with self._reading() as connection:
            return [(row.at, row.data) for row in connection.execute(select(_tick.c.at, _tick.c.data).order_by(_tick.c.id))]

    def chunks(self, series: Sequence[int], start: int, end: int) -> dict[int, list[bytes]]:
        """The chunks of some series that reach into start … end, by number, in order of time."""
        found: dict[int, list[bytes]] = {}
        with self._reading() as connection:
            for first in range(0, len(series), BATCH):
                wanted = (
                    select(_chunk.c.series, _chunk.c.data)
                    .where(_chunk.c.series.in_(series[first : first + BATCH]))
                    .where(*_reaching(start, end))
                    .order_by(_chunk.c.series, _chunk.c.start)
                )
                for row in connection.execute(wanted):
                    found.setdefault(row.series, []).append(row.data)
        return found

    def edges(self, *, shelved: bool) -> tuple[int, int] | None:
        """Earliest start and latest end of the chunks that are (not) shelved; None when there are none."""
        here = _chunk.c.shelved.is_(shelved)
        with self._reading() as connection:
            first = connection.execute(select(_chunk.c.end).where(here).order_by(_chunk.c.end).limit(1)).scalar()
            if first is None:
                return None
            # No chunk reaches over an hour, so the earliest start lies in the hour of the earliest end. Asked like this it takes a look at one hour.
            oldest = here & (_chunk.c.end < (first // HOUR + 1) * HOUR)
            start = connection.execute(select(func.min(_chunk.c.start)).where(oldest)).scalar_one()
            end = connection.execute(select(_chunk.c.end).where(here).order_by(_chunk.c.end.desc()).limit(1)).scalar_one()
        return int(start), int(end)

    def present(self, series: Sequence[int], start: int, end: int) -> set[int]:
        """Which of some series have chunks that reach into start … end."""
        found: set[int] = set()
        with self._reading() as connection:
            for first in range(0, len(series), BATCH):
                wanted = (
                    select(_chunk.c.series)
                    .distinct()
                    .where(_chunk.c.series.in_(series[first : first + BATCH]))
                    .where(*_reaching(start, end))
                )
                found.update(int(row[0]) for row in connection.execute(wanted))
        return found

    def sizes(self) -> Iterator[tuple[int, int, int]]:
        """Of each chunk that is not shelved: its series, its samples, its bytes."""
        wanted = select(_chunk.c.series, func.substr(_chunk.c.data, 1, HEAD_BYTES), func.length(_chunk.c.data))
        with self._reading() as connection:
            for series, head, size in connection.execute(wanted.where(_chunk.c.shelved.is_(False)).execution_options(yield_per=10_000)):
                yield series, chunk_samples(head), size

    def counts(self) -> Mapping[str, int]:
        """How many series, chunks and ticks there are."""
        with self._reading() as connection:
            return {
                table.name: int(connection.execute(select(func.count()).select_from(table)).scalar_one())
                for table in (_series, _chunk, _tick)
            }

    def used_bytes(self) -> int:
        """Bytes of the file that hold something."""
        with self._reading() as connection:
            size, pages, free = (
                int(connection.execute(text(f"PRAGMA {name}")).scalar_one()) for name in ("page_size", "page_count", "freelist_count")
            )
        return size * (pages - free)
