"""Everything that a page is built from at one moment: the recent window, the checks, the progress, and how the exporter is run.

A value without behaviour; the edge fills it, the builders read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from poise.dashboard.checks_document import ChecksDocument
from poise.dashboard.progress import Progress
from poise.history.recent import RecentWindow


class ExporterMode(StrEnum):
    """Who runs the exporter."""

    CHILD = "child"
    ATTACHED = "attached"
    AWAITED = "awaited"


@dataclass(frozen=True, slots=True)
class ExporterStatus:
    """How the exporter is run. `notice` is a sentence for the page when something about that is wrong, else ""."""

    mode: ExporterMode = ExporterMode.AWAITED
    notice: str = ""
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """What is known at `now` (Unix seconds). `interval` is the scrape interval in seconds; errors are in words, "" when there is none."""

    now: float
    interval: float
    window: RecentWindow
    checks: ChecksDocument | None = None
    checks_error: str = ""
    progress: Progress | None = None
    progress_error: str = ""
    exporter: ExporterStatus = ExporterStatus()
