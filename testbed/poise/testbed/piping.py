"""Runs a helper program to its end, line by line, tied to our own life.

For short helpers such as pip: the tie is not inherited by children, so a vLLM server needs the keeper instead. Knows nothing of what the
program does.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from poise.dashboard import die_with_parent
from poise.testbed.errors import TestbedError

TICK_SECONDS = 1.0
KEPT_LINES = 200
# A progress bar rewrites its line with a carriage return: each state of it is a line to us.
_LINE_END = re.compile(rb"\r\n|\n|\r")


def run_tied(
    command: Sequence[str],
    environ: Mapping[str, str],
    line: Callable[[str], None],
    tick: Callable[[], None],
    silence: float,
) -> tuple[int, list[str]]:
    """Runs `command`, whose end is certain when this process ends; returns its exit status and its last lines.

    stdout and stderr come as one stream, each line to `line` (each state of a progress bar too); `tick` is called about once a
    second. Raises TestbedError when it says nothing for `silence` seconds. An exception (Ctrl-C) ends the program before it goes
    on up.
    """
    # By its file and isolated: `environ` may lack what makes our package importable.
    tied = [sys.executable, "-IS", str(Path(die_with_parent.__file__)), str(os.getpid()), *command]
    kept: deque[str] = deque(maxlen=KEPT_LINES)
    with subprocess.Popen(
        tied,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            _read(process, kept, line, tick, silence, command[0])
            return process.wait(), list(kept)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def _read(
    process: subprocess.Popen[bytes],
    kept: deque[str],
    line: Callable[[str], None],
    tick: Callable[[], None],
    silence: float,
    name: str,
) -> None:
    stream = process.stdout
    if stream is None:
        return
    heard = time.monotonic()
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            tick()
            if not selector.select(TICK_SECONDS):
                if time.monotonic() - heard > silence:
                    raise TestbedError(f"{name} said nothing for {silence:.0f} s: it was ended, run the command again")
                continue
            heard = time.monotonic()
            data = os.read(stream.fileno(), 65536)
            *whole, rest = _LINE_END.split(rest + data) if data else (rest, b"")
            for raw in whole:
                text = raw.decode("utf-8", "replace").rstrip()
                if data or text:  # what the last line lacks is its end, not its text
                    kept.append(text)
                    line(text)
            if not data:
                return
