"""Queries drawn at random from all that the engine has, over the series of promql_oracle.py.

Two kinds are told apart. *Exact* expressions have the same bits in any correct engine; only they are compared with, rounded or ordered, because
the last bit of a mean or a rate is nobody's promise and would flip such a result. Everything else may be computed on.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

#: Names that make no ambiguous result by themselves; `odd` holds infinities, NaN and 1e300 and goes into exact expressions only.
TAME = ("requests_total", "depth", "ratio", "limit", "latency_bucket")
NAMES = (*TAME, "odd", "info")
LABELS = ("job", "instance", "zone", "le", "version", "nothing")

_numbers = st.sampled_from(("0", "1", "-2.5", "3", "0.5", "100", "1e3", "Inf", "-Inf", "NaN"))
_sizes = st.sampled_from(("0", "1", "2", "3", "100"))
_quantiles = st.sampled_from(("0", "0.25", "0.5", "0.9", "0.99", "1", "-0.1", "1.1"))
_ranges = st.sampled_from(("31s", "1m", "2m", "5m", "10m"))
_offsets = st.sampled_from(("", "", "", " offset 1m", " offset 7m", " offset -90s"))
_matchers = st.sampled_from(
    (
        "",
        "",
        "",
        '{job="api"}',
        '{job!="api"}',
        '{instance=~"a|b"}',
        '{instance!~"a.*"}',
        '{zone=~".+"}',
        '{zone=""}',
        '{job="api",instance="a"}',
        '{le="1"}',
        '{job=~".*"}',
    )
)
_some_labels = st.lists(st.sampled_from(LABELS), max_size=3, unique=True).map(", ".join)


@st.composite
def _selector(draw: DrawFn, names: tuple[str, ...] = NAMES) -> str:
    return f"{draw(st.sampled_from(names))}{draw(_matchers)}{draw(_offsets)}"


@st.composite
def _range(draw: DrawFn, names: tuple[str, ...] = NAMES) -> str:
    name, matchers = draw(st.sampled_from(names)), draw(_matchers)
    return f"{name}{matchers}[{draw(_ranges)}]{draw(_offsets)}"


@st.composite
def _grouping(draw: DrawFn) -> str:
    word = draw(st.sampled_from(("", "by", "without")))
    return f"{word} ({draw(_some_labels)})" if word else ""


@st.composite
def _matching(draw: DrawFn, grouped: bool) -> str:
    word = draw(st.sampled_from(("", "on", "ignoring")))
    if not word:
        return ""
    own = draw(_some_labels)
    group = draw(st.sampled_from(("", "", "group_left", "group_right"))) if grouped else ""
    include = f"({draw(_included(own))})" if group and draw(st.booleans()) else ""
    return f"{word} ({own}) {group} {include}"


def _included(taken: str) -> SearchStrategy[str]:
    """Labels for group_left: none that is matched on, which PromQL refuses."""
    free = [label for label in LABELS if label not in taken.split(", ")]
    return st.lists(st.sampled_from(free), max_size=2, unique=True).map(", ".join)


@st.composite
def exact(draw: DrawFn, depth: int) -> str:
    """An instant vector with the same bits everywhere."""
    kind = draw(st.integers(0, 15 if depth > 0 else 3))
    inner = exact(depth - 1)
    match kind:
        case 0 | 1:
            return draw(_selector())
        case 2:
            function = st.sampled_from(("min", "max", "last", "count", "present"))
            return f"{draw(function)}_over_time({draw(_range())})"
        case 3:
            return f"{draw(st.sampled_from(('changes', 'resets')))}({draw(_range())})"
        case 4:
            return f"{draw(st.sampled_from(('min', 'max', 'count', 'group')))} {draw(_grouping())} ({draw(inner)})"
        case 5:
            operator = draw(st.sampled_from(("==", "!=", ">", "<", ">=", "<=")))
            modifier = draw(st.sampled_from(("", "bool ")))
            sides = (draw(inner), draw(_numbers))
            left, right = sides if draw(st.booleans()) else sides[::-1]
            return f"({left} {operator} {modifier}{right})"
        case 6:
            operator = draw(st.sampled_from(("and", "or", "unless")))
            return f"({draw(inner)} {operator} {draw(_matching(False))} {draw(inner)})"
        case 7:
            operator = draw(st.sampled_from(("==", "!=", ">", "<", ">=", "<=")))
            return f"({draw(inner)} {operator} {draw(st.sampled_from(('', 'bool ')))}{draw(_matching(True))} {draw(inner)})"
        case 8:
            return f"{draw(st.sampled_from(('abs', 'ceil', 'floor', 'sort', 'sort_desc', 'timestamp')))}({draw(inner)})"
        case 9:
            return f"clamp({draw(inner)}, {draw(_numbers)}, {draw(_numbers)})"
        case 10:
            return f"{draw(st.sampled_from(('clamp_min', 'clamp_max')))}({draw(inner)}, {draw(_numbers)})"
        case 11:
            return (
                f"{draw(st.sampled_from(('topk', 'bottomk')))} {draw(_grouping())} ({draw(_sizes)}, {draw(_selector(('depth', 'ratio')))})"
            )
        case 12:
            pattern = draw(st.sampled_from(("(.*)", "a(.*)", "(?P<x>[a-c])", "", "nothing", "(a)|(b)")))
            replacement = draw(st.sampled_from(("$1", "x$1y", "${x}", "", "$$", "$2-${1}", "$1x")))
            target, source = draw(st.sampled_from((*LABELS, "new"))), draw(st.sampled_from(LABELS))
            return f'label_replace({draw(inner)}, "{target}", "{replacement}", "{source}", "{pattern}")'
        case 13:
            target = draw(st.sampled_from((*LABELS, "new")))
            return f'label_join({draw(inner)}, "{target}", "-", "job", "{draw(st.sampled_from(LABELS))}")'
        case 14:
            function = draw(st.sampled_from(("max_over_time", "min_over_time", "last_over_time", "count_over_time", "changes")))
            return f"{function}(({draw(inner)})[{draw(_ranges)}:{draw(st.sampled_from(('30s', '1m', '17s')))}]{draw(_offsets)})"
    return f"-({draw(inner)})"


@st.composite
def vector(draw: DrawFn, depth: int) -> str:
    """Any instant vector."""
    kind = draw(st.integers(0, 12 if depth > 0 else 4))
    inner = vector(depth - 1)
    match kind:
        case 0:
            return draw(exact(depth))
        case 1 | 2:
            return f"{draw(st.sampled_from(('rate', 'increase', 'irate', 'delta')))}({draw(_range(TAME))})"
        case 3:
            return f"{draw(st.sampled_from(('sum', 'avg')))}_over_time({draw(_range())})"
        case 4:
            return f"vector({draw(st.sampled_from(('time()', 'scalar(limit)', '1')))})"
        case 5 | 6:
            return f"{draw(st.sampled_from(('sum', 'avg', 'stddev')))} {draw(_grouping())} ({draw(_tame(depth - 1))})"
        case 7:
            return f"quantile {draw(_grouping())} ({draw(_quantiles)}, {draw(inner)})"
        case 8:
            operator = draw(st.sampled_from(("+", "-", "*", "/")))
            sides = (draw(inner), draw(_numbers))
            left, right = sides[::-1] if operator != "/" and draw(st.booleans()) else sides
            return f"({left} {operator} {right})"
        case 9:
            operator = draw(st.sampled_from(("+", "-", "*")))
            return f"({draw(_tame(depth - 1))} {operator} {draw(_matching(True))} {draw(_tame(depth - 1))})"
        case 10:
            operator = draw(st.sampled_from(("/", "%", "^")))
            return f"({draw(exact(depth - 1))} {operator} {draw(_matching(True))} {draw(exact(depth - 1))})"
        case 11:
            argument = draw(
                st.sampled_from(
                    (
                        "latency_bucket",
                        "rate(latency_bucket[2m])",
                        "sum by (le) (rate(latency_bucket[2m]))",
                        "sum by (le, job) (latency_bucket)",
                    )
                )
            )
            return f"histogram_quantile({draw(_quantiles)}, {argument})"
    function = draw(st.sampled_from(("avg_over_time", "sum_over_time", "max_over_time", "rate", "delta", "increase")))
    return f"{function}(({draw(_tame(depth - 1))})[{draw(_ranges)}:{draw(st.sampled_from(('30s', '1m', '17s')))}]{draw(_offsets)})"


@st.composite
def _tame(draw: DrawFn, depth: int) -> str:
    """A vector of moderate numbers, which sums do not lose."""
    kind = draw(st.integers(0, 3 if depth > 0 else 1))
    match kind:
        case 0:
            return draw(_selector(TAME))
        case 1:
            return f"{draw(st.sampled_from(('rate', 'increase', 'delta', 'avg_over_time', 'sum_over_time')))}({draw(_range(TAME))})"
        case 2:
            return f"{draw(st.sampled_from(('sum', 'avg', 'min', 'max')))} {draw(_grouping())} ({draw(_tame(depth - 1))})"
    return f"({draw(_tame(depth - 1))} {draw(st.sampled_from(('+', '-', '*')))} {draw(_matching(True))} {draw(_tame(depth - 1))})"


@st.composite
def scalar(draw: DrawFn) -> str:
    """A number, or something that looks at absence."""
    kind = draw(st.integers(0, 3))
    match kind:
        case 0:
            return f"scalar({draw(exact(1))})"
        case 1:
            return f"absent({draw(exact(1))})"
        case 2:
            return f"absent_over_time({draw(_range())})"
    return f"time() {draw(st.sampled_from(('+', '-', '*', '/', '%')))} {draw(_numbers)}"


def query() -> SearchStrategy[str]:
    """Any query that Prometheus 2.42 and we both have."""
    return st.one_of(vector(3), exact(3), vector(2), scalar())
