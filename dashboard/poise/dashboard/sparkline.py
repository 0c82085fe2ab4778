"""A short history drawn as two SVG paths and its gaps. Pure geometry: shares 0..1 over time in, path strings out."""

from __future__ import annotations

from collections.abc import Sequence

from poise.history.recent import Point

#: The box that the paths are drawn in; the page scales it.
WIDTH = 120
HEIGHT = 24
#: Two samples farther apart than this many intervals have a gap between them; one late scrape is none.
GAP_INTERVALS = 2.5


def paths(points: Sequence[Point], *, end: float, seconds: float, interval: float) -> tuple[str, str, tuple[tuple[float, float], ...]]:
    """Line, area under it, and gaps as (x, width). A gap in the data is a gap in the line, never a bridge."""
    runs: list[list[Point]] = []
    gaps: list[tuple[float, float]] = []
    for point in points:
        if runs and point.at - runs[-1][-1].at <= GAP_INTERVALS * interval:
            runs[-1].append(point)
            continue
        if runs:
            before = _x(runs[-1][-1].at, end, seconds)
            gaps.append((before, round(_x(point.at, end, seconds) - before, 1)))
        runs.append([point])
    if runs and end - runs[-1][-1].at > GAP_INTERVALS * interval:
        before = _x(runs[-1][-1].at, end, seconds)
        gaps.append((before, round(WIDTH - before, 1)))
    lines, areas = [], []
    for run in runs:
        steps = [(_x(point.at, end, seconds), _y(point.value)) for point in run]
        if len(steps) == 1:  # a lone sample is drawn as a dash as wide as its interval
            steps = [(steps[0][0] - interval / seconds * WIDTH, steps[0][1]), steps[0]]
        body = "L".join(f"{x:g} {y:g}" for x, y in steps)
        lines.append(f"M{body}")
        areas.append(f"M{steps[0][0]:g} {HEIGHT}L{body}L{steps[-1][0]:g} {HEIGHT}Z")
    return "".join(lines), "".join(areas), tuple(gaps)


def _x(at: float, end: float, seconds: float) -> float:
    return round((1 - (end - at) / seconds) * WIDTH, 1)


def _y(value: float) -> float:
    # One unit of room above and below keeps the line's own width inside the box.
    return round(1 + (1 - min(1.0, max(0.0, value))) * (HEIGHT - 2), 1)
