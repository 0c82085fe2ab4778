"""What becomes of a scrape's samples before they are kept: which series find room, which must wait for the next scrape, and which end.

Owns what each target brought last and what was told of it. Knows the head, no disk, no time and no lock: store.py holds it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from poise.history.promql.labels import Labels
from poise.history.promql.series import STALE
from poise.history.store.head import Head, Record, label_bytes
from poise.history.store.shares import Shares

logger = logging.getLogger(__name__)

#: Series that no page had before and that one scrape may bring; the rest comes with the next ones. A node of 8 cards and 4 engines has under 4,000
#: (text_format.py) and is whole at once; so many take 0.15 s, for which scrapes of other targets wait.
MOST_NEW_SERIES = 5_000


class Intake:
    """`dropped` and `postponed` count samples of new series for which there was no room, and of those that have to wait."""

    def __init__(self, shares: Shares, most_new: int) -> None:
        self.shares = shares
        self.dropped = self.postponed = 0
        self._most_new = most_new
        self._present: dict[str, set[Labels]] = {}  # what the last scrape of each target brought
        self._full: set[str] = set()  # targets of which it was told that they have too many series
        self._slowed: set[str] = set()  # those whose last scrape brought more new series than it may

    def rows(self, head: Head, target: str, samples: Mapping[Labels, float], targets: int) -> list[tuple[Record, float]]:
        """Samples of series that are known or find room, and the ends of those that the scrape lacks; `targets` is how many there are."""
        rows: list[tuple[Record, float]] = []
        new = postponed = 0
        for own, value in samples.items():
            record = head.get(own)
            if record is None and new >= self._most_new:
                postponed += 1
                continue
            if record is None or not record.times:
                size = label_bytes(own) if record is None else record.size
                if not self.shares.admits(target, size, targets):
                    self._drop(target)
                    continue
                new += record is None
                record = record or head.add(own, size=size)
            self.shares.claim(record, target)
            rows.append((record, value))
        self._postpone(target, postponed)
        now_present = {record.labels for record, _ in rows}
        for own in self._present.get(target, set()) - now_present:
            gone = head.get(own)
            if gone is not None:
                rows.append((gone, STALE))
        self._present[target] = now_present
        return rows

    def forget(self, target: str) -> None:
        """A target that is no more."""
        self._present.pop(target, None)
        self._full.discard(target)
        self._slowed.discard(target)

    def recount(self, head: Head) -> None:
        """After samples went from memory."""
        self.shares.recount(head)

    def has_room_again(self) -> None:
        """After a time: who has too many series still is told again."""
        self._full.clear()

    def _drop(self, target: str) -> None:
        if target not in self._full:
            logger.warning("target %s has more series, or more text in their labels, than fit: new ones of it are not kept for now", target)
            self._full.add(target)
        self.dropped += 1

    def _postpone(self, target: str, count: int) -> None:
        self.postponed += count
        if count and target not in self._slowed:
            logger.warning("target %s has %d new series more than one scrape may bring; they come with the next ones", target, count)
        (self._slowed.add if count else self._slowed.discard)(target)
