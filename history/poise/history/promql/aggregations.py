"""Aggregations over groups of series, at every step. Pure; the rules are promql/engine.go's aggregation."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from poise.history.promql.errors import ExecutionError
from poise.history.promql.labels import NAME, Labels, only, without
from poise.history.promql.nodes import Aggregation
from poise.history.promql.series import Flags, Floats, at_any
from poise.history.promql.vectors import Vector, distinct

#: Of a single series these give the series.
_ITSELF = frozenset({"sum", "avg", "min", "max"})
#: topk and bottomk of more elements than fit an int64 are refused, as Prometheus does.
_LARGEST_K = 2**63


def aggregate(node: Aggregation, vector: Vector, parameter: Floats | None) -> Vector:
    """The aggregation of a vector; `parameter` per step for topk, bottomk and quantile.

    Raises:
        ExecutionError: k is no number that can be.
    """
    steps = vector.values.shape[1]
    groups: dict[Labels, list[int]] = {}
    part, names = (without, node.labels | {NAME}) if node.without else (only, node.labels)
    for row, own in enumerate(vector.labels):
        groups.setdefault(part(own, names), []).append(row)
    if node.operator in ("topk", "bottomk"):
        assert parameter is not None
        return _highest(vector, groups, parameter, lowest=node.operator == "bottomk")
    rows = []
    for own, members in groups.items():
        if len(members) == 1 and node.operator in _ITSELF:
            rows.append((own, vector.values[members[0]], vector.present[members[0]]))
            continue
        whole = len(members) == len(vector.labels)  # then in their order, and not copied
        values, present = (vector.values, vector.present) if whole else (vector.values[members], vector.present[members])
        if node.operator == "quantile":
            assert parameter is not None
            result = _quantiles(values, present, parameter)
        else:
            result = _REDUCERS[node.operator](values, present)
        rows.append((own, result, at_any(present)))
    return Vector.of(rows, steps)


# ------------------------------------------------------------------------------------------------------------------ reducers
def _count(values: Floats, present: Flags) -> Floats:
    count: Floats = present.sum(axis=0).astype(np.float64)
    return count


def _sum(values: Floats, present: Flags) -> Floats:
    with np.errstate(all="ignore"):
        total: Floats = np.where(present, values, 0.0).sum(axis=0)
    return total


def _mean(values: Floats, present: Flags) -> Floats:
    with np.errstate(all="ignore"):
        count = present.sum(axis=0)
        mean: Floats = _sum(values, present) / count
        overflown = np.isinf(mean) & np.where(present, np.isfinite(values), True).all(axis=0)
        return np.where(overflown, _sum(values / count, present), mean)


def _deviation(values: Floats, present: Flags) -> Floats:
    with np.errstate(all="ignore"):
        around = np.where(present, values - _mean(values, present), 0.0)
        variance: Floats = (around * around).sum(axis=0) / present.sum(axis=0)
        return np.sqrt(variance)


def _smallest(values: Floats, present: Flags) -> Floats:
    smallest: Floats = np.fmin.reduce(np.where(present, values, np.nan), axis=0)
    return smallest


def _largest(values: Floats, present: Flags) -> Floats:
    largest: Floats = np.fmax.reduce(np.where(present, values, np.nan), axis=0)
    return largest


def _ones(values: Floats, present: Flags) -> Floats:
    return np.ones(values.shape[1])


_REDUCERS: dict[str, Callable[[Floats, Flags], Floats]] = {
    "sum": _sum,
    "avg": _mean,
    "min": _smallest,
    "max": _largest,
    "count": _count,
    "stddev": _deviation,
    "group": _ones,
}


# ------------------------------------------------------------------------------------------------------------------ by order
def _quantiles(values: Floats, present: Flags, parameter: Floats) -> Floats:
    result = np.full(values.shape[1], np.nan)
    for step in np.flatnonzero(at_any(present)):
        result[step] = quantile(float(parameter[step]), values[present[:, step], step])
    return result


def quantile(q: float, values: Floats) -> float:
    """The q-quantile of some values, linear between two; NaN counts as the smallest value."""
    if len(values) == 0 or math.isnan(q):
        return math.nan
    if q < 0:
        return -math.inf
    if q > 1:
        return math.inf
    ordered = np.sort(values)  # NaN comes last
    ordered = np.roll(ordered, int(np.isnan(ordered).sum()))
    rank = q * (len(ordered) - 1)
    lower = math.floor(rank)
    upper = min(len(ordered) - 1, lower + 1)
    weight = rank - lower
    with np.errstate(all="ignore"):
        return float(ordered[lower] * (1 - weight) + ordered[upper] * weight)


def _highest(vector: Vector, groups: dict[Labels, list[int]], parameter: Floats, *, lowest: bool) -> Vector:
    """topk and bottomk: the chosen elements with their own labels; of a single step they come in order. NaN is chosen last."""
    _refuse_odd(parameter)
    chosen = np.zeros(vector.present.shape, dtype=bool)
    order: list[int] = []
    for members in groups.values():
        rows = np.array(members)
        for step in range(vector.values.shape[1]):
            here = rows[vector.present[rows, step]]
            k = min(int(parameter[step]), len(here))
            if k < 1:
                continue
            values = vector.values[here, step]
            best = np.argsort(values if lowest else -values, kind="stable")[:k]  # argsort puts NaN last
            chosen[here[best], step] = True
            order.extend(here[best].tolist())
    ranked = list(dict.fromkeys(order))
    return distinct(Vector([vector.labels[row] for row in ranked], vector.values[ranked], chosen[ranked]))


def _refuse_odd(parameter: Floats) -> None:
    for k in parameter.tolist():
        if math.isnan(k) or abs(k) >= _LARGEST_K:
            raise ExecutionError(f"topk and bottomk take a whole number of elements, not {k}")
