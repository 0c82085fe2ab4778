"""Ctrl-C and SIGTERM: what interrupts work, when they have to wait, and what is left then. Knows nothing of what is interrupted.

A signal that is ignored when the process starts (nohup, `&` in a script) stays ignored.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def as_exceptions() -> Iterator[None]:
    """In the body SIGTERM raises KeyboardInterrupt as Ctrl-C does, so that both clean up. For the main thread of a command."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled(interrupt):
        yield


def heeded() -> list[signal.Signals]:
    """Those of the two that are not ignored."""
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def leaves(words: str) -> Iterator[None]:
    """Says what is left when the body is interrupted. Of several around each other the innermost counts: it knows most."""
    try:
        yield
    except KeyboardInterrupt as interrupted:
        interrupted.add_note(words)
        raise


def left_by(interrupted: KeyboardInterrupt) -> str | None:
    """The words of the innermost `leaves` that the interrupt went through; None where there was none."""
    notes: list[str] = getattr(interrupted, "__notes__", [])
    return notes[0] if notes else None


@contextmanager
def held_off() -> Iterator[None]:
    """In the body both are ignored: cleaning up is not to be stopped half way. Outside the main thread, where Python cannot
    set handlers and signals do not arrive, nothing is changed. Within `deferred` they wait, as there."""
    waits = any(isinstance(signal.getsignal(number), _Waiting) for number in SIGNALS)
    if waits or threading.current_thread() is not threading.main_thread():
        yield
        return
    with _handled(signal.SIG_IGN):
        yield


@contextmanager
def deferred() -> Iterator[None]:
    """In the body both wait; KeyboardInterrupt is raised behind it when one came: for cleaning up that more work follows. In the main
    thread."""
    waiting = _Waiting()
    with _handled(waiting):
        yield
    if waiting.came:
        raise KeyboardInterrupt


class _Waiting:
    """A handler that notes that a signal came."""

    def __init__(self) -> None:
        self.came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came = True


@contextmanager
def _handled(handler: object) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in heeded()}  # type: ignore[arg-type]  # a handler or SIG_IGN
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
