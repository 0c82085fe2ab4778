"""What a rule needs to be able to say anything: series that exist, windows that hold samples, and history that reaches far enough back.

A rule that is quiet because its input is missing is no healthy rule. Missing is judged by the names of series alone: that no engine of role decode is
there is an answer, that no series of this name is there is none. Pure over syntax trees; the store is asked through functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from poise.history.promql.nodes import Binary, Call, Node, Range, Selector, Subquery, children

#: A selector finds samples of so many milliseconds back (Prometheus' --query.lookback-delta).
LOOKBACK = 300_000
#: These say something about a series that is not there.
_ABSENCE = frozenset({"absent", "absent_over_time"})

#: These take two samples or say nothing.
_OF_TWO = frozenset({"rate", "irate", "increase", "delta"})
#: Windows that are longer hold two samples of whatever is scraped once a minute; shorter ones are looked at (milliseconds).
_SHORT = 150_000

Recordings = Mapping[str, Node]
#: Whether a selector's name has a sample within so many milliseconds before now.
Present = Callable[[str, int], bool]
#: How far apart the samples of a selector come now (milliseconds), None where that is not known.
Apart = Callable[[Selector], int | None]


class Readiness(StrEnum):
    """Whether a rule can be believed when it is quiet."""

    READY = "ready"
    INPUT_MISSING = "input_missing"
    INSUFFICIENT_HISTORY = "insufficient_history"
    WINDOW_TOO_SHORT = "window_too_short"


@dataclass(frozen=True, slots=True)
class Needs:
    """What a rule lacks: names of series, milliseconds of history (`reaches` back over `there`), or the `missing` in a window of `reaches`
    milliseconds whose samples come only every `there`."""

    readiness: Readiness
    missing: tuple[str, ...] = ()
    reaches: int = 0
    there: int = 0

    @property
    def sentence(self) -> str:
        """For a person; empty when it lacks nothing."""
        match self.readiness:
            case Readiness.INPUT_MISSING:
                return f"input missing: no series {', '.join(self.missing)}"
            case Readiness.INSUFFICIENT_HISTORY:
                return f"insufficient history: {_words(self.there)} of {_words(self.reaches)}"
            case Readiness.WINDOW_TOO_SHORT:
                return f"window too short: {_words(self.reaches)} over {self.missing[0]}, whose samples come every {_words(self.there)}"
        return ""


def needs(node: Node, recordings: Recordings, present: Present, there: int, apart: Apart = lambda _: None) -> Needs:
    """What the rule of this expression lacks. `recordings` are the expressions of recorded names: what they need, the rule needs; `there` is how
    many milliseconds of history the store has."""
    missing = tuple(dict.fromkeys(_missing(node, recordings, present, 0, frozenset())))
    if missing:
        return Needs(Readiness.INPUT_MISSING, missing)
    for window, name, distance in _too_short(node, apart):
        return Needs(Readiness.WINDOW_TOO_SHORT, (name,), window, distance)
    reaches = reach(node, recordings)
    if reaches > there:
        return Needs(Readiness.INSUFFICIENT_HISTORY, (), reaches, there)
    return Needs(Readiness.READY)


def reach(node: Node, recordings: Recordings, seen: frozenset[str] = frozenset()) -> int:
    """How many milliseconds back an expression looks, through what it records from; a plain selector looks back 0."""
    match node:
        case Selector():
            name = node.name
            recorded = name is not None and name in recordings and name not in seen
            return max(0, node.offset) + (reach(recordings[name], recordings, seen | {name}) if name is not None and recorded else 0)
        case Range():
            return node.window + reach(node.selector, recordings, seen)
        case Subquery():
            return node.window + max(0, node.offset) + reach(node.inner, recordings, seen)
    return max((reach(child, recordings, seen) for child in children(node)), default=0)


def _missing(node: Node, recordings: Recordings, present: Present, back: int, seen: frozenset[str]) -> list[str]:
    """The names without which this part is empty; nothing for a part that says something without them. `back` is how far around it looks."""
    match node:
        case Selector():
            name = node.name
            if name is None:
                return []
            if name in seen:  # a recording that reads itself gives nothing to begin with
                return [name]
            if name in recordings:
                return _missing(recordings[name], recordings, present, back + max(0, node.offset), seen | {name})
            return [] if present(name, back + max(0, node.offset) + LOOKBACK) else [name]
        case Range():
            return _missing(node.selector, recordings, present, back + node.window, seen)
        case Subquery():
            return _missing(node.inner, recordings, present, back + node.window + max(0, node.offset), seen)
        case Binary(operator="or"):
            left = _missing(node.left, recordings, present, back, seen)
            right = _missing(node.right, recordings, present, back, seen)
            return left + right if left and right else []
        case Binary(operator="unless"):
            return _missing(node.left, recordings, present, back, seen)
        case Call() if node.function in _ABSENCE:
            return []
    return [name for child in children(node) for name in _missing(child, recordings, present, back, seen)]


def _too_short(node: Node, apart: Apart) -> Iterator[tuple[int, str, int]]:
    """The windows that mostly hold too few samples: how long each is, over what, and how far apart its samples come."""
    match node:
        case Call(arguments=(Range() as range_, *_)) if range_.window < _SHORT and node.function not in _ABSENCE:
            distance = apart(range_.selector)
            if distance is not None and range_.window < distance * (2 if node.function in _OF_TWO else 1):
                yield range_.window, range_.selector.name or range_.selector.text, distance
    for child in children(node):
        yield from _too_short(child, apart)


def _words(milliseconds: int) -> str:
    seconds = milliseconds / 1000
    for width, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= width:
            return f"{seconds / width:.3g} {unit}"
    return f"{seconds:.3g} s"
