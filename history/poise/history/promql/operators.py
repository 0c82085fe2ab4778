"""Binary operators: arithmetic, comparison, sets, and how two vectors are paired. Pure; the rules are promql/engine.go's VectorBinop.

Whether a pairing is ambiguous is judged step by step, as if each step were a query of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from poise.history.promql.errors import ExecutionError
from poise.history.promql.labels import NAME, Labels, changed, drop_name, get, only, text, without
from poise.history.promql.nodes import Matching
from poise.history.promql.series import Flags, Floats, at_any
from poise.history.promql.vectors import Vector, distinct

_ARITHMETIC: dict[str, Callable[[Floats, Floats], Floats]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": np.power,
}
_COMPARISONS: dict[str, Callable[[Floats, Floats], Flags]] = {
    "==": np.equal,
    "!=": np.not_equal,
    ">": np.greater,
    "<": np.less,
    ">=": np.greater_equal,
    "<=": np.less_equal,
}


def scalars(operator: str, left: Floats, right: Floats) -> Floats:
    """Two numbers per step; comparisons give 0 and 1 (the parser insists on `bool`)."""
    with np.errstate(all="ignore"):
        if operator in _COMPARISONS:
            return _COMPARISONS[operator](left, right).astype(np.float64)
        return _ARITHMETIC[operator](left, right)


def _applied(operator: str, left: Floats, right: Floats, returns_bool: bool, kept: Floats) -> tuple[Floats, Flags]:
    """Values, and which of them stay; a comparison without `bool` keeps `kept` where it holds."""
    with np.errstate(all="ignore"):
        if operator in _ARITHMETIC:
            values = _ARITHMETIC[operator](left, right)
            return values, np.ones(values.shape, dtype=bool)
        holds = _COMPARISONS[operator](left, right)
    if returns_bool:
        return holds.astype(np.float64), np.ones(holds.shape, dtype=bool)
    return kept if kept.shape == holds.shape else np.broadcast_to(kept, holds.shape).copy(), holds


def vector_with_scalar(operator: str, vector: Vector, scalar: Floats, *, scalar_left: bool, returns_bool: bool) -> Vector:
    """Each element with the number of its step; a comparison that only keeps always keeps the vector's value."""
    left, right = (scalar, vector.values) if scalar_left else (vector.values, scalar)
    values, holds = _applied(operator, left, right, returns_bool, vector.values)
    nameless = operator in _ARITHMETIC or returns_bool
    labels = [drop_name(own) for own in vector.labels] if nameless else vector.labels
    return distinct(Vector(labels, values, vector.present & holds)).without_absent_rows()


# ------------------------------------------------------------------------------------------------------------------ pairing
def _signatures(vector: Vector, matching: Matching) -> list[Labels]:
    part, names = (only, matching.labels) if matching.on else (without, matching.labels | {NAME})
    return [part(own, names) for own in vector.labels]


def _by_signature(vector: Vector, matching: Matching) -> dict[Labels, list[int]]:
    groups: dict[Labels, list[int]] = {}
    for row, signature in enumerate(_signatures(vector, matching)):
        groups.setdefault(signature, []).append(row)
    return groups


def vectors(operator: str, left: Vector, right: Vector, matching: Matching, returns_bool: bool) -> Vector:
    """Arithmetic or comparison of two vectors, one to one or many to one.

    Raises:
        ExecutionError: more series than one on a side that must have one.
    """
    steps = left.values.shape[1]
    if not left.labels or not right.labels:
        return Vector.empty(steps)
    many, one = (right, left) if matching.many == "right" else (left, right)
    groups = _by_signature(one, matching)
    _refuse_several(one, many, groups, "left" if matching.many == "right" else "right")
    pairs = [(row, other, signature) for row, signature in enumerate(_signatures(many, matching)) for other in groups.get(signature, ())]
    if not pairs:
        return Vector.empty(steps)
    many_rows, one_rows = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    (many_values, many_present), (one_values, one_present) = _rows(many, many_rows), _rows(one, one_rows)
    first, second = (one_values, many_values) if matching.many == "right" else (many_values, one_values)
    values, holds = _applied(operator, first, second, returns_bool, first)
    present = many_present & one_present & holds
    labels = [_result_labels(operator, many.labels[row], one.labels[other], matching, returns_bool) for row, other, _ in pairs]
    _refuse_ambiguous(labels, present, [pair[2] for pair in pairs], matching)
    return distinct(Vector(labels, values, present)).without_absent_rows()


def _rows(vector: Vector, rows: list[int]) -> tuple[Floats, Flags]:
    """Some rows; the vector's own arrays, not copies, where these are all of them in their order, as is usual."""
    if len(rows) == len(vector.labels) and rows == list(range(len(rows))):
        return vector.values, vector.present
    return vector.values[rows], vector.present[rows]


def _refuse_several(one: Vector, many: Vector, groups: dict[Labels, list[int]], side: str) -> None:
    asked = at_any(many.present)
    for signature, rows in groups.items():
        if len(rows) > 1:
            here = one.present[rows]
            clashes = np.flatnonzero((here.sum(axis=0) > 1) & asked)
            if len(clashes):
                names = [text(one.labels[row]) for row, is_here in zip(rows, here[:, clashes[0]], strict=True) if is_here]
                raise ExecutionError(
                    f"found duplicate series for the match group {text(signature)} on the {side} hand-side of the operation: "
                    f"[{', '.join(names[:2])}]; many-to-many matching not allowed: matching labels must be unique on one side"
                )


def _refuse_ambiguous(labels: Sequence[Labels], present: Flags, signatures: Sequence[Labels], matching: Matching) -> None:
    keys: Sequence[object] = list(zip(signatures, labels, strict=True)) if matching.many else signatures
    if len(set(keys)) == len(keys):
        return
    groups: dict[object, list[int]] = {}
    for place, key in enumerate(keys):
        groups.setdefault(key, []).append(place)
    for places in groups.values():
        if len(places) > 1 and (present[places].sum(axis=0) > 1).any():
            if matching.many:
                raise ExecutionError("multiple matches for labels: grouping labels must ensure unique matches")
            raise ExecutionError("multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)")


def _result_labels(operator: str, many: Labels, one: Labels, matching: Matching, returns_bool: bool) -> Labels:
    own = drop_name(many) if operator in _ARITHMETIC or returns_bool else many
    if not matching.many:
        return only(own, matching.labels) if matching.on else without(own, matching.labels)
    return changed(own, [(name, get(one, name)) for name in matching.include]) if matching.include else own


# --------------------------------------------------------------------------------------------------------------------- sets
def sets(operator: str, left: Vector, right: Vector, matching: Matching) -> Vector:
    """and, or, unless: elements with or without a counterpart; their labels and values stay."""
    if operator == "or":
        extra = _masked(right, left, matching, False)
        if not extra.labels or not left.labels:
            return left if not extra.labels else extra
        joined = Vector(
            [*left.labels, *extra.labels], np.concatenate((left.values, extra.values)), np.concatenate((left.present, extra.present))
        )
        return distinct(joined)
    return _masked(left, right, matching, operator == "and")


def _masked(vector: Vector, other: Vector, matching: Matching, wanted: bool) -> Vector:
    """The elements that have (`wanted`) or lack a counterpart in `other` at their step."""
    if not vector.labels:
        return vector
    nowhere = np.zeros(vector.values.shape[1], dtype=bool)
    found = {signature: at_any(other.present[rows]) for signature, rows in _by_signature(other, matching).items()}
    masks = [found.get(signature, nowhere) for signature in _signatures(vector, matching)]
    there = np.stack(masks)
    return Vector(vector.labels, vector.values, vector.present & (there if wanted else ~there)).without_absent_rows()
