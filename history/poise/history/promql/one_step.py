"""Functions over ranges at a single moment: the same formulas as windows.py, in plain numbers.

Rules ask for one moment of many series, where arrays of length one would cost thirty times what they hold. windows.py stays the definition; a test
holds this file against it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from poise.history.promql.series import Floats, Times
from poise.history.promql.windows import EXTRAPOLATION, exact_mean, exact_sum


@dataclass(slots=True)
class Span:
    """One series within the range: times (milliseconds, rising) and values without stale markers, at least one; the range's edges and length.

    `zero_first` as in windows.py. Nobody changes one; made frozen, which takes four times as long, it would cost as much as most functions.
    """

    times: Times
    values: Floats
    start: int
    end: int
    zero_first: bool

    @property
    def seconds(self) -> float:
        """Length of the range."""
        return (self.end - self.start) / 1000.0


def _grown(values: Floats, counter: bool) -> float:
    grown = float(values[-1]) - float(values[0])
    if counter:
        before = values[:-1]
        fell = values[1:] < before
        if np.count_nonzero(fell):  # a tenth of the time of `any`
            for lost in before[fell].tolist():
                grown += lost
    return grown


def _extrapolated(span: Span, *, counter: bool, per_second: bool) -> float | None:
    samples = len(span.values)
    if samples < 2:
        return None
    grown = _grown(span.values, counter)
    first_time, last_time = int(span.times[0]), int(span.times[-1])
    sampled = (last_time - first_time) / 1000.0
    apart = sampled / (samples - 1)
    threshold = apart * EXTRAPOLATION
    to_start, to_end = (first_time - span.start) / 1000.0, (span.end - last_time) / 1000.0
    first = float(span.values[0])
    to_zero = sampled * (first / grown) if counter and grown > 0 and first >= 0 else math.inf
    if span.zero_first and to_zero < to_start:
        to_start = to_zero
    if not to_start < threshold:
        to_start = apart / 2
    if not span.zero_first and to_zero < to_start:
        to_start = to_zero
    if not to_end < threshold:
        to_end = apart / 2
    factor = (sampled + to_start + to_end) / sampled
    return grown * (factor / span.seconds if per_second else factor)


def _irate(span: Span) -> float | None:
    if len(span.values) < 2:
        return None
    before, last = float(span.values[-2]), float(span.values[-1])
    seconds = (int(span.times[-1]) - int(span.times[-2])) / 1000.0
    return (last if last < before else last - before) / seconds


def _changes(span: Span) -> float:
    before, after = span.values[:-1], span.values[1:]
    return float(np.count_nonzero((before != after) & ~(np.isnan(before) & np.isnan(after))))


#: None: the function has no result for this series.
FUNCTIONS: dict[str, Callable[[Span], float | None]] = {
    "rate": lambda span: _extrapolated(span, counter=True, per_second=True),
    "increase": lambda span: _extrapolated(span, counter=True, per_second=False),
    "delta": lambda span: _extrapolated(span, counter=False, per_second=False),
    "irate": _irate,
    "avg_over_time": lambda span: exact_mean(span.values),
    "sum_over_time": lambda span: exact_sum(span.values),
    "min_over_time": lambda span: float(np.fmin.reduce(span.values)),
    "max_over_time": lambda span: float(np.fmax.reduce(span.values)),
    "count_over_time": lambda span: float(len(span.values)),
    "last_over_time": lambda span: float(span.values[-1]),
    "present_over_time": lambda span: 1.0,
    "changes": _changes,
    "resets": lambda span: float(np.count_nonzero(span.values[1:] < span.values[:-1])),
}
