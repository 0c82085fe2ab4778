"""How far a starting vLLM server is, read from its log.

The words are those of vLLM 0.32's log; a phase that another version words differently is simply not shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# A log says within its first lines that its server has started.
LOG_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Phase:
    """`mark` is a part of the log line that begins the phase; `share` of the start-up time that has passed by then."""

    mark: str
    words: str
    share: float


# Shares measured on 2 cores with the tiny model (22 s in all); with real weights loading is most of it.
PHASES = (
    Phase("non-default args", "reading arguments", 0.25),
    Phase("Initializing a V1 LLM engine", "starting the engine core", 0.4),
    Phase("rank 0 in world size", "starting the workers", 0.55),
    Phase("Starting to load model", "loading weights", 0.65),
    Phase("Loading weights took", "weights loaded", 0.75),
    Phase("KV cache size", "making the KV cache", 0.8),
    Phase("init engine", "engine ready, starting the API", 0.9),
    Phase("Application startup complete", "API started", 0.99),
)


def latest_phase(lines: Iterable[str]) -> Phase | None:
    """The furthest phase that the log has reached, None before the first."""
    found = -1
    for line in lines:
        for place in range(len(PHASES) - 1, found, -1):
            if PHASES[place].mark in line:
                found = place
                break
    return PHASES[found] if found >= 0 else None


def has_started(log: Path) -> bool:
    """Whether the log says that the server's API had started."""
    try:
        with log.open("rb") as stream:
            text = stream.read(LOG_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return False
    return latest_phase(text.splitlines()) == PHASES[-1]
