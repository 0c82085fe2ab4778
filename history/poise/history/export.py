"""Writes series as text for other programs: OpenMetrics with timestamps, which `promtool tsdb create-blocks-from openmetrics` reads, and CSV.

Owns the formats. Knows neither file nor command line; lines go out as they are made.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence

from poise.history.promql.engine import Matrix
from poise.history.promql.labels import NAME, Labels, get
from poise.history.promql.nodes import Matcher, MatchOperator
from poise.history.promql.series import StoredSeries, stale_flags
from poise.history.querier.embedded import SeriesStorage

#: Series that are read at once; one of seven days at 5 s has 121,000 samples.
BATCH = 16
#: The last line of OpenMetrics.
END = "# EOF\n"


def open_metrics(storage: SeriesStorage, selectors: Sequence[Sequence[Matcher]], start: int, end: int) -> Iterator[str]:
    """The samples of start ≤ time ≤ end (milliseconds) of all series that fit one of the selectors, a series at a time, in lines.

    Stale markers are left out, because the format has none. Raises Unavailable.
    """
    wanted = sorted({own for matchers in selectors for own in storage.series(matchers, start, end)})
    for first in range(0, len(wanted), BATCH):
        for own in wanted[first : first + BATCH]:
            for one in storage.select(_exactly(own), start, end):
                if one.labels == own:
                    yield _lines(one)
    yield END


def _exactly(own: Labels) -> tuple[Matcher, ...]:
    return tuple(Matcher(name, MatchOperator.EQUAL, value) for name, value in own)


def _lines(one: StoredSeries) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in one.labels if name != NAME)
    written = f"{get(one.labels, NAME)}{{{pairs}}}" if pairs else get(one.labels, NAME)
    living = ~stale_flags(one.values)
    return "".join(
        f"{written} {number(value)} {at // 1000}.{at % 1000:03d}\n"
        for at, value in zip(one.times[living].tolist(), one.values[living].tolist(), strict=True)
    )


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def number(value: float) -> str:
    """A value as both formats have it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def comma_separated(found: Matrix) -> Iterator[str]:
    """A range query's result: a line for each sample with its time (Unix seconds), a column for each label, and its value."""
    names = sorted({name for row in found.series for name, _ in row.labels})
    yield _row(["time", *names, "value"])
    for row in found.series:
        own = [get(row.labels, name) for name in names]
        for at, value in zip(row.times.tolist(), row.values.tolist(), strict=True):
            yield _row([f"{at // 1000}.{at % 1000:03d}", *own, number(value)])


def _row(fields: Iterable[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(fields)
    return line.getvalue()
