"""The picture of a comparison: throughput, price, latencies and utilization by shape; for a ramp the throughput-latency curve.

Owns colours, marks and sizes. matplotlib is imported when a picture is drawn and not before: only the extra `testbed` brings it.
The ground is a light one of its own, so that the picture reads in pages light and dark; colours are Okabe and Ito's, and every series
also has its own mark or its name beside it.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from poise.exporter.logs import visible
from poise.testbed.bench.summary import cards_word
from poise.testbed.comparison import report
from poise.testbed.comparison.statistics import Estimate
from poise.testbed.comparison.table import Comparison, Row
from poise.testbed.errors import TestbedError

# Okabe & Ito (2008), "Color Universal Design": told apart with every common colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
ROLE_MARKS = {"mixed": ("o", COLOURS[0]), "prefill": ("^", COLOURS[1]), "decode": ("s", COLOURS[2])}
CURVE_MARKS = ("o", "s", "^", "D", "v", "P")
INK, GROUND, GRID = "#1b1f24", "#ffffff", "#d0d7de"
# Both from one figure: SVG for pages, PNG for what shows no SVG.
FORMATS = ("svg", "png")
DOTS_PER_INCH = 140
# Inches. A picture of many shapes, or of long names, grows: wider by the shape, higher by the line of a name.
WIDTH, HEIGHT, WIDTH_PER_SHAPE, HEIGHT_PER_LINE = 11.0, 7.2, 2.9, 0.32
ROOM_FOR_SHAPES, ROOM_FOR_LETTERS = 5, 7
# Shares of the picture; reckoned once here, because matplotlib's own layout draws everything twice more.
MARGINS = {"left": 0.065, "right": 0.985, "top": 0.87, "bottom": 0.07, "wspace": 0.27, "hspace": 0.36}
BOTTOM_PER_LINE, SPACE_PER_LINE = 0.018, 0.05
# From here on latencies are told in seconds.
MILLISECONDS_TO = 10.0
# Characters on a line of the title, and how many of such lines; of a shape's name on a line, and how many of those.
TITLE_WIDTH, TITLE_LINES = 140, 3
NAME_WIDTH, NAME_LINES = 11, 3
MISSING = "the plot needs matplotlib: in a clone, pip install '.[testbed]', or leave it out with --no-plot"


def draw(comparison: Comparison, stem: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Writes `stem`.svg and `stem`.png, or only one of the two; returns their paths. Raises TestbedError without matplotlib, or when they cannot be written."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise TestbedError(MISSING) from None
    curves = any(row.curve for row in comparison.rows)
    # Names and dates are left out of the SVG: the same runs make the same file.
    settings: dict[Any, Any] = {"svg.hashsalt": "poise", "svg.fonttype": "none", "font.size": 9, "text.color": INK, "axes.labelcolor": INK}
    # Names are no formulas, whatever stands in them.
    settings |= {"xtick.color": INK, "ytick.color": INK, "axes.edgecolor": INK, "text.parse_math": False}
    settings |= {"legend.columnspacing": 1.0, "legend.handletextpad": 0.2, "legend.frameon": False}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # A box in the place of a letter that the font lacks is no news for who reads the terminal.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        size, margins = _room(comparison.rows)
        figure = Figure(figsize=size, facecolor=GROUND)
        axes = figure.subplots(2, 3, gridspec_kw=margins).flatten()
        for axis in axes:
            axis.set_facecolor(GROUND)
            axis.grid(axis="y", color=GRID, linewidth=0.7)
            axis.set_axisbelow(True)
            axis.spines[["top", "right"]].set_visible(False)
        rows = comparison.rows
        _bars(axes[0], "Output tokens per second", "tokens/s", rows, [row.output_tokens_per_second for row in rows])
        _bars(axes[1], "Output tokens per second and GPU", "tokens/s per GPU", rows, [row.tokens_per_second_per_gpu for row in rows])
        _cards(axes[2], rows)
        _ranges(axes[3], "Time to first token", "TTFT", "ttft", rows)
        _ranges(axes[4], "Inter-token latency", "ITL", "itl", rows)
        if curves:
            _curve(axes[5], rows)
        else:
            _ranges(axes[5], "End-to-end latency", "E2E", "e2el", rows)
        said = report.note(comparison)
        title = visible(f"Profile {comparison.profile}: {comparison.arrival}; {comparison.model} on {comparison.cards}")
        lines = [*_lines(title, TITLE_WIDTH, TITLE_LINES), *(_lines(said, TITLE_WIDTH, TITLE_LINES) if said else [])]
        figure.suptitle("\n".join(lines), fontsize=10, color=INK)
        return [_save(figure, stem.with_name(f"{stem.name}.{kind}"), kind) for kind in formats]


def _room(rows: Sequence[Row]) -> tuple[tuple[float, float], dict[str, float]]:
    """Width and height in inches, and the margins, in which the names of all shapes find room."""
    names = [_name(row.shape) for row in rows]
    further = max(name.count("\n") for name in names)
    narrow = len(rows) <= ROOM_FOR_SHAPES and max(map(len, names)) <= ROOM_FOR_LETTERS
    margins = {
        **MARGINS,
        "bottom": MARGINS["bottom"] + further * BOTTOM_PER_LINE,
        "hspace": MARGINS["hspace"] + further * SPACE_PER_LINE,
    }
    width = WIDTH if narrow else max(WIDTH, WIDTH_PER_SHAPE * len(rows))
    return (width, HEIGHT + further * HEIGHT_PER_LINE), margins


def _save(figure: Any, path: Path, kind: str) -> Path:
    metadata: dict[str, Any] = (
        {"Date": None, "Creator": "poise testbed compare"} if kind == "svg" else {"Software": "poise testbed compare"}
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format=kind, dpi=DOTS_PER_INCH, facecolor=GROUND, metadata=metadata)
    except OSError as error:
        raise TestbedError(f"the plot cannot be written to {path}: {error}") from None
    return path


def _bars(axis: Any, title: str, unit: str, rows: Sequence[Row], values: Sequence[Estimate]) -> None:
    """A bar a shape with its interval and its number; shapes by place, so that colour carries nothing."""
    places = list(range(len(rows)))
    axis.bar(places, [value.mean for value in values], width=0.6, color=COLOURS[0])
    for place, value in zip(places, values, strict=True):
        if value.low is not None and value.high is not None:
            axis.errorbar(place, value.mean, yerr=[[value.mean - max(0.0, value.low)], [value.high - value.mean]], color=INK, capsize=4)
        # Beside the interval, at the height of what it says.
        axis.annotate(f"{value.mean:.0f}", (place, value.mean), ha="left", va="bottom", xytext=(4, 1), textcoords="offset points")
    _shapes(axis, rows, title, unit)
    axis.margins(y=0.12)
    axis.set_ylim(bottom=0)


def _ranges(axis: Any, title: str, short: str, name: str, rows: Sequence[Row]) -> None:
    """p50, p95 and p99 of a latency, joined by a line: each share has its own mark."""
    marks = {"p50": ("o", COLOURS[0]), "p95": ("s", COLOURS[4]), "p99": ("^", COLOURS[1])}
    known = [row.latency[(name, share)].mean for row in rows for share in marks if (name, share) in row.latency]
    scale, unit = (1000, "ms") if max(known, default=0) < MILLISECONDS_TO else (1, "s")
    top = max(known, default=0) * scale
    for place, row in enumerate(rows):
        found = [row.latency[(name, share)].mean * scale for share in marks if (name, share) in row.latency]
        if found:
            axis.plot([place, place], [min(found), max(found)], color=INK, linewidth=1.2, zorder=1)
    for share, (mark, colour) in marks.items():
        points = [(place, row.latency[(name, share)].mean * scale) for place, row in enumerate(rows) if (name, share) in row.latency]
        if points:
            axis.scatter(*zip(*points, strict=True), **_mark(mark, colour), s=42, label=share)
    _shapes(axis, rows, f"{title} (p50, p95, p99)", f"{short}, {unit}")
    axis.set_ylim(0, top * 1.25 or 1)
    if top:
        axis.legend(loc="upper left", ncols=3)


def _mark(mark: str, colour: str) -> dict[str, Any]:
    """What is near 0 lies on the axis, and is to be seen whole."""
    return {"marker": mark, "color": colour, "edgecolor": INK, "linewidth": 0.5, "clip_on": False, "zorder": 3}


def _cards(axis: Any, rows: Sequence[Row]) -> None:
    """Utilization, a mark for each card, by role."""
    for role, (mark, colour) in ROLE_MARKS.items():
        points = []
        for place, row in enumerate(rows):
            known = [card for card in row.cards if card.utilization is not None]
            for number, card in enumerate(known):
                shift = (number - (len(known) - 1) / 2) * 0.22
                if card.role == role and card.utilization is not None:
                    points.append((place + shift, card.utilization * 100))
        if points:
            axis.scatter(*zip(*points, strict=True), **_mark(mark, colour), s=46, label=role)
    _shapes(axis, rows, "Utilization of each card, by role", "utilization, %")
    axis.set_ylim(0, 118)
    axis.set_yticks(range(0, 101, 25))
    if axis.get_legend_handles_labels()[0]:
        axis.legend(loc="upper left", ncols=3)


def _curve(axis: Any, rows: Sequence[Row]) -> None:
    """Latency over throughput, a line a shape; the last points of a line are where it saturates."""
    from matplotlib.ticker import LogLocator  # where draw found it

    for number, row in enumerate(rows):
        points = [(point.output_tokens_per_second, point.e2e_p50 * 1000) for point in row.curve if point.e2e_p50 is not None]
        if points:
            mark, colour = CURVE_MARKS[number % len(CURVE_MARKS)], COLOURS[number % len(COLOURS)]
            axis.plot(*zip(*points, strict=True), marker=mark, color=colour, label=_name(row.shape))
    axis.set_title("Latency over throughput (steps of the ramp)", fontsize=10)
    axis.set_xlabel("output tokens/s")
    axis.set_ylabel("end-to-end latency p50, ms")
    axis.set_yscale("log")
    # A ramp may stay within one power of ten.
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("")
    if axis.get_legend_handles_labels()[0]:
        axis.legend()


def _shapes(axis: Any, rows: Sequence[Row], title: str, unit: str) -> None:
    axis.set_title(title, fontsize=10)
    axis.set_ylabel(unit)
    axis.set_xticks(range(len(rows)), [f"{_name(row.shape)}\n{cards_word(row.gpus)}" for row in rows])
    axis.set_xlim(-0.6, len(rows) - 0.4)


def _name(shape: str) -> str:
    return "\n".join(_lines(visible(shape), NAME_WIDTH, NAME_LINES))


def _lines(text: str, width: int, most: int) -> list[str]:
    return textwrap.wrap(text, width, max_lines=most, placeholder="…")
