"""The two encodings of samples on disk: a chunk (one series over some time) and a tick (all series at one moment). Pure.

Layouts begin with a version byte. Integers and floats are little-endian; what follows the head is zlib. Stale markers keep their bits.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np
from poise.history.promql.series import Floats, Times

_VERSION = 1
#: Version, number of samples, first time in milliseconds.
_CHUNK = struct.Struct("<BIq")
HEAD_BYTES = _CHUNK.size
#: Version, number of samples.
_TICK = struct.Struct("<BI")
#: Chunks are written once and read often; ticks live for an hour.
_CHUNK_LEVEL, _TICK_LEVEL = 6, 1


HOUR = 3_600_000


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk as it goes to a file: number of the series, edges in milliseconds, encoded samples."""

    series: int
    start: int
    end: int
    data: bytes


class DamagedChunk(ValueError):
    """Bytes that are no chunk of a version that this one knows."""


def encode_chunk(times: Times, values: Floats) -> bytes:
    """Rising times (milliseconds, at most 24 days apart) with their values."""
    deltas = np.diff(times).astype("<i4")
    body = deltas.tobytes() + values.astype("<f8", copy=False).tobytes()
    return _CHUNK.pack(_VERSION, len(times), int(times[0])) + zlib.compress(body, _CHUNK_LEVEL)


def decode_chunk(data: bytes) -> tuple[Times, Floats]:
    """The samples of a chunk.

    Raises:
        DamagedChunk: these bytes are none.
    """
    try:
        version, count, first = _CHUNK.unpack_from(data)
        body = zlib.decompress(data[_CHUNK.size :])
        if version != _VERSION or count < 1 or len(body) != 4 * (count - 1) + 8 * count:
            raise DamagedChunk(f"a chunk of version {version} with {count} samples in {len(body)} bytes")
    except (struct.error, zlib.error, TypeError) as error:
        raise DamagedChunk(str(error)) from None
    deltas = np.frombuffer(body, dtype="<i4", count=count - 1)
    times = first + np.concatenate(([0], np.cumsum(deltas, dtype=np.int64)))
    return times, np.frombuffer(body, dtype="<f8", offset=4 * (count - 1)).astype(np.float64)


def encode_tick(identifiers: np.ndarray, values: Floats) -> bytes:
    """Numbers of series with their values at one moment."""
    body = identifiers.astype("<u4", copy=False).tobytes() + values.astype("<f8", copy=False).tobytes()
    return _TICK.pack(_VERSION, len(values)) + zlib.compress(body, _TICK_LEVEL)


def decode_tick(data: bytes) -> tuple[np.ndarray, Floats]:
    """The samples of a tick.

    Raises:
        DamagedChunk: these bytes are none.
    """
    try:
        version, count = _TICK.unpack_from(data)
        body = zlib.decompress(data[_TICK.size :])
        if version != _VERSION or len(body) != 12 * count:
            raise DamagedChunk(f"a tick of version {version} with {count} samples in {len(body)} bytes")
    except (struct.error, zlib.error, TypeError) as error:
        raise DamagedChunk(str(error)) from None
    return np.frombuffer(body, dtype="<u4", count=count), np.frombuffer(body, dtype="<f8", offset=4 * count).astype(np.float64)


def by_hour(series: int, times: Times, values: Floats) -> list[Chunk]:
    """Samples of one series as chunks, one for each hour."""
    edges = np.flatnonzero(np.diff(times // HOUR)) + 1
    return [
        Chunk(series, int(part[0]), int(part[-1]), encode_chunk(part, own))
        for part, own in zip(np.split(times, edges), np.split(values, edges), strict=True)
        if len(part)
    ]


def chunk_samples(head: bytes) -> int:
    """How many samples a chunk has, from its first HEAD_BYTES bytes; 0 for bytes that are no chunk."""
    return int(_CHUNK.unpack(head)[1]) if len(head) == HEAD_BYTES else 0
