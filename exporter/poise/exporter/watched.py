"""Reads something slow again and again in a thread of its own, so that nobody waits for it: a device's firmware or a network file system may hang.

Knows nothing of what is read.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Watched(Generic[T]):
    """What was read last; `unread` before the first time, and when reading fails. `what` names it in the log, e.g. "the RDMA ports"."""

    def __init__(self, read: Callable[[], T], unread: T, *, interval: float, name: str, what: str) -> None:
        """`interval` in seconds; `name` is the thread's."""
        self._read = read
        self._unread = unread
        self._latest = unread
        self._interval = interval
        self._what = what
        self._leave = threading.Event()
        self._broken = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts reading."""
        self._thread.start()

    def stop(self) -> None:
        """Tells the thread to leave; waits for nothing."""
        self._leave.set()

    def latest(self) -> T:
        """What was read last."""
        return self._latest

    def _run(self) -> None:
        while not self._leave.is_set():
            try:
                self._latest = self._read()
            except Exception:  # a strange file must not end the watch: its content is unknown until it reads again
                self._latest = self._unread
                if not self._broken:
                    self._broken = True
                    _log.exception("%s cannot be read", self._what)
            self._leave.wait(self._interval)
