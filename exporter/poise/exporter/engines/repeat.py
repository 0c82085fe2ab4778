"""Does something again and again in a thread of its own, spread a little in time, until it is told to stop. Knows nothing of what it does."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

#: Share of a pause by which turns are spread, so that what many watchers ask is not all asked at once.
JITTER = 0.1


class Repeater:
    """Calls `turn` in a daemon thread; it returns the pause until its next call, in seconds, and must not raise."""

    def __init__(self, name: str, turn: Callable[[], float], clock: Callable[[], float]) -> None:
        self._turn = turn
        self._clock = clock
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def stopped(self) -> bool:
        """Whether it was told to stop."""
        return self._stopped.is_set()

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Starts the thread. Raises RuntimeError when the system has no thread left."""
        self._thread.start()

    def stop(self) -> None:
        """Ends it after the turn that runs; does not wait."""
        self._stopped.set()

    def join(self, timeout: float) -> None:
        """Waits at most `timeout` seconds for the thread to end."""
        self._thread.join(timeout)

    def _run(self) -> None:
        due = self._clock()
        while not self._stopped.is_set():
            due += self._turn() * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - spreads load, hides nothing
            due = max(due, self._clock())
            self._stopped.wait(due - self._clock())
