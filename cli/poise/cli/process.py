"""What the process owes its surroundings: signals before a component takes them, closed standard streams, output that cannot be written.

Knows no component. Imports little: until `leave_on_signals` has run, a Ctrl-C is a traceback.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

#: Exit code for output that cannot be written, as for every request that could not be carried out.
COULD_NOT_WRITE = 2
#: Exit code when the reader of the output went away in the middle of the work: 128 + SIGPIPE, as of every program that pipes.
READER_GONE = 128 + signal.SIGPIPE
_WRITE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE})
_ENDING = (signal.SIGTERM, signal.SIGINT)


def keep_back_hangups() -> Callable[[], None]:
    """From now on SIGHUP, which asks a server to read its settings anew, waits until the server takes it (it lifts this block then): while modules
    are imported and files are opened it would end the process without a word. One that comes meanwhile is not lost.

    Returns what lets it through again.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})

    def restore() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return restore


def leave_on_signals(code: int | None) -> Callable[[], None]:
    """From now on SIGTERM and SIGINT end the process at once: with this exit code, or (None) as signals do by themselves, without a word.

    For the time in which nothing is running that would have to be ended in order, above all while modules are imported; a component that has
    something to end puts its own handling in this one's place. An exception would not do: raised inside an import it surfaces as any other.
    By themselves they also end a call that Python cannot interrupt, such as a name lookup.
    Returns what puts the handlers back that stood there. A signal that is ignored (nohup) stays ignored; outside the main thread, where
    Python takes no handlers, nothing is changed.
    """

    def leave(_number: int, _frame: FrameType | None) -> None:
        os._exit(code or 0)

    handler = signal.SIG_DFL if code is None else leave
    try:
        before = {number: signal.signal(number, handler) for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN}
    except ValueError:
        before = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    return restore


def open_streams() -> None:
    """Gives closed standard streams a place to go, and lets no character that the terminal cannot show end a command.

    With a closed descriptor the next socket or file would get its number, and everything that is written to "standard error" with it.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")


def flush(code: int) -> int:
    """Writes out what is left and returns the exit code: `code`, or `COULD_NOT_WRITE` when the output is lost for another reason than that
    its reader went away (`poise … | head`)."""
    lost = _flushed(sys.stdout)
    if lost is not None and not isinstance(lost, BrokenPipeError):
        code = write_failed(lost)
    # What cannot be said on standard error cannot be said at all; Python would turn it into exit code 120.
    _flushed(sys.stderr)
    return code


def tell(text: str, end: str = "\n") -> None:
    """A line on standard error. What cannot be said there cannot be said at all, and ends no work."""
    try:
        print(text, end=end, file=sys.stderr, flush=True)
    except OSError:
        return


def is_write_error(error: OSError) -> bool:
    """Whether this comes from writing to a stream: full disk, reader gone, broken device. Opening a file names the file."""
    return error.filename is None and error.errno in _WRITE_ERRORS


def write_failed(error: OSError) -> int:
    """Tells of output that was lost while it was written, and returns the exit code."""
    _flushed(sys.stdout)
    if isinstance(error, BrokenPipeError):
        return READER_GONE
    tell(f"poise: the output cannot be written: {error.strerror}")
    _flushed(sys.stderr)
    return COULD_NOT_WRITE


def _flushed(stream: object) -> OSError | None:
    """Why a stream cannot be flushed, None when it can. It goes to /dev/null then, so that Python's own end does not try again."""
    try:
        stream.flush()  # type: ignore[attr-defined]  # a text stream, or what a test put in its place
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # type: ignore[attr-defined]  # as above
        os.close(nowhere)
        return error
    return None
