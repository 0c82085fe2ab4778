"""Ctrl-C and SIGTERM: what interrupts work, and when they have to wait. Knows nothing of what is interrupted."""

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


@contextmanager
def held_off() -> Iterator[None]:
    """In the body both are ignored: cleaning up is not to be stopped half way. Outside the main thread, where Python cannot
    set handlers and signals do not arrive, nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _handled(signal.SIG_IGN):
        yield


@contextmanager
def _handled(handler: object) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in SIGNALS}  # type: ignore[arg-type]  # a handler or SIG_IGN
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
