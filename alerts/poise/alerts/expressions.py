"""PromQL expressions: parsed, and taken apart by the kinds of node that others ask for. The only file that knows the parser's node types.

The parser (history: promql/parse.py) prints durations in whole seconds, so nothing here makes shorter ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import timedelta

import promql_parser as promql
from poise.history.promql.errors import BadQuery
from poise.history.promql.parse import parse as parse_query

#: Operators that keep or drop a series by the relation of two numbers.
COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})

#: The shortest range selector that scaling makes, in seconds: a rate needs two samples, and testbeds scrape every second.
SHORTEST_RANGE = 2


class ExpressionError(ValueError):
    """An expression that does not parse; the text is the parser's, with the place where that is known."""


def parse(text: str) -> promql.Expr:
    """The expression as a tree. Raises ExpressionError."""
    try:
        return parse_query(text)
    except BadQuery as error:
        raise ExpressionError(str(error)) from None


def children(node: promql.Expr) -> tuple[promql.Expr, ...]:
    """The parts that are expressions themselves, left to right."""
    match node:
        case promql.BinaryExpr():
            return (node.lhs, node.rhs)
        case promql.AggregateExpr():
            return (node.expr,) if node.param is None else (node.param, node.expr)
        case promql.UnaryExpr() | promql.ParenExpr() | promql.SubqueryExpr():
            return (node.expr,)
        case promql.Call():
            return tuple(node.args)
        case promql.MatrixSelector():
            return (node.vector_selector,)
    return ()


def walk(node: promql.Expr) -> Iterator[promql.Expr]:
    """The node and everything in it, outermost first."""
    yield node
    for child in children(node):
        yield from walk(child)


def series_name(selector: promql.VectorSelector) -> str | None:
    """The name that a selector asks for, also when it is written as {__name__="…"}; None when it asks for several."""
    if selector.name is not None:
        return str(selector.name)
    for matcher in selector.matchers.matchers:
        if matcher.name == "__name__" and matcher.op == promql.MatchOp.Equal:
            return str(matcher.value)
    return None


def selected_names(node: promql.Expr) -> frozenset[str]:
    """The names of all series that the expression reads."""
    selectors = (part for part in walk(node) if isinstance(part, promql.VectorSelector))
    return frozenset(name for name in map(series_name, selectors) if name)


# ------------------------------------------------------------------------------------------------------------------ scaling
def scale(text: str, factor: float, shortest_range: int = SHORTEST_RANGE) -> str:
    """The expression with its time multiplied by `factor`: ranges, offsets, subqueries, and numbers that an age is compared with.

    An age is `time() - …`. Results are whole seconds, rounded up; ranges and subqueries not below `shortest_range`. Everything else stays,
    so rates keep their thresholds; a threshold on `increase` would not keep its meaning. Raises ExpressionError.
    """

    def scaled(node: promql.Expr) -> promql.Expr | None:
        # Children come first: a range selector's own offset has been scaled with the selector inside it.
        match node:
            case promql.VectorSelector() if node.offset is not None:
                node.offset = _scaled(node.offset, factor, 1)
                return promql.parse(str(node))
            case promql.MatrixSelector():
                node.range = _scaled(node.range, factor, shortest_range)
                return promql.parse(str(node))
            case promql.SubqueryExpr():
                return promql.parse(_scaled_subquery(node, factor, shortest_range))
            case promql.BinaryExpr() if str(node.op) in COMPARISONS:
                return _scaled_comparison(node, factor)
        return None

    return str(promql.transform(parse(text), None, scaled).prettify())


def _scaled(duration: timedelta, factor: float, shortest: int) -> timedelta:
    """At least `shortest` whole seconds; the sign of an offset is kept."""
    seconds = duration.total_seconds()
    whole = max(shortest, math.ceil(round(abs(seconds) * factor, 6)))
    return timedelta(seconds=math.copysign(whole, seconds) if seconds else 0)


def _scaled_subquery(node: promql.SubqueryExpr, factor: float, shortest: int) -> str:
    assert node.range is not None  # the grammar has no subquery without one
    window = _seconds(_scaled(node.range, factor, shortest))
    step = _seconds(_scaled(node.step, factor, 1)) if node.step is not None else ""
    offset = f" offset {_seconds(_scaled(node.offset, factor, 1))}" if node.offset is not None else ""
    return f"{node.expr}[{window}:{step}]{_at(node.at)}{offset}"


def _at(modifier: promql.AtModifier | None) -> str:
    match modifier:
        case None:
            return ""
        case promql.AtModifier(type=promql.AtModifierType.Start):
            return " @ start()"
        case promql.AtModifier(type=promql.AtModifierType.End):
            return " @ end()"
    assert modifier.at is not None  # the third kind carries a moment
    return f" @ {modifier.at.timestamp()!r}"


def _seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():.0f}s"


def _scaled_comparison(node: promql.BinaryExpr, factor: float) -> promql.Expr | None:
    left, right = (_is_age(side) for side in (node.lhs, node.rhs))
    if left and isinstance(node.rhs, promql.NumberLiteral):
        return _with_sides(node, str(node.lhs), _scaled_number(node.rhs, factor))
    if right and isinstance(node.lhs, promql.NumberLiteral):
        return _with_sides(node, _scaled_number(node.lhs, factor), str(node.rhs))
    return None


def _with_sides(node: promql.BinaryExpr, left: str, right: str) -> promql.Expr:
    # One side is a number, so the operator can carry nothing but `bool`.
    modifier = " bool" if node.modifier is not None and node.modifier.return_bool else ""
    return promql.parse(f"{left} {node.op}{modifier} {right}")


def _scaled_number(literal: promql.NumberLiteral, factor: float) -> str:
    return repr(literal.val * factor)


def _is_age(node: promql.Expr) -> bool:
    """Whether the value of this part is `time() - …`."""
    match node:
        case promql.ParenExpr():
            return _is_age(node.expr)
        case promql.BinaryExpr() if str(node.op) == "-":
            return isinstance(node.lhs, promql.Call) and node.lhs.func.name == "time"
    return False
