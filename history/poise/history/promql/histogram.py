"""histogram_quantile over classic buckets, at every step. Pure; the rules are promql/quantile.go's bucketQuantile."""

from __future__ import annotations

import math

import numpy as np
from poise.history.promql.labels import NAME, Labels, get, without
from poise.history.promql.series import Floats, at_any
from poise.history.promql.vectors import Vector

_NOT_OF_HISTOGRAM = frozenset({"le", NAME})


def histogram_quantile(q: Floats, vector: Vector) -> Vector:
    """The quantiles (`q` per step) of each histogram in the vector: rows with the same labels but `le` are one. A row without a number as `le` is left out."""
    steps = vector.values.shape[1]
    groups: dict[Labels, list[tuple[float, int]]] = {}
    for row, own in enumerate(vector.labels):
        try:
            bound = float(get(own, "le").replace("_", " "))  # Python would take 1_000
        except ValueError:
            continue
        groups.setdefault(without(own, _NOT_OF_HISTOGRAM), []).append((bound, row))
    rows = []
    for own, buckets in groups.items():
        buckets.sort(key=lambda bucket: bucket[0])
        bounds = np.array([bound for bound, _ in buckets])
        places = [row for _, row in buckets]
        values, present = vector.values[places], vector.present[places]
        some = at_any(present)
        result = np.full(steps, np.nan)
        for step in np.flatnonzero(some):
            here = present[:, step]
            result[step] = bucket_quantile(float(q[step]), bounds[here], values[here, step])
        rows.append((own, result, some))
    return Vector.of(rows, steps)


def bucket_quantile(q: float, bounds: Floats, counts: Floats) -> float:
    """The q-quantile from sorted upper bounds and cumulative counts; NaN without an open bucket, without a second one, or without observations.

    Linear within a bucket, the lowest from 0 on when its bound is positive; in the open bucket the last finite bound.
    """
    if math.isnan(q):
        return math.nan
    if q < 0:
        return -math.inf
    if q > 1:
        return math.inf
    if bounds[-1] != math.inf:
        return math.nan
    uppers, totals = _coalesced(bounds, counts)
    if len(uppers) < 2:
        return math.nan
    observations = totals[-1]
    if observations == 0 or math.isnan(observations):
        return math.nan
    rank = q * observations
    place = next((index for index, total in enumerate(totals[:-1]) if total >= rank), len(totals) - 1)
    if place == len(totals) - 1:
        return uppers[-2]
    if place == 0 and uppers[0] <= 0:
        return uppers[0]
    start, count = 0.0, totals[place]
    if place > 0:
        start = uppers[place - 1]
        count -= totals[place - 1]
        rank -= totals[place - 1]
    with np.errstate(all="ignore"):
        return float(start + (uppers[place] - start) * np.float64(rank) / np.float64(count))


def _coalesced(bounds: Floats, counts: Floats) -> tuple[list[float], list[float]]:
    """Buckets with one bound are added up ("1" and "1.0"), and counts never fall."""
    uppers: list[float] = []
    totals: list[float] = []
    for bound, count in zip(bounds.tolist(), counts.tolist(), strict=True):
        if uppers and bound == uppers[-1]:
            totals[-1] += count
        else:
            uppers.append(bound)
            totals.append(count)
    highest = totals[0]
    for place, total in enumerate(totals):
        if total > highest:
            highest = total
        elif total < highest:
            totals[place] = highest
    return uppers, totals
