"""Functions over ranges: rate and its family, and the `…_over_time`. Pure arithmetic over one series' samples at all steps.

The formulas are Prometheus' (promql/functions.go); sums are exact (math.fsum) where it uses compensated summation.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from poise.history.promql.series import Flags, Floats, Times
from poise.history.promql.vectors import Window

#: A range is extrapolated to its edge when the first or last sample is nearer to it than so many mean distances, else by half of one.
EXTRAPOLATION = 1.1

Result = tuple[Floats, Flags]


def counted(window: Window) -> Times:
    """Samples per step."""
    return window.last - window.first


def _at(values: Floats, places: Times) -> Floats:
    """Values at places; places outside are clipped, for steps that are masked anyway."""
    return values[np.clip(places, 0, max(len(values) - 1, 0))]


def _differences(window: Window, counter: bool) -> Floats:
    """Last minus first sample; of a counter, with what it lost at resets added."""
    first, last = _at(window.values, window.first), _at(window.values, window.last - 1)
    with np.errstate(invalid="ignore"):
        grown: Floats = last - first
    if not counter or len(window.values) < 2:
        return grown
    before, after = window.values[:-1], window.values[1:]
    lost = np.where(after < before, before, 0.0)
    if not lost.any():
        return grown
    if np.isfinite(lost).all():
        upto = np.concatenate(([0.0], np.cumsum(lost)))
        result: Floats = grown + (_at(upto, window.last - 1) - _at(upto, window.first))
        return result
    # A reset from infinity would spoil all sums behind it.
    with np.errstate(invalid="ignore"):
        for step in np.flatnonzero(counted(window) > 1):
            grown[step] += lost[window.first[step] : window.last[step] - 1].sum()
    return grown


def _extrapolated(
    window: Window, starts: Times, ends: Times, seconds: float, *, counter: bool, per_second: bool, zero_first: bool
) -> Result:
    """rate, increase and delta. `starts` and `ends` are the edges of each step's range, milliseconds; `seconds` is its length.

    `zero_first`: the order of Prometheus 2, which bounds a counter by its zero before it compares with the threshold; 3 does it after.
    """
    samples = counted(window)
    present = samples >= 2
    grown = _differences(window, counter)
    first_time, last_time = _at_times(window, window.first), _at_times(window, window.last - 1)
    with np.errstate(all="ignore"):
        sampled = (last_time - first_time) / 1000.0
        apart = sampled / (samples - 1)
        threshold = apart * EXTRAPOLATION
        to_start, to_end = (first_time - starts) / 1000.0, (ends - last_time) / 1000.0
        if counter:
            first = _at(window.values, window.first)
            to_zero = np.where((grown > 0) & (first >= 0), sampled * (first / grown), np.inf)
            if zero_first:
                to_start = np.minimum(to_start, to_zero)
            to_start = np.where(to_start < threshold, to_start, apart / 2)
            if not zero_first:
                to_start = np.minimum(to_start, to_zero)
        else:
            to_start = np.where(to_start < threshold, to_start, apart / 2)
        to_end = np.where(to_end < threshold, to_end, apart / 2)
        factor = (sampled + to_start + to_end) / sampled
        if per_second:
            factor = factor / seconds
        return grown * factor, present


def _at_times(window: Window, places: Times) -> Times:
    return window.times[np.clip(places, 0, max(len(window.times) - 1, 0))]


def rate(window: Window, starts: Times, ends: Times, seconds: float, zero_first: bool) -> Result:
    """Increase per second of a counter."""
    return _extrapolated(window, starts, ends, seconds, counter=True, per_second=True, zero_first=zero_first)


def increase(window: Window, starts: Times, ends: Times, seconds: float, zero_first: bool) -> Result:
    """Increase of a counter over the range."""
    return _extrapolated(window, starts, ends, seconds, counter=True, per_second=False, zero_first=zero_first)


def delta(window: Window, starts: Times, ends: Times, seconds: float, zero_first: bool) -> Result:
    """Change of a gauge over the range."""
    return _extrapolated(window, starts, ends, seconds, counter=False, per_second=False, zero_first=zero_first)


def irate(window: Window) -> Result:
    """Increase per second between the last two samples."""
    present = counted(window) >= 2
    last, before = _at(window.values, window.last - 1), _at(window.values, window.last - 2)
    with np.errstate(all="ignore"):
        grown = np.where(last < before, last, last - before)
        seconds = (_at_times(window, window.last - 1) - _at_times(window, window.last - 2)) / 1000.0
        return grown / seconds, present & (seconds > 0)


def _reduced(window: Window, ufunc: np.ufunc) -> Result:
    """A ufunc over each step's samples."""
    present = counted(window) > 0
    values = np.full(len(present), np.nan)
    steps = np.flatnonzero(present)
    if len(steps):
        # Pairs of places; what lies between two pairs is reduced too and thrown away.
        places = np.stack([window.first[steps], window.last[steps]], axis=1).ravel()
        padded = np.concatenate((window.values, [np.nan]))
        values[steps] = ufunc.reduceat(padded, places)[::2]
    return values, present


def exact_sum(values: Floats) -> float:
    """The sum, rounded once; infinities and NaN as IEEE adds them."""
    try:
        return math.fsum(values.tolist())  # a list of floats is summed ten times as fast as an array
    except (OverflowError, ValueError):
        with np.errstate(all="ignore"):
            return float(values.sum())


def exact_mean(values: Floats) -> float:
    """The mean; large finite values do not overflow on the way."""
    total = exact_sum(values)
    if math.isinf(total) and np.isfinite(values).all():
        return exact_sum(values / len(values))
    return total / len(values)


def _per_window(window: Window, function: Callable[[Floats], float]) -> Result:
    present = counted(window) > 0
    values = np.full(len(present), np.nan)
    for step in np.flatnonzero(present):
        values[step] = function(window.values[window.first[step] : window.last[step]])
    return values, present


def _changing(window: Window, flags: Flags) -> Result:
    """How many of the flags, each between two samples in a row, lie within each step's range."""
    present = counted(window) > 0
    upto = np.concatenate(([0], np.cumsum(flags)))
    first = np.clip(window.first, 0, len(upto) - 1)
    last = np.clip(window.last - 1, 0, len(upto) - 1)
    return (upto[last] - upto[first]).astype(np.float64), present


def changes(window: Window) -> Result:
    """How often the value changed; from NaN to NaN is no change."""
    before, after = window.values[:-1], window.values[1:]
    return _changing(window, (before != after) & ~(np.isnan(before) & np.isnan(after)))


def resets(window: Window) -> Result:
    """How often a counter fell."""
    return _changing(window, window.values[1:] < window.values[:-1])


def count_over_time(window: Window) -> Result:
    """Samples in the range."""
    samples = counted(window)
    return samples.astype(np.float64), samples > 0


def last_over_time(window: Window) -> Result:
    """The newest sample of the range."""
    return _at(window.values, window.last - 1), counted(window) > 0


def present_over_time(window: Window) -> Result:
    """1 where there is any sample."""
    present = counted(window) > 0
    return np.ones(len(present)), present


#: The functions that need nothing but the samples. NaN is left out of minimum and maximum unless there is nothing else.
SIMPLE: dict[str, Callable[[Window], Result]] = {
    "irate": irate,
    "avg_over_time": lambda window: _per_window(window, exact_mean),
    "sum_over_time": lambda window: _per_window(window, exact_sum),
    "min_over_time": lambda window: _reduced(window, np.fmin),
    "max_over_time": lambda window: _reduced(window, np.fmax),
    "count_over_time": count_over_time,
    "last_over_time": last_over_time,
    "present_over_time": present_over_time,
    "changes": changes,
    "resets": resets,
}

#: Those that extrapolate to the edges of the range.
EXTRAPOLATING: dict[str, Callable[[Window, Times, Times, float, bool], Result]] = {"rate": rate, "increase": increase, "delta": delta}
