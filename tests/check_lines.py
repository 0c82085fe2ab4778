"""Lines of the checklist by their check, for the tests of single checks."""

from __future__ import annotations

from collections.abc import Callable

from poise.exporter.checks.result import CheckResult
from poise.exporter.snapshot import NodeSnapshot

from tests.scenes import play

Scene = Callable[[float], NodeSnapshot]


def line(scene: NodeSnapshot | Scene, check: str, seconds: int = 0) -> CheckResult:
    """The one line of a check after so many seconds."""
    found = lines(scene, check, seconds)
    assert len(found) == 1, found
    return found[0]


def lines(scene: NodeSnapshot | Scene, check: str, seconds: int = 0) -> list[CheckResult]:
    """The lines of a check after so many seconds."""
    outcome = play(scene if callable(scene) else lambda _: scene, seconds)
    return [result for result in outcome.results if result.check == check]
