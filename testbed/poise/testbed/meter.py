"""Measures one process through /proc at small cost: time that its threads ran and waited for a core, resident bytes.

Owns open files under /proc/PID and a second of history. The arithmetic is in mirroring.py.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

from poise.testbed import mirroring
from poise.testbed.mirroring import ThreadTimes
from poise.testbed.processes import PROC, ProcessIdentity

# NVML's utilization is a mean over "between 1 second and 1/6 second" (nvml.h, nvmlUtilization_t).
WINDOW_SECONDS = 1.0
# vLLM's workers make their fifty threads at start; new ones are rare.
LIST_SECONDS = 1.0
LONGEST_LINE = 256


class Meter:
    """One process. A reading of a file that is held open costs a fifth of opening it anew each time."""

    def __init__(self, identity: ProcessIdentity, proc: Path = PROC) -> None:
        self.identity = identity
        self._folder = proc / str(identity.pid)
        self._threads: dict[int, int] = {}  # thread id → descriptor of its schedstat
        self._memory: int | None = None
        self._history: deque[tuple[float, dict[int, ThreadTimes]]] = deque()
        self._listed = float("-inf")

    def measure(self, now: float) -> tuple[float, int]:
        """Busy share 0..1 over the last second and resident bytes, at `now` (monotonic seconds). The first time knows no
        share, and an ended process has 0 of both."""
        if now - self._listed >= LIST_SECONDS:
            self._list()
            self._listed = now
        times = self._read_threads()
        self._history.append((now, times))
        while len(self._history) > 2 and now - self._history[1][0] >= WINDOW_SECONDS:
            self._history.popleft()
        before, earlier = self._history[0]
        return mirroring.busy_share(earlier, times, now - before), self._read_memory()

    def close(self) -> None:
        for descriptor in self._threads.values():
            os.close(descriptor)
        self._threads.clear()
        if self._memory is not None:
            os.close(self._memory)
            self._memory = None

    def _list(self) -> None:
        try:
            present = {int(name) for name in os.listdir(self._folder / "task")}
        except OSError:  # it ended
            present = set()
        for thread in self._threads.keys() - present:
            os.close(self._threads.pop(thread))
        for thread in present - self._threads.keys():
            try:
                self._threads[thread] = os.open(self._folder / "task" / str(thread) / "schedstat", os.O_RDONLY)
            except OSError:  # it ended while we looked
                continue

    def _read_threads(self) -> dict[int, ThreadTimes]:
        found = {}
        for thread, descriptor in self._threads.items():
            try:
                found[thread] = mirroring.parse_schedstat(os.pread(descriptor, LONGEST_LINE, 0).decode())
            except (OSError, ValueError):  # it ended; the next listing drops it
                continue
        return found

    def _read_memory(self) -> int:
        try:
            if self._memory is None:
                self._memory = os.open(self._folder / "statm", os.O_RDONLY)
            pages = os.pread(self._memory, LONGEST_LINE, 0).split()[1]
        except (OSError, IndexError):  # it ended
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
