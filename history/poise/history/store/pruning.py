"""What goes from a store's file when it is too old or too much. Knows file and head, which it only reads: what goes from there store.py takes out,
under the lock that readers need."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from poise.history.store.chunks import HOUR
from poise.history.store.database import Database
from poise.history.store.head import Head, Record
from poise.history.store.shares import MOST_LABEL_BYTES, MOST_SERIES

logger = logging.getLogger(__name__)

#: Seconds by which the wall clock may run ahead of the monotonic one between two prunings and still be believed, and for how long nothing is
#: deleted for its age after it ran further: by a clock that is wrong everything would be too old.
_BELIEVED_JUMP = 3_600.0
_DOUBT = 86_400.0
#: Seconds between two looks at the size; a page of 16 MB of new labels every second adds 2 GB in one.
_LOOK = 60.0
#: After a pruning that could not bring the file below its limit, the next waits until it has grown by this factor, or for the hour.
_GROWN = 1.05
#: Bytes on disk for each byte of labels: the row, the index that keeps them unique, and what long ones leave empty of a page.
_LABEL_COST = 3
#: Labels may cost chunks their place only up to this part of the limit.
_LABEL_SHARE = 2
#: In a file over its limit the labels of dead series may have so small a part of it; while there is room, as much as those of the living.
_DEAD_SHARE = 8


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept: `seconds` of samples and `bytes` of file, whichever is less."""

    seconds: float = 7 * 86_400.0
    bytes: int = 2_000_000_000


class Pruning:
    """The keeping of one file to its limits. Clocks in seconds. `forget` takes series that the file has no more out of the head."""

    def __init__(
        self,
        database: Database,
        retention: Retention,
        wall: Callable[[], float],
        monotonic: Callable[[], float],
        forget: Callable[[Sequence[Record]], None],
    ) -> None:
        self._database = database
        self._forget_in_head = forget
        self._retention = retention
        self._wall = wall
        self._monotonic = monotonic
        self._pruned_at: tuple[float, float] | None = None
        self._doubted_until = float("-inf")
        self._looked_at = float("-inf")
        self._left = 0  # bytes that the last pruning left

    def is_due(self) -> bool:
        """Whether the file has grown over its limit since the last look. Raises ReadFailed."""
        now = self._monotonic()
        if now - self._looked_at < _LOOK:
            return False
        self._looked_at = now
        used = self._database.reader.used_bytes()
        return used > self._retention.bytes and used > self._left * _GROWN

    def prune(self, head: Head) -> None:
        """Old samples go, by age and by size; series without any samples go with them.

        Raises:
            ReadFailed: the disk does not give what is on it.
            WriteFailed: the disk does not take it.
        """
        wall, monotonic = self._wall(), self._monotonic()
        before, self._pruned_at = self._pruned_at, (wall, monotonic)
        if before is not None and wall - before[0] > monotonic - before[1] + _BELIEVED_JUMP:
            logger.warning("the clock was set forward; nothing is deleted for its age for a day")
            self._doubted_until = monotonic + _DOUBT
        if monotonic >= self._doubted_until:
            with self._database.writing() as writer:
                writer.forget_chunks(round((wall - self._retention.seconds) * 1000))
        self._forget_short_lived(head)
        while self._counted(head) > self._retention.bytes:
            edges = self._database.reader.edges(shelved=False)
            if edges is None:
                break
            with self._database.writing() as writer:
                if not writer.forget_chunks((edges[0] // HOUR + 1) * HOUR):
                    break
        with self._database.writing() as writer:
            living = writer.series_in_chunks()
            self._forget([record for record in _dead(head) if record.number not in living])
            writer.give_back_space()
        self._left = self._database.reader.used_bytes()

    def _counted(self, head: Head) -> int:
        """Bytes of the file; labels that take more than their part are not counted, because no chunk that goes would free them."""
        labels = _LABEL_COST * sum(record.size for record in head)
        return self._database.reader.used_bytes() - max(0, labels - self._retention.bytes // _LABEL_SHARE)

    def _forget_short_lived(self, head: Head) -> None:
        """Dead series beyond what they may take, with their samples: the shortest-lived first, then the earliest.

        A label that changes all the time makes series of a few samples, whose labels are most of what they take, on disk and in memory.
        """
        dead = _dead(head)
        over = self._database.reader.used_bytes() > self._retention.bytes
        most = self._retention.bytes // _DEAD_SHARE if over else MOST_LABEL_BYTES
        bytes_left, left = sum(record.size for record in dead), len(dead)
        if bytes_left <= most and left <= MOST_SERIES:
            return
        lives = self._database.reader.lives()
        gone = []
        for record in sorted(dead, key=lambda one: lives.get(one.number or 0, (0, 0))):
            if bytes_left <= most and left <= MOST_SERIES:
                break
            gone.append(record)
            bytes_left -= record.size
            left -= 1
        logger.warning("%s: %d series that lived shortest are forgotten, because labels take too much room", self._database.path, len(gone))
        self._forget(gone)

    def _forget(self, gone: list[Record]) -> None:
        with self._database.writing() as writer:
            writer.forget_series([record.number for record in gone if record.number is not None])
        self._forget_in_head(gone)


def _dead(head: Head) -> list[Record]:
    return [record for record in head if not record.times]
