"""The exporter as a child: starts it, starts it again when it ends, says so, and ends it.

Owns the process and its last words. Knows no page and nothing of what the exporter does. The child ends with this process, however this
process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from poise.dashboard import die_with_parent
from poise.dashboard.numbers import TEXT_CHARACTERS, shortened
from poise.dashboard.observation import ExporterMode, ExporterStatus
from poise.history.own_limits import own_limit

log = logging.getLogger(__name__)

#: Seconds before the first restart; doubled each time up to the longest.
FIRST_DELAY = 1.0
LONGEST_DELAY = 30.0
#: A child that lived for this many seconds was well; the delay begins anew, and the page no longer speaks of the last end.
STEADY = 15.0
#: Seconds between SIGTERM and SIGKILL. Everything together has to end within two.
GRACE = 1.2
_TAIL_BYTES = 4_096


class ExporterProcess:
    """Keeps one exporter running until cancelled. `tell` is awaited at every change; what the child writes to stderr goes to `stderr`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        tell: Callable[[ExporterStatus], Awaitable[None]],
        clock: Callable[[], float],
        stderr: BinaryIO | None = None,
        first_delay: float = FIRST_DELAY,
    ) -> None:
        self._command = [sys.executable, "-IS", str(Path(die_with_parent.__file__)), str(os.getpid()), *command]
        self._tell = tell
        self._clock = clock
        self._stderr = stderr
        self._first_delay = first_delay
        self._process: asyncio.subprocess.Process | None = None
        self._tail = b""

    @property
    def pid(self) -> int | None:
        """The child's pid while it runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def read_again(self) -> bool:
        """Lets the child read its settings again; whether there is one."""
        if self._process is None or self._process.returncode is not None:
            return False
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGHUP)
        return True

    async def run(self) -> None:
        """Run until cancelled; the child has ended when this returns."""
        try:
            await self._run_for_ever()
        finally:
            await self._end()

    async def _run_for_ever(self) -> None:
        restarts, delay, notice = 0, self._first_delay, ""
        while True:
            began = self._clock()
            try:
                await self._start()
            except (
                OSError,
                RuntimeError,
                MemoryError,
            ) as error:  # no process, thread or memory is left, or Python was replaced: that may pass
                words = error.strerror if isinstance(error, OSError) else ""
                how = f"it cannot be started: {own_limit(error) or words or error}"
            else:
                how = await self._live(notice, restarts)
            if self._clock() - began >= STEADY:
                delay = self._first_delay
            restarts += 1
            words = self._last_words()
            notice = f"The exporter ended ({how}{': ' + words if words else ''}); it is started again, {restarts} so far."
            log.warning("exporter ended (%s), starting it again in %g s", how, delay)
            await self._tell(ExporterStatus(ExporterMode.CHILD, notice, restarts))
            await asyncio.sleep(delay)
            delay = min(LONGEST_DELAY, delay * 2)

    async def _live(self, notice: str, restarts: int) -> str:
        """Waits for the child's end; how it ended, in words. `notice` is what the page says until the child has lived for a while."""
        await self._tell(ExporterStatus(ExporterMode.CHILD, notice, restarts))
        ended = asyncio.create_task(self._wait())
        try:
            await asyncio.wait({ended}, timeout=STEADY)
            if notice and not ended.done():
                await self._tell(ExporterStatus(ExporterMode.CHILD, "", restarts))
            return await ended
        finally:
            ended.cancel()

    async def _start(self) -> None:
        self._tail = b""
        # A session of its own: Ctrl-C on the terminal is for `poise up`, which then ends the child in order.
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, start_new_session=True
        )
        log.info("exporter started, pid %d", self._process.pid)

    async def _wait(self) -> str:
        """Pass on what the child says until it ends; how it ended, in words."""
        assert self._process is not None
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(_TAIL_BYTES):
            self._tail = (self._tail + chunk)[-_TAIL_BYTES:]
            if self._stderr is not None:
                # The terminal may be gone; the exporter is still of use then.
                with contextlib.suppress(OSError, ValueError):
                    self._stderr.write(chunk)
                    self._stderr.flush()
        code = await self._process.wait()
        return _signal_name(-code) if code < 0 else f"exit code {code}"

    def _last_words(self) -> str:
        lines = [line for line in self._tail.decode("utf-8", "replace").splitlines() if line.strip()]
        return shortened(lines[-1], TEXT_CHARACTERS) if lines else ""

    async def _end(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
            try:
                async with asyncio.timeout(GRACE):
                    await process.wait()
            except TimeoutError:
                log.warning("exporter does not end on SIGTERM; killed")
                process.kill()
                await process.wait()


def _signal_name(number: int) -> str:
    try:
        return f"signal {signal.Signals(number).name}"
    except ValueError:  # a real-time signal, which Python has no name for
        return f"signal {number}"
