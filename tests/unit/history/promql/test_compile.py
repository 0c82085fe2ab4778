"""Text to tree: what is refused and in which words, and that no text ends the process."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.history.promql.compile import FUNCTIONS, compile_query
from poise.history.promql.errors import BadQuery, Unsupported
from poise.history.promql.nodes import Binary, Range, Selector, Subquery, Type, type_of
from poise.history.promql.parse import LONGEST_QUERY


@pytest.mark.parametrize(
    ("query", "part"),
    [
        ("predict_linear(x[5m], 60)", "the function predict_linear"),
        ('count_values("v", x)', "the aggregation count_values"),
        ("limitk(2, x)", "the aggregation limitk"),
        ("x atan2 y", "the operator atan2"),
        ("x @ 5", "the modifier @"),
        ("max_over_time(x[5m:1m] @ end())", "the modifier @"),
        ("x + fill(0) y", "the modifier fill"),
        ('x{a="1" or b="2"}', "`or` between matchers"),
    ],
)
def test_what_the_engine_does_not_have_is_refused_by_its_name(query: str, part: str) -> None:
    with pytest.raises(Unsupported, match="is not supported") as refused:
        compile_query(query)
    assert part in str(refused.value)


@pytest.mark.parametrize(
    "query", ["", "sum(", "rate(x)", "x{a=~'('}", "1 > 2", "x[5m] + 1", "foo(x)", "x[0s]", "x[-5m]", "x{}{}", "\x00", "\ud800"]
)
def test_what_is_no_promql_is_refused(query: str) -> None:
    with pytest.raises(BadQuery):
        compile_query(query)


@pytest.mark.parametrize(
    "query",
    [
        "(" * 9_000,
        "(" * 5_000 + "x" + ")" * 5_000,
        "-" * 9_000 + "x",
        "+".join(["x"] * 5_000),
        " or ".join(["x"] * 3_000),
        "x" * (LONGEST_QUERY + 1),
    ],
)
def test_text_that_would_overflow_the_parser_is_refused_before_it(query: str) -> None:
    with pytest.raises(BadQuery, match=r"nested deeper|operators|characters"):
        compile_query(query)


def test_brackets_and_operators_in_strings_and_comments_do_not_count() -> None:
    text = 'x{a="' + "(" * 500 + "\", b='" + "-" * 500 + "'} # " + "((((" * 100
    assert isinstance(compile_query(text), Selector)


@given(st.text(alphabet="xy(){}[]+-*/<>=!~\"'`#,5m \n\\ofsetbyrandnlsi", max_size=60))
def test_any_text_is_a_query_or_a_refusal(text: str) -> None:
    with contextlib.suppress(BadQuery):
        compile_query(text)


def test_times_are_milliseconds_and_an_offset_may_look_ahead() -> None:
    window = compile_query("x[90s] offset -1500ms")
    assert isinstance(window, Range)
    assert (window.window, window.selector.offset) == (90_000, -1_500)
    subquery = compile_query("x[1h:] offset 5m")
    assert isinstance(subquery, Subquery)
    assert (subquery.window, subquery.step, subquery.offset) == (3_600_000, None, 300_000)


def test_nodes_say_their_text_as_people_write_it() -> None:
    node = compile_query('sum by (a) (rate(x{b="{}"}[5m])) / on (a) group_left y > 3')
    assert isinstance(node, Binary)
    assert node.left.text == 'sum by (a)(rate(x{b="{}"}[5m])) / on (a) group_left () y'


def test_types_are_known_before_evaluation() -> None:
    kinds = {
        "1 + 2": Type.SCALAR,
        "x": Type.VECTOR,
        "x[5m]": Type.MATRIX,
        '"a"': Type.STRING,
        "scalar(x) + 1": Type.SCALAR,
        "-x": Type.VECTOR,
    }
    assert {query: type_of(compile_query(query)) for query in kinds} == kinds


def test_the_functions_of_the_rules_and_pages_are_there() -> None:
    assert {"rate", "increase", "histogram_quantile", "absent", "label_replace", "round", "time", "timestamp"} <= FUNCTIONS
