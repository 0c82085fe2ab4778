"""Check `node_view`: the node's processes are seen, so that engines are found and cards have owners."""

from __future__ import annotations

from collections.abc import Iterator

from poise.exporter.checks.result import CheckResult, Line
from poise.exporter.checks.window import Window
from poise.exporter.snapshot import NodeSnapshot

NAME = "node_view"
TITLE = "Processes of the node are seen"
_LINE = Line(NAME, TITLE)


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result for the node; none where nobody looks for processes.

    A limit worries only where no engine is found: in a container that holds the engine too, its own processes are all that count.
    """
    del window
    if snapshot.view_limits is None:
        return
    if not snapshot.view_limits:
        yield _LINE.passed("processes of all containers are seen and can be read")
        return
    said = "; ".join(limit.sentence for limit in snapshot.view_limits)
    fixes = "; ".join(dict.fromkeys(limit.fix for limit in snapshot.view_limits))
    evidence = {"Poise": said}
    if any(limit.unseen for limit in snapshot.view_limits) and not any(engine.observed.process_up for engine in snapshot.engines):
        yield _LINE.unknown("no engine process is found, and Poise does not see all processes", evidence=evidence, fix=fixes)
    else:
        found = (
            "engines are found, as far as Poise sees"
            if any(engine.observed.process_up for engine in snapshot.engines)
            else "as far as Poise sees"
        )
        yield _LINE.passed(f"{found}: {said}", evidence=evidence)
