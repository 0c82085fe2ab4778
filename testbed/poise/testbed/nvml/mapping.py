"""The open state file: mapped for good, written by one writer at a time.

Owns the lock between writers and the card's sequence, by which readers in other processes notice a change (csrc/state.h).
Knows nothing of what is written.
"""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from poise.testbed.nvml.state import CardStruct, StateStruct, map_state, read_header


class StateFile:
    """A mapped state. Threads and processes may write through several of these at once; a forked child opens its own, since
    it would share its parent's lock."""

    def __init__(self, path: Path) -> None:
        """Raises TestbedError when there is no state of this version at `path`."""
        read_header(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self._state = map_state(self._descriptor)
        self._threads = threading.RLock()
        self._depth = 0
        self._written: set[int] = set()

    @property
    def state(self) -> StateStruct:
        return self._state

    @contextmanager
    def writing(self) -> Iterator[StateStruct]:
        """Keeps every other writer out. flock goes with the open file: it excludes other processes and other StateFiles of
        this one, the thread lock does the rest."""
        with self._threads:
            if self._depth == 0:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            self._depth += 1
            try:
                yield self._state
            finally:
                self._depth -= 1
                if self._depth == 0:
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    @contextmanager
    def writing_card(self, position: int) -> Iterator[CardStruct]:
        """What is written inside is seen by readers all at once. An odd sequence says "being written"; one that a killed
        writer left odd is put right by the next."""
        with self.writing() as state:
            card: CardStruct = state.cards[position]
            if position in self._written:  # part of a change that is under way
                yield card
                return
            self._written.add(position)
            card.sequence |= 1
            try:
                yield card
            finally:
                card.sequence += 1
                self._written.discard(position)

    def close(self) -> None:
        """Gives the file back; the mapping goes with the last object that looks into it."""
        self._close()
