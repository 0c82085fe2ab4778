"""The statements that read the store's file; whoever has opened it, to write too or to read only.

Knows SQLite and the tables; knows no scrape and no query.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence

from poise.history.promql.labels import Labels, labels
from poise.history.store.chunks import HEAD_BYTES, HOUR, chunk_samples
from poise.history.store.sqlite_file import reading
from poise.history.store.tables import ChunkRow, SeriesRow, StoreModel, TickRow
from sqlalchemy import BLOB, ColumnElement, Engine, Integer, cast, func, select, text, type_coerce

logger = logging.getLogger(__name__)

#: Series that one statement names; SQLite takes 32,766 parameters.
BATCH = 500

_series, _chunk, _tick = (StoreModel.metadata.tables[str(model.__tablename__)] for model in (SeriesRow, ChunkRow, TickRow))


def _reaching(start: int, end: int) -> tuple[ColumnElement[bool], ...]:
    """Conditions on chunks that reach into start … end. None reaches over an hour, so those that begin earlier than its hour need no look.

    Written so that SQLite finds them by series and start: by `shelved` or `end`, which it takes for better, it would go through those of all series.
    """
    hour = start // HOUR * HOUR
    return (type_coerce(_chunk.c.shelved, Integer) + 0 == 0, _chunk.c.start >= hour, _chunk.c.start <= end, _chunk.c.end + 0 >= start)


def _labels(written: object) -> Labels | None:
    """A series' labels as they were written, None for what is none."""
    try:
        found = json.loads(written) if isinstance(written, bytes) else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not found or not all(isinstance(value, str) for value in found.values()):
        return None
    return labels(found)


class TooMany(Exception):
    """More samples than were asked for at most."""


class Reader:
    """Reads one file. Every method raises ReadFailed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def all_series(self) -> dict[Labels, int]:
        """Every series that the file knows, with its number."""
        # As bytes: what is no text any more would fail as a whole table otherwise.
        wanted = select(_series.c.id, cast(_series.c.labels, BLOB).label("written"))
        with reading(self._engine) as connection:
            rows = connection.execute(wanted).all()
        found = {own: row.id for row in rows if (own := _labels(row.written)) is not None}
        if len(found) < len(rows):
            logger.warning("the labels of %d of %d series are damaged; these are left out", len(rows) - len(found), len(rows))
        return found

    def highest_number(self, most: int) -> int:
        """The highest number up to `most` that a row of a series or a chunk has, be its labels damaged or gone; 0 without any."""
        with reading(self._engine) as connection:
            found = [connection.execute(select(func.max(one)).where(one <= most)).scalar() for one in (_series.c.id, _chunk.c.series)]
        return max((number for number in found if isinstance(number, int)), default=0)

    def ticks(self) -> list[tuple[int, bytes]]:
        """All ticks (milliseconds, data), as they came."""
        with reading(self._engine) as connection:
            rows = connection.execute(select(_tick.c.at, _tick.c.data).order_by(_tick.c.id)).all()
        return [(row.at, row.data) for row in rows if isinstance(row.at, int) and isinstance(row.data, bytes)]

    def chunks(self, series: Sequence[int], start: int, end: int, most: int | None = None) -> dict[int, list[bytes]]:
        """The chunks of some series that reach into start … end, by number, in order of time.

        Raises:
            TooMany: they have more than `most` samples; no more of them is read then.
        """
        found: dict[int, list[bytes]] = {}
        samples = 0
        with reading(self._engine) as connection:
            for first in range(0, len(series), BATCH):
                wanted = (
                    select(_chunk.c.series, _chunk.c.data)
                    .where(_chunk.c.series.in_(series[first : first + BATCH]))
                    .where(*_reaching(start, end))
                    .order_by(_chunk.c.series, _chunk.c.start)
                )
                for row in connection.execute(wanted):
                    found.setdefault(row.series, []).append(row.data)
                    samples += chunk_samples(row.data[:HEAD_BYTES])
                    if most is not None and samples > most:
                        raise TooMany
        return found

    def edges(self, *, shelved: bool) -> tuple[int, int] | None:
        """Earliest start and latest end of the chunks that are (not) shelved; None when there are none."""
        here = _chunk.c.shelved.is_(shelved)
        with reading(self._engine) as connection:
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
        with reading(self._engine) as connection:
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
        with reading(self._engine) as connection:
            for series, head, size in connection.execute(wanted.where(_chunk.c.shelved.is_(False)).execution_options(yield_per=10_000)):
                yield series, chunk_samples(head), size

    def lives(self) -> dict[int, tuple[int, int]]:
        """Of each series that has chunks: how many, and the start of the last."""
        wanted = select(_chunk.c.series, func.count(), func.max(_chunk.c.start)).group_by(_chunk.c.series)
        with reading(self._engine) as connection:
            return {series: (count, last) for series, count, last in connection.execute(wanted)}

    def counts(self) -> Mapping[str, int]:
        """How many series, chunks and ticks there are."""
        with reading(self._engine) as connection:
            return {
                table.name: int(connection.execute(select(func.count()).select_from(table)).scalar_one())
                for table in (_series, _chunk, _tick)
            }

    def used_bytes(self) -> int:
        """Bytes of the file that hold something."""
        with reading(self._engine) as connection:
            size, pages, free = (
                int(connection.execute(text(f"PRAGMA {name}")).scalar_one()) for name in ("page_size", "page_count", "freelist_count")
            )
        return size * (pages - free)
