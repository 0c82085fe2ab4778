"""Reads the file in which long work (a testbed that installs and starts) tells how far it is.

Form: {"title": str, "steps": [{"name", "state": waiting|running|done|failed, "detail", "fraction": 0..1|null, "seconds"}], "updated":
unix seconds}, replaced atomically by its writer. Owns reading and its limits; knows no page. The file is another process's: whatever
is in it ends as short text or as an error in words.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from poise.dashboard.numbers import TEXT_CHARACTERS, finite_number, shortened

FILE_LIMIT = 64_000
MAX_STEPS = 40
STATES = ("waiting", "running", "done", "failed")


class ProgressError(ValueError):
    """The file cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step: `seconds` since it began, or its whole duration once it ended."""

    name: str
    state: str
    detail: str = ""
    fraction: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """A piece of long work. `updated` is Unix seconds of the writer's last word."""

    title: str
    steps: tuple[Step, ...]
    updated: float

    @property
    def state(self) -> str:
        """failed if a step failed, done if all are, else running."""
        states = {step.state for step in self.steps}
        if "failed" in states:
            return "failed"
        return "done" if states <= {"done"} else "running"


class ProgressFile:
    """The file at `path`, read again only when it changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None

    def changed(self) -> bool:
        """Whether the file is another one than at the last call; a file that went away has changed too."""
        try:
            status = os.stat(self._path)
        except OSError:
            stamp = None
        else:
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        changed = stamp != self._stamp
        self._stamp = stamp
        return changed

    def read(self) -> Progress | None:
        """What the file says, None while there is none. Raises ProgressError."""
        try:
            with self._path.open("rb") as file:
                content = file.read(FILE_LIMIT + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ProgressError(f"{self._path}: {error.strerror}") from None
        if len(content) > FILE_LIMIT:
            raise ProgressError(f"{self._path} is larger than {FILE_LIMIT} bytes")
        try:
            return parse(json.loads(content))
        except (ValueError, RecursionError) as error:
            raise ProgressError(f"{self._path} is no progress file: {shortened(str(error))}") from None


def parse(document: object) -> Progress:
    """The progress in a decoded file. Raises ProgressError."""
    if not isinstance(document, Mapping) or not isinstance(document.get("steps"), list):
        raise ProgressError("expected an object with a list of steps")
    steps = tuple(_step(step) for step in document["steps"][:MAX_STEPS] if isinstance(step, Mapping))
    return Progress(shortened(str(document.get("title", ""))), steps, finite_number(document.get("updated")) or 0.0)


def _step(step: Mapping[str, object]) -> Step:
    state = str(step.get("state", ""))
    fraction = finite_number(step.get("fraction"))
    return Step(
        name=shortened(str(step.get("name", ""))),
        state=state if state in STATES else "waiting",
        detail=shortened(str(step.get("detail") or ""), TEXT_CHARACTERS),
        fraction=None if fraction is None else min(1.0, max(0.0, fraction)),
        seconds=max(0.0, finite_number(step.get("seconds")) or 0.0),
    )
