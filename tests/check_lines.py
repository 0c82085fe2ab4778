"""What one check says of a scene, for the tests of single checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from poise.exporter.checks.result import CheckResult
from poise.exporter.checks.runner import CHECKS
from poise.exporter.checks.window import Window, moment_of
from poise.exporter.snapshot import NodeSnapshot

from tests.scenes import START

Scene = Callable[[float], NodeSnapshot]

_FUNCTIONS = {name: function for name, _, function in CHECKS}


def line(scene: NodeSnapshot | Scene, check: str, seconds: int = 0) -> CheckResult:
    """The one line of a check after so many seconds."""
    found = lines(scene, check, seconds)
    assert len(found) == 1, found
    return found[0]


def lines(scene: NodeSnapshot | Scene, check: str, seconds: int = 0) -> list[CheckResult]:
    """The lines of a check after so many seconds, of which the last minute counts."""
    at = scene if callable(scene) else lambda _: scene
    snapshots = [dataclasses.replace(at(float(second)), taken_at=START + second) for second in range(max(0, seconds - 65), seconds + 1)]
    found = list(_FUNCTIONS[check](snapshots[-1], Window(tuple(moment_of(snapshot) for snapshot in snapshots))))
    assert {result.check for result in found} <= {check}
    return found
