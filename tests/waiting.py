"""Waiting for something to become true, with a deadline that no slow machine reaches."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_SECONDS = 60.0


def wait_until(condition: Callable[[], object], what: str, patience: float = PATIENCE_SECONDS) -> None:
    """Returns once `condition()` is true; fails with `what` after `patience` seconds."""
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, f"after {patience:g} s still not: {what}"
        time.sleep(0.01)
