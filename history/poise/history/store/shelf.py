"""The shelf: chunks whose times lay ahead when the clock was set back, until it shows which clock was wrong.

Knows the file and the head; when the clock moved is store.py's to notice.
"""

from __future__ import annotations

import logging

from poise.history.store.database import Database
from poise.history.store.flushing import packed
from poise.history.store.head import Head

logger = logging.getLogger(__name__)


class Shelf:
    """What lies aside in one file. `edges`: earliest and latest time on it in milliseconds, None while it is empty."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.edges = database.reader.edges(shelved=True)

    def put(self, head: Head, flushed: int, at: int) -> None:
        """Everything later than `at` is put aside; what came before and is in no chunk yet becomes one. `flushed`: samples before are in chunks.

        Raises:
            WriteFailed: the disk does not take it.
        """
        with self._database.writing() as writer:
            writer.shelve_after(at)
            across = [record for record in head if record.number is not None and record.times and record.times[-1] > at]
            ahead = max(at + 1, flushed)  # what is in chunks is shelved with them
            writer.put_chunks((chunk for one in across for chunk in packed(one, {}, ahead, one.times[-1])), shelved=True)
            # What came before the step has its ticks taken away below, and must not be lost with them.
            writer.put_chunks(chunk for one in across for chunk in packed(one, {}, flushed, at))
            writer.forget_ticks(None)

    def look_again(self) -> None:
        """Reads from the file what lies aside. Raises ReadFailed."""
        self.edges = self._database.reader.edges(shelved=True)

    def is_past(self, at: int) -> bool:
        """Whether time has passed everything on the shelf, so that it can be decided about."""
        return self.edges is not None and at > self.edges[1]

    def decide(self) -> None:
        """If samples were stored at its times meanwhile the clock is right now and the shelf is forgotten, else it comes back.

        Raises:
            ReadFailed: the disk does not give what is on it.
            WriteFailed: the disk does not take it.
        """
        assert self.edges is not None
        start, end = self.edges
        stored = self._database.reader.edges(shelved=False)
        taken = stored is not None and stored[1] >= start
        with self._database.writing() as writer:
            if taken:
                writer.clear_shelf()
            else:
                writer.unshelve()
        logger.info("samples from %d to %d were put aside; they are %s", start, end, "forgotten" if taken else "back")
        self.edges = None
