"""Log lines of the exporter: readable text, or one JSON object per line. Everything goes to standard error."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TextIO


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
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
