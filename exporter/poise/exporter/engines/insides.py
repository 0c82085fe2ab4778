"""Looks into the processes of engines for what is read once of each: the libraries that they loaded and the shape of their model.

Both read files that may lie on a network file system that hangs, so a thread of its own does it: scanning never waits for it. What is not there
yet is looked for again, at growing intervals: an engine loads its libraries some seconds after its start.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from poise.exporter.engines.discovery import FoundEngine
from poise.exporter.engines.libraries import read_libraries
from poise.exporter.engines.model_config import read_model_shape
from poise.exporter.engines.table import ProcessKey
from poise.exporter.procfs import ProcFs
from poise.exporter.snapshot import Libraries, ModelShape

#: The first wait before looking again, in seconds, which doubles up to the last one.
FIRST_WAIT = 4.0
LAST_WAIT = 300.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Inside:
    """What was found in an engine's processes; None: it cannot be read, or not yet."""

    libraries: Libraries | None = None
    model_shape: ModelShape | None = None

    @property
    def complete(self) -> bool:
        """Whether nothing can be found any more: NCCL is loaded last, and only by engines with several ranks."""
        return self.model_shape is not None and self.libraries is not None and bool(self.libraries.nccl)


@dataclass(frozen=True, slots=True)
class _Known:
    inside: Inside
    next_look: float
    wait: float


class Insides:
    """What is known of the insides of engines; `clock` in monotonic seconds."""

    def __init__(self, proc: ProcFs, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._wanted: tuple[FoundEngine, ...] = ()
        self._known: dict[ProcessKey, _Known] = {}
        self._wake = threading.Event()
        self._stopped = False
        self._broken = False
        self._thread = threading.Thread(target=self._run, name="poise-insides", daemon=True)

    def start(self) -> None:
        """Starts the thread that looks."""
        self._thread.start()

    def want(self, engines: Sequence[FoundEngine]) -> None:
        """These are the engines now; returns at once."""
        self._wanted = tuple(engines)
        self._wake.set()

    def of(self, key: ProcessKey) -> Inside:
        """What is known of the engine with this server process."""
        known = self._known.get(key)
        return known.inside if known is not None else Inside()

    def stop(self) -> None:
        """Ends the thread, unless a file system holds it; waits for nothing."""
        self._stopped = True
        self._wake.set()

    def look(self) -> None:
        """Looks once into every engine that is due."""
        wanted, now = self._wanted, self._clock()
        alive = {engine.key for engine in wanted}
        known = {key: value for key, value in self._known.items() if key in alive}
        for engine in wanted:
            before = known.get(engine.key)
            if before is not None and (before.inside.complete or now < before.next_look):
                continue
            inside = self._inside(engine, before.inside if before is not None else Inside())
            # Until the libraries could be read there may just be no ranks yet, and to find that out costs nothing.
            wait = FIRST_WAIT if before is None or inside.libraries is None else min(before.wait * 2, LAST_WAIT)
            known[engine.key] = _Known(inside, now + wait, wait)
        self._known = known

    def _inside(self, engine: FoundEngine, before: Inside) -> Inside:
        libraries = before.libraries
        if engine.ranks and (libraries is None or not libraries.nccl):
            libraries = read_libraries(self._proc, engine.ranks[0].pid) or libraries
        return Inside(libraries, before.model_shape or read_model_shape(self._proc, engine.key.pid, engine.config))

    def _run(self) -> None:
        while not self._stopped:
            self._wake.wait()
            self._wake.clear()
            if self._stopped:
                return
            try:
                self.look()
            except Exception:  # whatever a file held: the engines stay known without what it said
                if not self._broken:
                    self._broken = True
                    _log.exception("looking into the processes of engines failed")
