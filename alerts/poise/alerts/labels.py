"""Which labels the result of an expression carries, and where an expression names a series or label that cannot be there.

The same rules as in Prometheus' engine (`promql/engine.go`: aggregation, vector matching), applied to names instead of values. A label set
of None is unknown; nothing is claimed about it.
"""

from __future__ import annotations

from collections.abc import Iterable

import promql_parser as promql
from poise.alerts.expressions import children, parse, series_name
from poise.alerts.names import Labels, Vocabulary, is_library_name, is_ours, suggestion

#: Aggregations that pass whole series on, with all their labels.
_KEEPS_SERIES = frozenset({"topk", "bottomk", "limitk", "limit_ratio"})
_SET_OPERATORS = frozenset({"and", "or", "unless"})
#: Functions whose result has labels of its own making.
_WITHOUT_LABELS = frozenset({"vector", "scalar", "time"})


def check_expression(text: str, vocabulary: Vocabulary, *, allow_other_series: bool = False) -> tuple[Labels, tuple[str, ...]]:
    """The labels that results of the expression can have, and what is wrong with its names, in words.

    With `allow_other_series`, names that are not Poise's are taken as they come (series of other exporters). Raises ExpressionError.
    """
    inference = _Inference(vocabulary, allow_other_series)
    labels = inference.of(parse(text))
    return labels, tuple(dict.fromkeys(inference.problems))


class _Inference:
    def __init__(self, vocabulary: Vocabulary, allow_other_series: bool) -> None:
        self.vocabulary = vocabulary
        self.allow_other_series = allow_other_series
        self.problems: list[str] = []

    def of(self, node: promql.Expr) -> Labels:
        """The labels of the node's result. Scalars and strings have none."""
        match node:
            case promql.VectorSelector():
                return self.selector(node)
            case promql.AggregateExpr():
                return self.aggregation(node)
            case promql.BinaryExpr():
                return self.binary(node)
            case promql.Call():
                return self.call(node)
            case promql.NumberLiteral() | promql.StringLiteral():
                return frozenset()
        (child,) = children(node)
        return self.of(child)

    def selector(self, node: promql.VectorSelector) -> Labels:
        name = series_name(node)
        if name is None:
            self.problems.append(f"{node} names no series")
            return None
        if name not in self.vocabulary:
            if not is_library_name(name) and (is_ours(name) or not self.allow_other_series):
                self.problems.append(f'no series is called "{name}"{suggestion(name, self.vocabulary)}')
            return None
        labels = self.vocabulary[name]
        matched = (matcher.name for matcher in node.matchers.matchers if matcher.name != "__name__")
        self.require(matched, labels, f"{name} has")
        return labels

    def require(self, wanted: Iterable[str], labels: Labels, owner: str) -> None:
        if labels is not None:
            for label in wanted:
                if label not in labels:
                    self.problems.append(f'{owner} no label "{label}"; there are {", ".join(sorted(labels)) or "none"}')

    def aggregation(self, node: promql.AggregateExpr) -> Labels:
        inner = self.of(node.expr)
        listed = frozenset(node.modifier.labels) if node.modifier is not None else frozenset()
        self.require(sorted(listed), inner, f"what {node.op} aggregates has")
        if str(node.op) in _KEEPS_SERIES:
            return inner
        if node.modifier is None:
            kept: Labels = frozenset()
        elif node.modifier.type == promql.AggModifierType.By:
            kept = listed
        else:
            kept = None if inner is None else inner - listed
        if str(node.op) == "count_values" and kept is not None and isinstance(node.param, promql.StringLiteral):
            kept |= {str(node.param.val)}
        return kept

    def call(self, node: promql.Call) -> Labels:
        arguments = [self.of(argument) for argument in node.args]
        name = str(node.func.name)
        if name in _WITHOUT_LABELS:
            return frozenset()
        if name in ("absent", "absent_over_time"):
            return None
        if name in ("label_replace", "label_join"):
            target = node.args[1]
            made = frozenset({str(target.val)}) if isinstance(target, promql.StringLiteral) else frozenset()
            return None if arguments[0] is None else arguments[0] | made
        if name == "histogram_quantile":
            return None if arguments[-1] is None else arguments[-1] - {"le"}
        vectors = [labels for argument, labels in zip(node.args, arguments, strict=True) if _is_vector(argument)]
        return vectors[0] if vectors else frozenset()

    def binary(self, node: promql.BinaryExpr) -> Labels:
        left, right = self.of(node.lhs), self.of(node.rhs)
        if not _is_vector(node.lhs):
            return right
        if not _is_vector(node.rhs):
            return left
        matching = node.modifier.matching if node.modifier is not None else None
        on = frozenset(matching.labels) if matching is not None and matching.type == promql.LabelModifierType.Include else None
        if on is not None:
            for side, labels in (("left", left), ("right", right)):
                self.require(sorted(on), labels, f"the {side} side of `{node.op} on` has")
        elif matching is None and str(node.op) != "or" and left is not None and right is not None and left != right:
            difference = ", ".join(sorted(left ^ right))
            self.problems.append(f"the sides of `{node.op}` never match: only one of them has {difference}; say `on (…)`")
        return self.result_of_binary(node, left, right, on)

    def result_of_binary(self, node: promql.BinaryExpr, left: Labels, right: Labels, on: Labels) -> Labels:
        if str(node.op) in _SET_OPERATORS:
            if str(node.op) == "or":
                return None if left is None or right is None else left | right
            return left
        card = node.modifier.card if node.modifier is not None else promql.VectorMatchCardinality.OneToOne
        group = frozenset((node.modifier.group_labels if node.modifier is not None else None) or ())
        many, one = (right, left) if card == promql.VectorMatchCardinality.OneToMany else (left, right)
        self.require(sorted(group), one, "the one side of group_left or group_right has")
        if card == promql.VectorMatchCardinality.OneToOne:
            return on if on is not None else left
        return None if many is None else many | group


def _is_vector(node: promql.Expr) -> bool:
    """Whether the node's value is a vector (instant or range), not a scalar or a string."""
    match node:
        case promql.NumberLiteral() | promql.StringLiteral():
            return False
        case promql.Call():
            return bool(node.func.return_type == promql.ValueType.Vector)
        case promql.BinaryExpr():
            return _is_vector(node.lhs) or _is_vector(node.rhs)
        case promql.ParenExpr() | promql.UnaryExpr():
            return _is_vector(node.expr)
    return True
