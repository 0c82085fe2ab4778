"""The two encodings of samples on disk: a chunk (one series over some time) and a tick (all series at one moment). Pure.

Layouts begin with a version byte. Integers and floats are little-endian; what follows the head is zlib. Stale markers keep their bits.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
from poise.history.promql.series import Floats, Times

_VERSION = 1
#: Version, number of samples, first time in milliseconds.
_CHUNK = struct.Struct("<BIq")
#: Version, number of samples.
_TICK = struct.Struct("<BI")
#: Chunks are written once and read often; ticks live for an hour.
_CHUNK_LEVEL, _TICK_LEVEL = 6, 1


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
    except (struct.error, zlib.error) as error:
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
    except (struct.error, zlib.error) as error:
        raise DamagedChunk(str(error)) from None
    return np.frombuffer(body, dtype="<u4", count=count), np.frombuffer(body, dtype="<f8", offset=4 * count).astype(np.float64)
