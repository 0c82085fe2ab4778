"""Series out of a head and a file together: what is older than the head's floor comes from chunks, the rest from memory.

Knows no lock: whoever shares the head takes `newer` under one, and reads the file without.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from poise.history.promql.labels import Labels
from poise.history.promql.limits import MOST_SAMPLES, too_many_samples
from poise.history.promql.nodes import Matcher
from poise.history.promql.series import Floats, StoredSeries, Times
from poise.history.store.chunks import DamagedChunk, decode_chunk
from poise.history.store.head import Head, Record, stored
from poise.history.store.reader import Reader, TooMany

logger = logging.getLogger(__name__)

#: Chunks that are kept decoded: those of two panels of 24 h for 16 cards each, 12 KB a chunk at 5 s. A panel asks for the same ones again and again,
#: and unpacking them is more than half of a query.
DECODED_CHUNKS = 1_000
#: Samples that a series has in memory at most: one a second for three hours. Of series that are too few for the limit none is counted, as rules ask
#: for few and often.
_LONGEST = 11_000


@dataclass(frozen=True, slots=True)
class Newer:
    """What a head has for a question: the records that fit, their samples from start to end, and the time from which it has everything."""

    records: Sequence[Record]
    samples: Sequence[tuple[Times, Floats]]
    floor: int


def newer(head: Head, matchers: Sequence[Matcher], start: int, end: int, most: int = MOST_SAMPLES) -> Newer:
    """The head's part. Raises ExecutionError for more than `most` samples, before one is copied."""
    records = head.matching(matchers)
    if len(records) > most // _LONGEST and sum(record.count(start, end) for record in records) > most:
        raise too_many_samples()
    return Newer(records, [record.between(start, end) for record in records], head.floor)


def with_older(part: Newer, reader: Reader | None, start: int, end: int, most: int = MOST_SAMPLES) -> list[StoredSeries]:
    """The whole answer.

    Raises:
        ReadFailed: the disk does not give what is on it.
        ExecutionError: chunks have more than `most` samples; they are not unpacked then.
    """
    if reader is None or start >= part.floor:
        return [
            StoredSeries(record.labels, times, values)
            for record, (times, values) in zip(part.records, part.samples, strict=True)
            if len(times)
        ]
    older: Mapping[int, list[bytes]]
    numbers = [record.number for record in part.records if record.number is not None]
    try:
        older = reader.chunks(numbers, start, min(end, part.floor - 1), most)
    except TooMany:
        raise too_many_samples() from None
    found = []
    for record, samples in zip(part.records, part.samples, strict=True):
        parts = [_clipped(data, start, min(end, part.floor - 1)) for data in older.get(record.number or 0, ())]
        one = stored(record, [*parts, samples])
        if one is not None:
            found.append(one)
    return found


@dataclass(frozen=True, slots=True)
class Known:
    """The records that fit, whether each has samples in memory from start to end, and the time from which the head has everything."""

    records: Sequence[Record]
    here: Sequence[bool]
    floor: int


def known(head: Head, matchers: Sequence[Matcher], start: int, end: int) -> Known:
    """The head's part of a question for labels."""
    records = head.matching(matchers)
    return Known(records, [record.reaches(start, end) for record in records], head.floor)


def labels_of(part: Known, reader: Reader | None, start: int, end: int) -> list[Labels]:
    """The labels of the series that have samples from start to end (of those on disk: a chunk that reaches into it). Raises ReadFailed."""
    present: set[int] = set()
    if reader is not None and start < part.floor:
        rest = [record.number for record, here in zip(part.records, part.here, strict=True) if not here and record.number is not None]
        present = reader.present(rest, start, min(end, part.floor - 1))
    return [record.labels for record, here in zip(part.records, part.here, strict=True) if here or record.number in present]


@lru_cache(maxsize=DECODED_CHUNKS)
def _decoded(data: bytes) -> tuple[Times, Floats]:
    """`decode_chunk`, whose answer for these bytes is always the same; nobody may write into it. A damaged one is told here, once, and empty."""
    try:
        times, values = decode_chunk(data)
    except DamagedChunk as error:
        logger.warning("a chunk is damaged and left out: %s", error)
        times, values = np.empty(0, dtype=np.int64), np.empty(0)
    times.flags.writeable = values.flags.writeable = False
    return times, values


def _clipped(data: bytes, start: int, end: int) -> tuple[Times, Floats]:
    times, values = _decoded(data)
    first, last = np.searchsorted(times, (start, end + 1))
    return times[first:last], values[first:last]
