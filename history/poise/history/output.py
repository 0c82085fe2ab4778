"""Writes lines to where a person said: standard output, a file that is there only once it is whole, or a device, pipe or link as it stands.

Knows nothing of what the lines say.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM)
#: Of a new file, before the process' umask takes its part (open(2), as every shell's redirection).
_MODE = 0o666


def write(lines: Iterable[str], output: Path | None) -> int:
    """Writes the lines; how many there were. None is standard output.

    What is no regular file is written into. A regular one is replaced in one step and keeps its mode and owner; through a link the file that it
    names is. Until then the lines are in a file of a name of its own beside it, which a failure, SIGINT and SIGTERM take away.

    Raises:
        OSError: that place takes nothing.
    """
    if output is None:
        return _all_of(lines, sys.stdout.write)
    try:
        found = output.stat()
    except FileNotFoundError:
        found = None
    if found is not None and not stat.S_ISREG(found.st_mode):
        with output.open("w", encoding="utf-8", newline="") as file:
            return _all_of(lines, file.write)
    if found is not None and not os.access(output, os.W_OK):
        raise PermissionError(None, "Permission denied")
    whole = output.resolve()
    with _part_beside(whole) as (descriptor, part):
        with open(descriptor, "w", encoding="utf-8", newline="") as file:
            count = _all_of(lines, file.write)
            _become(descriptor, found)
        part.replace(whole)
    return count


def _all_of(lines: Iterable[str], put: Callable[[str], object]) -> int:
    count = 0
    for line in lines:
        put(line)
        count += 1
    return count


def _become(descriptor: int, before: os.stat_result | None) -> None:
    """Mode and owner of the file that was there; of a new one the mode that any command would give it."""
    if before is None:
        umask = os.umask(0)
        os.umask(umask)
        os.fchmod(descriptor, _MODE & ~umask)
        return
    with contextlib.suppress(PermissionError):  # only root may give files away
        os.fchown(descriptor, before.st_uid, before.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))


@contextlib.contextmanager
def _part_beside(whole: Path) -> Iterator[tuple[int, Path]]:
    """An open file in the same folder (descriptor, path), gone at the end, however that comes, but for SIGKILL."""
    parts: list[Path] = []

    def forget() -> None:
        for part in parts:
            part.unlink(missing_ok=True)

    with _before_ending(forget):
        try:
            descriptor, name = tempfile.mkstemp(prefix=".poise-", suffix=".part", dir=whole.parent)
            parts.append(Path(name))
            yield descriptor, parts[0]
        finally:
            forget()


@contextlib.contextmanager
def _before_ending(last: Callable[[], None]) -> Iterator[None]:
    """`last` is done before a signal ends the process as it would have; one that is ignored stays so.

    Outside the main thread, where Python takes no handlers, nothing is changed.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        last()
        signal.signal(number, before[signal.Signals(number)])
        os.kill(os.getpid(), number)

    takes = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) or signal.SIG_DFL for number in _ENDING if takes}
    before = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
