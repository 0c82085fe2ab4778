"""How many series each target may have in memory, so that one whose labels change all the time takes neither memory nor the room of others.

Counts the *living*: series with samples in memory, those of the last hours. Knows no disk and no lock: store.py holds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from poise.history.store.head import Record

#: Living series of all targets, and the bytes of their labels: 320 for each, which is more than our longest usual ones have.
MOST_SERIES = 200_000
MOST_LABEL_BYTES = 64_000_000
#: On disk labels take twice their bytes (row and index): of a small file they may take a quarter, but a node of 8 cards must fit.
_FILE_SHARE = 8
_LEAST_LABEL_BYTES = 8_000_000
#: One target never has more than a half of everything, so that there always is a rest for those that come later.
_LARGEST = 2


def label_bytes_for(file_bytes: int) -> int:
    """Bytes of living labels beside a file that may have so many."""
    return max(_LEAST_LABEL_BYTES, min(MOST_LABEL_BYTES, file_bytes // _FILE_SHARE))


class Shares:
    """Who has how much. A target always gets its fair part (everything ÷ targets); beyond it what is free, up to a half."""

    def __init__(self, most_series: int, most_bytes: int) -> None:
        self._most = (most_series, most_bytes)
        self._series: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._total = (0, 0)

    def admits(self, target: str, size: int, targets: int) -> bool:
        """Whether a target, one of so many, may have one more living series, whose labels take `size` bytes."""
        most_series, most_bytes = self._most
        series, label_bytes = self._series[target] + 1, self._bytes[target] + size
        if series <= most_series // max(targets, 1) and label_bytes <= most_bytes // max(targets, 1):
            return True
        free = self._total[0] < most_series and self._total[1] + size <= most_bytes
        return free and series <= most_series // _LARGEST and label_bytes <= most_bytes // _LARGEST

    def claim(self, record: Record, target: str) -> None:
        """A target brings a sample of a series, which counts as its own from now on."""
        if record.times:
            if record.target == target:
                return
            self._count(record, -1)
        record.target = target
        self._count(record, 1)

    def recount(self, records: Iterable[Record]) -> None:
        """After samples went from memory."""
        self._series.clear()
        self._bytes.clear()
        self._total = (0, 0)
        for record in records:
            if record.times:
                self._count(record, 1)

    def _count(self, record: Record, sign: int) -> None:
        self._series[record.target] += sign
        self._bytes[record.target] += sign * record.size
        self._total = (self._total[0] + sign, self._total[1] + sign * record.size)
