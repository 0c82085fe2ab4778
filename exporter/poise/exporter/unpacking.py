"""Unpacks the body of an HTTP answer piece by piece, so that neither a bomb nor a deadline can be passed by much. Knows no request."""

from __future__ import annotations

import zlib
from collections.abc import Callable

#: How zlib is told of each encoding that is understood (zlib.h, windowBits): 16 + 15 a gzip header, 15 a zlib one.
_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
ENCODINGS = frozenset(_WINDOW_BITS)
_PIECE = 64 * 1024


class UnpackError(ValueError):
    """A body that cannot be unpacked; the message says why."""


def unpacked(body: bytes | bytearray, encoding: str, size_limit: int, check: Callable[[], object] = lambda: None) -> bytearray:
    """A body in one of ENCODINGS unpacked, at most `size_limit` bytes; `check` is called between pieces and may raise.

    Raises:
        UnpackError: broken, cut off, or larger than the limit.
    """
    unpacker = zlib.decompressobj(_WINDOW_BITS[encoding])
    result = bytearray()
    rest = bytes(body)
    try:
        while rest and not unpacker.eof:
            check()
            result += unpacker.decompress(rest, _PIECE)
            rest = unpacker.unconsumed_tail
            if len(result) > size_limit:
                raise UnpackError(f"the answer has more than {size_limit} bytes once it is unpacked")
    except zlib.error:
        raise UnpackError("the answer is compressed and broken") from None
    if not unpacker.eof:
        raise UnpackError("the answer is cut off")
    return result
