"""From ticks to chunks: what the head has of full hours is packed for good. Knows file and head; when it is time is store.py's to say."""

from __future__ import annotations

from collections.abc import Mapping

from poise.history.promql.labels import Labels
from poise.history.store.chunks import Chunk, by_hour
from poise.history.store.database import Database
from poise.history.store.head import Head, Record


def flush(database: Database, head: Head, flushed: int, upto: int) -> Mapping[Labels, int]:
    """Samples of flushed ≤ time < upto (milliseconds) go to chunks, and the ticks before `upto` away; the numbers that series got by that.

    Raises:
        ReadFailed: the disk does not give what is on it.
        WriteFailed: the disk does not take it; nothing has changed.
    """
    earlier = Head(0)
    if head.floor > flushed:
        # The disk was away for longer than memory holds: what it had taken until then is in its ticks alone.
        earlier.restore(database.reader)
    records = [record for record in head if record.times and record.times[0] < upto and record.times[-1] >= flushed]
    with database.writing() as writer:
        numbers = writer.add_series(record.labels for record in records if record.number is None)
        writer.put_chunks(chunk for record in earlier for chunk in packed(record, {}, flushed, min(head.floor, upto) - 1))
        writer.put_chunks(chunk for record in records for chunk in packed(record, numbers, flushed, upto - 1))
        writer.forget_ticks(upto)
    return numbers


def packed(record: Record, numbers: Mapping[Labels, int], start: int, end: int) -> list[Chunk]:
    """A series' samples of start ≤ time ≤ end; `numbers` has that of a record without one."""
    number = numbers.get(record.labels) if record.number is None else record.number
    assert number is not None
    return by_hour(number, *record.between(start, end))
