"""Text to syntax tree: parsed and typed (parse.py), and then reduced to what the evaluator has; the rest is refused by name.

The only file of the engine that knows the parser's node types.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import cast

import promql_parser as promql
import re2
from poise.history.promql.errors import BadQuery, Unsupported
from poise.history.promql.labels import NAME
from poise.history.promql.nodes import (
    Aggregation,
    Binary,
    Call,
    Matcher,
    Matching,
    MatchOperator,
    Negation,
    Node,
    Number,
    Pattern,
    Range,
    Selector,
    String,
    Subquery,
)
from poise.history.promql.parse import parse

#: Memory that the automaton of one regular expression may take, in bytes (RE2's max_mem; its own default is 8 MiB).
_PATTERN_MEMORY = 1 << 20

RANGE_FUNCTIONS = frozenset(
    {
        "rate",
        "irate",
        "increase",
        "delta",
        "avg_over_time",
        "min_over_time",
        "max_over_time",
        "sum_over_time",
        "count_over_time",
        "last_over_time",
        "present_over_time",
        "changes",
        "resets",
        "absent_over_time",
    }
)
OTHER_FUNCTIONS = frozenset(
    {
        "histogram_quantile",
        "absent",
        "label_replace",
        "label_join",
        "round",
        "clamp",
        "clamp_min",
        "clamp_max",
        "abs",
        "ceil",
        "floor",
        "scalar",
        "vector",
        "time",
        "timestamp",
        "sort",
        "sort_desc",
    }
)
FUNCTIONS = RANGE_FUNCTIONS | OTHER_FUNCTIONS
AGGREGATIONS = frozenset({"sum", "avg", "min", "max", "count", "stddev", "group", "topk", "bottomk", "quantile"})
ARITHMETIC = frozenset({"+", "-", "*", "/", "%", "^"})
COMPARISONS = frozenset({"==", "!=", ">", "<", ">=", "<="})
SET_OPERATORS = frozenset({"and", "or", "unless"})

_STRING_OR_EMPTY = re.compile(r""""(?:[^"\\]|\\.)*"|(?<=\w)\{\}""", re.DOTALL)

_MATCH_OPERATORS = (
    (promql.MatchOp.Equal, MatchOperator.EQUAL),
    (promql.MatchOp.NotEqual, MatchOperator.NOT_EQUAL),
    (promql.MatchOp.Re, MatchOperator.MATCHES),
    (promql.MatchOp.NotRe, MatchOperator.NOT_MATCHES),
)


def compile_query(text: str) -> Node:
    """The tree of a query.

    Raises:
        BadQuery: the text is no PromQL; the message names the place where that is known.
        Unsupported: it is, and uses something that this engine does not have.
    """
    return _node(parse(text))


def _milliseconds(duration: timedelta | None) -> int:
    return 0 if duration is None else round(duration / timedelta(milliseconds=1))


def _text(tree: promql.Expr) -> str:
    """An expression as people write it: the parser prints every selector with braces."""
    return _STRING_OR_EMPTY.sub(lambda found: "" if found[0] == "{}" else found[0], str(tree))


def _node(tree: promql.Expr) -> Node:
    text = _text(tree)
    match tree:
        case promql.ParenExpr():
            return _node(tree.expr)
        case promql.NumberLiteral():
            return Number(tree.val, text)
        case promql.StringLiteral():
            return String(tree.val, text)
        case promql.VectorSelector():
            return _selector(tree)
        case promql.MatrixSelector():
            return Range(_selector(tree.vector_selector), _positive(tree.range, text), text)
        case promql.SubqueryExpr():
            _refuse_at(tree.at, text)
            step = None if tree.step is None else _positive(tree.step, text)
            return Subquery(_node(tree.expr), _positive(tree.range, text), step, _milliseconds(tree.offset), text)
        case promql.UnaryExpr():
            return Negation(_node(tree.expr), text)
        case promql.BinaryExpr():
            return _binary(tree, text)
        case promql.AggregateExpr():
            return _aggregation(tree, text)
        case promql.Call():
            return _call(tree, text)
    raise Unsupported(f"{type(tree).__name__} is not supported: {text}")


def _positive(duration: timedelta | None, text: str) -> int:
    milliseconds = _milliseconds(duration)
    if milliseconds <= 0:
        raise BadQuery(f"a duration must be longer than 0: {text}")
    return milliseconds


def _refuse_at(modifier: promql.AtModifier | None, text: str) -> None:
    if modifier is not None:
        raise Unsupported(f"the modifier @ is not supported: {text}")


def _selector(tree: promql.VectorSelector) -> Selector:
    text = _text(tree)
    _refuse_at(tree.at, text)
    if tree.matchers.or_matchers:
        raise Unsupported(f"`or` between matchers is not supported: {text}")
    matchers = [] if tree.name is None else [Matcher(NAME, MatchOperator.EQUAL, tree.name)]
    matchers += [_matcher(matcher) for matcher in tree.matchers.matchers]
    return Selector(tuple(matchers), _milliseconds(tree.offset), text)


def _matcher(matcher: promql.Matcher) -> Matcher:
    # The parser's enumerations cannot be hashed.
    operator = next(ours for theirs, ours in _MATCH_OPERATORS if theirs == matcher.op)
    compares_text = operator in (MatchOperator.EQUAL, MatchOperator.NOT_EQUAL)
    return Matcher(matcher.name, operator, matcher.value, None if compares_text else compile_pattern(matcher.value))


def compile_pattern(text: str) -> Pattern:
    """A regular expression in the syntax of RE2, which Prometheus' is; it takes linear time on any value.

    Raises:
        BadQuery: it is none.
    """
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_MEMORY
    options.dot_nl = True  # Prometheus compiles with (?s)
    try:
        return cast(Pattern, re2.compile(text, options))
    except re2.error as error:
        reason = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else str(error)
        raise BadQuery(f"invalid regular expression {text!r}: {reason}") from None


def _binary(tree: promql.BinaryExpr, text: str) -> Binary:
    operator = str(tree.op)
    if operator not in ARITHMETIC | COMPARISONS | SET_OPERATORS:
        raise Unsupported(f"the operator {operator} is not supported: {text}")
    modifier = tree.modifier
    matching, returns_bool = Matching(), False
    if modifier is not None:
        if modifier.fill_values is not None and (modifier.fill_values.lhs is not None or modifier.fill_values.rhs is not None):
            raise Unsupported(f"the modifier fill is not supported: {text}")
        returns_bool = modifier.return_bool
        matching = _matching(modifier)
    return Binary(operator, _node(tree.lhs), _node(tree.rhs), matching, returns_bool, text)


def _matching(modifier: promql.BinModifier) -> Matching:
    cardinality = promql.VectorMatchCardinality
    many = "left" if modifier.card == cardinality.ManyToOne else "right" if modifier.card == cardinality.OneToMany else ""
    include = tuple(modifier.group_labels or ())
    if modifier.matching is None:
        return Matching(many=many, include=include)
    on = modifier.matching.type == promql.LabelModifierType.Include
    return Matching(on, frozenset(modifier.matching.labels), many, include)


def _aggregation(tree: promql.AggregateExpr, text: str) -> Aggregation:
    operator = str(tree.op)
    if operator not in AGGREGATIONS:
        raise Unsupported(f"the aggregation {operator} is not supported: {text}")
    parameter = None if tree.param is None else _node(tree.param)
    if tree.modifier is None:
        return Aggregation(operator, _node(tree.expr), parameter, False, frozenset(), text)
    without = tree.modifier.type == promql.AggModifierType.Without
    return Aggregation(operator, _node(tree.expr), parameter, without, frozenset(tree.modifier.labels), text)


def _call(tree: promql.Call, text: str) -> Call:
    name = str(tree.func.name)
    if name not in FUNCTIONS:
        raise Unsupported(f"the function {name} is not supported: {text}")
    arguments: Sequence[promql.Expr] = tree.args
    return Call(name, tuple(_node(argument) for argument in arguments), text)
