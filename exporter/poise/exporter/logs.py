"""Log lines of the exporter: readable text, or one JSON object per line. Everything goes to standard error, and nobody waits for its reader."""

from __future__ import annotations

import json
import logging
import select
import sys
import time
from os import write
from typing import TextIO

#: How long one line waits for whoever reads standard error, in seconds. Behind it may be a pipe that is full: a journal or a container's log that
#: hangs would otherwise hold every thread that logs, the one that is to leave too. Once a line was lost, none waits until one is read again.
PATIENCE = 0.1
#: A pipe that says that it can be written to takes so many bytes at once (PIPE_BUF, linux/limits.h).
_CHUNK = 4096


class _Unwaiting(logging.StreamHandler[TextIO]):
    """Writes lines whole or not at all; says how many were lost once there is a reader again."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._rest = b""  # of a line that was begun
        self._lost = 0
        self._poll = select.poll()
        try:
            self._descriptor: int | None = stream.fileno()
        except (OSError, ValueError):
            self._descriptor = None  # no file: it takes everything
        else:
            self._poll.register(self._descriptor, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        if self._descriptor is None:
            super().emit(record)
            return
        try:
            text = self.format(record)
        except Exception:
            self.handleError(record)
            return
        deadline = time.monotonic() + (0 if self._lost else PATIENCE)
        if self._rest:
            self._put(self._descriptor, self._rest, deadline, begun=True)
        lost = self._lost
        if lost and not self._rest:
            words = f"{lost} log lines were lost: nobody read standard error"
            text = f"{self.format(logging.LogRecord(__name__, logging.WARNING, __file__, 0, words, None, None))}\n{text}"
        if not self._rest and self._put(self._descriptor, f"{text}\n".encode("utf-8", "backslashreplace"), deadline):
            self._lost = 0
        else:
            self._lost = lost + 1

    def _put(self, descriptor: int, data: bytes, deadline: float, *, begun: bool = False) -> bool:
        """Whether the line is out or will be: one that was begun is ended before the next."""
        self._rest = b""
        while data:
            try:
                written = write(descriptor, data[:_CHUNK]) if self._is_ready(descriptor, deadline) else 0
            except BlockingIOError:
                written = 0
            except OSError:
                return True  # nobody will ever read it
            if not written:
                self._rest = data if begun else b""
                return begun
            begun = True
            data = data[written:]
        return True

    def _is_ready(self, descriptor: int, deadline: float) -> bool:
        return bool(self._poll.poll(max(deadline - time.monotonic(), 0.0) * 1000))


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _iso(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = f"{_iso(record.created)} {record.levelname.lower():7} {visible(record.getMessage())}"
        if not record.exc_info:
            return line
        return "\n".join([line, *map(visible, self.formatException(record.exc_info).split("\n"))])


def visible(text: str) -> str:
    """The text on one line, with every character that a terminal would act on (line feeds, ANSI escapes, right-to-left marks) as its code.

    Messages quote what processes, drivers and servers call themselves.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if character.isprintable() else character.encode("unicode_escape").decode() for character in text)


def _iso(when: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(when)) + f".{int(when % 1 * 1000):03d}Z"


def set_up(level: str, form: str, stream: TextIO | None = None) -> None:
    """Sends all log records of `level` and above to `stream` (standard error), as ``text`` or ``json``."""
    target = stream or sys.stderr
    handler = _Unwaiting(target) if target is not None else logging.NullHandler()  # None: it was closed before we were started
    handler.setFormatter(_Json() if form == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
