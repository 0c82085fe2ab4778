"""The syntax tree that the evaluator walks: plain frozen values, made by compile.py, with everything that is not supported left out.

Durations are whole milliseconds. A node knows its own text, as messages and explanations show it. This file knows no series.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from poise.history.promql.labels import NAME


class Pattern(Protocol):
    """A compiled regular expression that matches whole values."""

    def fullmatch(self, text: str) -> object | None: ...


class Type(StrEnum):
    """The type of an expression, in Prometheus' words."""

    SCALAR = "scalar"
    VECTOR = "instant vector"
    MATRIX = "range vector"
    STRING = "string"


class MatchOperator(StrEnum):
    """How a matcher compares."""

    EQUAL = "="
    NOT_EQUAL = "!="
    MATCHES = "=~"
    NOT_MATCHES = "!~"


@dataclass(frozen=True, slots=True)
class Matcher:
    """A condition on one label. `pattern` is there for the two regular expression operators."""

    name: str
    operator: MatchOperator
    value: str
    pattern: Pattern | None = None

    def holds(self, value: str) -> bool:
        """Whether a label with this value ("" for a missing one) fits."""
        match self.operator:
            case MatchOperator.EQUAL:
                return value == self.value
            case MatchOperator.NOT_EQUAL:
                return value != self.value
        assert self.pattern is not None
        return (self.pattern.fullmatch(value) is not None) is (self.operator is MatchOperator.MATCHES)


@dataclass(frozen=True, slots=True)
class Number:
    """A number."""

    value: float
    text: str


@dataclass(frozen=True, slots=True)
class String:
    """A string, which only functions take."""

    value: str
    text: str


@dataclass(frozen=True, slots=True)
class Selector:
    """The newest sample of each series that fits; `offset` in milliseconds looks back (negative: ahead)."""

    matchers: tuple[Matcher, ...]
    offset: int
    text: str

    @property
    def name(self) -> str | None:
        """The metric's name, when the selector asks for one."""
        return next((m.value for m in self.matchers if m.name == NAME and m.operator is MatchOperator.EQUAL), None)


@dataclass(frozen=True, slots=True)
class Range:
    """The samples of a selector over the last `window` milliseconds."""

    selector: Selector
    window: int
    text: str


@dataclass(frozen=True, slots=True)
class Subquery:
    """An expression at each `step` (milliseconds; None: the engine's default) of the last `window`, `offset` ago."""

    inner: Node
    window: int
    step: int | None
    offset: int
    text: str


@dataclass(frozen=True, slots=True)
class Negation:
    """Unary minus."""

    inner: Node
    text: str


@dataclass(frozen=True, slots=True)
class Matching:
    """Which labels pair two vectors: `on` (else ignoring) `labels`; `many` is the side that may have several, `include` is taken from the other."""

    on: bool = False
    labels: frozenset[str] = frozenset()
    many: str = ""  # "", "left", "right"
    include: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Binary:
    """Two expressions and an operator; `returns_bool`: comparisons give 0 and 1 instead of keeping or dropping."""

    operator: str
    left: Node
    right: Node
    matching: Matching
    returns_bool: bool
    text: str


@dataclass(frozen=True, slots=True)
class Aggregation:
    """An operator over groups of series: by `labels`, or by all `without` those."""

    operator: str
    inner: Node
    parameter: Node | None
    without: bool
    labels: frozenset[str]
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A function with its arguments."""

    function: str
    arguments: tuple[Node, ...]
    text: str


Node = Number | String | Selector | Range | Subquery | Negation | Binary | Aggregation | Call


def children(node: Node) -> tuple[Node, ...]:
    """The parts of a node that are nodes themselves, as they are written."""
    match node:
        case Binary():
            return (node.left, node.right)
        case Aggregation():
            return (node.inner,) if node.parameter is None else (node.parameter, node.inner)
        case Negation() | Subquery():
            return (node.inner,)
        case Range():
            return (node.selector,)
        case Call():
            return node.arguments
    return ()


def selectors(node: Node) -> list[Selector]:
    """Every selector in a node, as they are written."""
    if isinstance(node, Selector):
        return [node]
    return [found for child in children(node) for found in selectors(child)]


_SCALAR_FUNCTIONS = frozenset({"scalar", "time"})


def type_of(node: Node) -> Type:
    """The type of an expression's value."""
    match node:
        case Number():
            return Type.SCALAR
        case String():
            return Type.STRING
        case Range() | Subquery():
            return Type.MATRIX
        case Negation():
            return type_of(node.inner)
        case Binary():
            return Type.SCALAR if type_of(node.left) is Type.SCALAR and type_of(node.right) is Type.SCALAR else Type.VECTOR
        case Call():
            return Type.SCALAR if node.function in _SCALAR_FUNCTIONS else Type.VECTOR
    return Type.VECTOR
