"""Steps of long work, shown as lines on a terminal and as a JSON file that a page can read.

Owns the picture of progress (names, states, details, seconds). Knows nothing of what the work is.
File: {"title", "steps": [{"name", "state": waiting|running|done|failed, "detail", "fraction": 0..1|null, "seconds"}], "updated": unix seconds}.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol, TextIO

from poise.exporter.logs import visible
from poise.testbed.files import write_json

StepState = Literal["waiting", "running", "done", "failed"]

# A line for a step that runs without news, so that a log shows life without filling up.
QUIET_LINE_SECONDS = 5.0
# The file is refreshed at most this often: a page polls it about once a second.
FILE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Step:
    """`seconds` since the step began (whole duration once it ended); `fraction` 0..1, None when unknown."""

    name: str
    state: StepState = "waiting"
    detail: str = ""
    fraction: float | None = None
    seconds: float = 0.0


class Sink(Protocol):
    """Somewhere that shows progress. `changed` is true when a step began or ended, false for news within it."""

    def show(self, title: str, steps: Sequence[Step], current: Step, changed: bool) -> None: ...


class Progress:
    """The steps of one piece of work, in order. Clock in seconds (monotonic) is passed in.

    A sink that cannot show the beginning raises OSError, before any work is done. Later none ends the work: what a full disk or a closed
    terminal does not take is shown when it takes something again.
    """

    def __init__(self, title: str, steps: Sequence[str], sinks: Sequence[Sink], clock: Callable[[], float]) -> None:
        self._title = title
        self._steps = {name: Step(name) for name in steps}
        self._sinks = sinks
        self._clock = clock
        self._began: dict[str, float] = {}
        for sink in sinks:
            for step in self._steps.values():
                sink.show(title, self.steps, step, changed=True)

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(self._steps.values())

    def note(self, name: str, detail: str | None = None, fraction: float | None = None) -> None:
        """News within a running step; without detail only its seconds move on (call about once a second while waiting)."""
        step = self._steps[name]
        now = self._clock()
        self._steps[name] = replace(
            step,
            detail=step.detail if detail is None else detail,
            fraction=step.fraction if fraction is None else fraction,
            seconds=now - self._began.get(name, now),
        )
        self._show(name, changed=False)

    @contextmanager
    def step(self, name: str, detail: str = "") -> Iterator[Callable[..., None]]:
        """Runs one step; yields `note(detail=None, fraction=None)`. An exception marks the step failed and goes on up."""
        self._steps.setdefault(name, Step(name))
        self._began[name] = self._clock()
        self._steps[name] = Step(name, "running", detail)
        self._show(name, changed=True)

        def note(detail: str | None = None, fraction: float | None = None) -> None:
            self.note(name, detail, fraction)

        try:
            yield note
        except BaseException as error:
            self._end(name, "failed", str(error).splitlines()[0] if str(error) else "interrupted")
            raise
        self._end(name, "done", self._steps[name].detail)

    def _end(self, name: str, state: StepState, detail: str) -> None:
        seconds = self._clock() - self._began[name]
        fraction = 1.0 if state == "done" else self._steps[name].fraction
        self._steps[name] = Step(name, state, detail, fraction, seconds)
        self._show(name, changed=True)

    def _show(self, name: str, changed: bool) -> None:
        for sink in self._sinks:
            with suppress(OSError):
                sink.show(self._title, self.steps, self._steps[name], changed)


class FileSink:
    """Writes the JSON file, atomically, at every change and otherwise at most every FILE_SECONDS."""

    def __init__(self, path: Path, wall_clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._wall_clock = wall_clock
        self._written = float("-inf")

    def show(self, title: str, steps: Sequence[Step], current: Step, changed: bool) -> None:
        now = self._wall_clock()
        if not changed and 0 <= now - self._written < FILE_SECONDS:
            return
        self._written = now
        fields = [
            {"name": s.name, "state": s.state, "detail": s.detail, "fraction": s.fraction, "seconds": round(s.seconds, 1)} for s in steps
        ]
        write_json(self._path, {"title": title, "steps": fields, "updated": now})


class TerminalSink:
    """Lines for a person: one when a step begins or ends; in between the line is rewritten on a terminal, and on
    anything else a line follows every QUIET_LINE_SECONDS."""

    def __init__(self, stream: TextIO, width: Callable[[], int], clock: Callable[[], float]) -> None:
        self._stream = stream
        self._width = width
        self._clock = clock
        self._rewrites = stream.isatty()
        self._printed = float("-inf")

    def show(self, title: str, steps: Sequence[Step], current: Step, changed: bool) -> None:
        if current.state == "waiting":
            return
        now = self._clock()
        text = describe(current)
        if self._rewrites:
            ending = "\n" if current.state in ("done", "failed") else ""
            self._stream.write("\r\x1b[2K" + text[: max(20, self._width() - 1)] + ending)
        else:
            if not changed and now - self._printed < QUIET_LINE_SECONDS:
                return
            self._stream.write(text + "\n")
        self._printed = now
        self._stream.flush()


def describe(step: Step) -> str:
    """One line: what, how far, how long. Details quote others: nothing in it acts on a terminal."""
    mark = {"waiting": "    ", "running": "... ", "done": "ok  ", "failed": "FAIL"}[step.state]
    share = f" {step.fraction:.0%}" if step.fraction is not None and step.state == "running" else ""
    seconds = f" ({step.seconds:.0f} s)" if step.seconds >= 1 else ""
    detail = f": {step.detail}" if step.detail else ""
    return visible(f"{mark} {step.name}{share}{seconds}{detail}")
