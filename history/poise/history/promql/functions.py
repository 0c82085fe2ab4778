"""Functions over instant vectors: rounding, clamping, label changes, absence, order. Pure.

Sources: promql/functions.go of Prometheus; the expansion of `$1` is Go's regexp.Expand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from poise.history.promql.compile import compile_pattern
from poise.history.promql.errors import ExecutionError
from poise.history.promql.labels import NAME, Labels, changed, drop_name, get, labels
from poise.history.promql.limits import MOST_LABELS, Budget
from poise.history.promql.nodes import MatchOperator, Node, Range, Selector
from poise.history.promql.series import Flags, Floats
from poise.history.promql.vectors import Vector, distinct

_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_REFERENCE = re.compile(r"\$(?:\$|(\w+)|\{(\w+)\})", re.ASCII)
#: Digits of a group's number; RE2 has no pattern with so many groups.
_GROUP_DIGITS = 6


def nameless(vector: Vector, values: Floats, present: Flags | None = None) -> Vector:
    """Other values under the same labels without the metric's name."""
    kept = vector.present if present is None else present
    return distinct(Vector([drop_name(own) for own in vector.labels], values, kept)).without_absent_rows()


# --------------------------------------------------------------------------------------------------------------- arithmetic
_ELEMENTWISE: dict[str, Callable[[Floats], Floats]] = {"abs": np.abs, "ceil": np.ceil, "floor": np.floor}


def elementwise(function: str, vector: Vector) -> Vector:
    """abs, ceil, floor."""
    with np.errstate(invalid="ignore"):
        return nameless(vector, _ELEMENTWISE[function](vector.values))


def rounded(vector: Vector, nearest: Floats | None) -> Vector:
    """To the nearest multiple of `nearest` (1 when None), halves up."""
    with np.errstate(all="ignore"):
        # Prometheus multiplies by the inverse, which decides on which side of a half a number is.
        inverse = 1.0 / (np.ones(vector.values.shape[1]) if nearest is None else nearest)
        return nameless(vector, np.floor(vector.values * inverse + 0.5) / inverse)


def clamped(vector: Vector, low: Floats, high: Floats) -> Vector:
    """Between two numbers per step; nothing at steps where the lower is higher than the upper."""
    values = _maximum(low, _minimum(high, vector.values))
    return nameless(vector, values, vector.present & ~(high < low))


def clamped_below(vector: Vector, low: Floats) -> Vector:
    """Not below a number per step."""
    return nameless(vector, _maximum(low, vector.values))


def clamped_above(vector: Vector, high: Floats) -> Vector:
    """Not above a number per step."""
    return nameless(vector, _minimum(high, vector.values))


def _maximum(first: Floats, second: Floats) -> Floats:
    """Go's math.Max: infinity wins over NaN."""
    result: Floats = np.where((first == np.inf) | (second == np.inf), np.inf, np.maximum(first, second))
    return result


def _minimum(first: Floats, second: Floats) -> Floats:
    """Go's math.Min: negative infinity wins over NaN."""
    result: Floats = np.where((first == -np.inf) | (second == -np.inf), -np.inf, np.minimum(first, second))
    return result


# -------------------------------------------------------------------------------------------------------------------- shape
def scalar_of(vector: Vector) -> Floats:
    """The value of the only element at each step, NaN where there is none or several."""
    result = np.full(vector.values.shape[1], np.nan)
    for step in np.flatnonzero(vector.present.sum(axis=0) == 1):
        result[step] = vector.values[vector.present[:, step], step][0]
    return result


def absent(argument: Node, present: Flags) -> Vector:
    """1 at the steps where nothing is present, with the labels that the selector asks for by equality."""
    gone = ~present
    return Vector.of([(_asked_for(argument), np.ones(len(gone)), gone)], len(gone))


def _asked_for(argument: Node) -> Labels:
    selector = argument.selector if isinstance(argument, Range) else argument
    if not isinstance(selector, Selector):
        return ()
    asked: dict[str, str] = {}
    unclear: set[str] = set()
    for matcher in selector.matchers:
        if matcher.name == NAME:
            continue
        if matcher.operator is MatchOperator.EQUAL and matcher.name not in asked:
            asked[matcher.name] = matcher.value
        else:
            unclear.add(matcher.name)
    return labels({name: value for name, value in asked.items() if name not in unclear})


def ordered(vector: Vector, *, descending: bool) -> Vector:
    """By value, for a single step; NaN last. Over several steps there is no order."""
    if vector.values.shape[1] != 1 or not vector.labels:
        return vector
    values = vector.values[:, 0]
    order = np.argsort(-values if descending else values, kind="stable")
    return Vector([vector.labels[row] for row in order], vector.values[order], vector.present[order])


# ------------------------------------------------------------------------------------------------------------------- labels
def label_replace(vector: Vector, budget: Budget, target: str, replacement: str, source: str, pattern_text: str) -> Vector:
    """Sets `target` to the replacement where the whole value of `source` matches.

    Raises:
        BadQuery: the pattern is none.
        ExecutionError: the target is no label name, or what is made is too long.
        QueryTimeout: it took too long.
    """
    pattern = compile_pattern(pattern_text)
    _check_label(target, "label_replace")
    parts = _parts(replacement)
    result = []
    for own in vector.labels:
        found = pattern.fullmatch(get(own, source))
        if found is None:
            budget.check_time()
            result.append(own)
        else:
            result.append(_with(own, target, [_filled(part, found) for part in parts], "", budget))
    return distinct(Vector(result, vector.values, vector.present))


@dataclass(frozen=True, slots=True)
class _Group:
    """A reference to what a group of the pattern found, by number or name."""

    key: int | str


def _parts(template: str) -> list[str | _Group]:
    """A template with $1, $name, ${name} and $$, taken apart."""
    parts: list[str | _Group] = []
    position = 0
    for reference in _REFERENCE.finditer(template):
        parts.append(template[position : reference.start()])
        name = reference[1] or reference[2]
        if name is None:
            parts.append("$")
        elif not name.isdecimal():
            parts.append(_Group(name))
        elif len(name) <= _GROUP_DIGITS:
            parts.append(_Group(int(name)))
        position = reference.end()
    return [part for part in (*parts, template[position:]) if part != ""]


def _filled(part: str | _Group, found: object) -> str:
    """A part with what was found; a group that is not there is empty."""
    if isinstance(part, str):
        return part
    try:
        return found[part.key] or ""  # type: ignore[index]  # a match of re2, which has no types
    except (IndexError, KeyError):
        return ""


def label_join(vector: Vector, budget: Budget, target: str, separator: str, sources: Sequence[str]) -> Vector:
    """Sets `target` to the values of the source labels with the separator between them.

    Raises:
        ExecutionError: a name is no label name, or what is made is too long.
        QueryTimeout: it took too long.
    """
    for name in (target, *sources):
        _check_label(name, "label_join")
    joined = [_with(own, target, [get(own, source) for source in sources], separator, budget) for own in vector.labels]
    return distinct(Vector(joined, vector.values, vector.present))


def _with(own: Labels, target: str, parts: Sequence[str], separator: str, budget: Budget) -> Labels:
    """The labels with one made of parts; how long that gets is known before it is made."""
    budget.take_label(sum(map(len, parts)) + len(separator) * max(len(parts) - 1, 0))
    result = changed(own, [(target, separator.join(parts))])
    if len(result) > max(len(own), MOST_LABELS):
        raise ExecutionError(f"the query makes series of more than {MOST_LABELS} labels")
    return result


def _check_label(name: str, function: str) -> None:
    if not _LABEL_NAME.fullmatch(name):
        raise ExecutionError(f"invalid label name in {function}(): {name!r}")
