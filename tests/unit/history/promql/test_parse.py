"""Where a text stops being PromQL: never a wrong place, held against the parser itself (against promtool in tests/contract/test_promql.py)."""

from __future__ import annotations

import itertools
import re

import promql_parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from poise.history.promql import syntax
from poise.history.promql.errors import BadQuery
from poise.history.promql.parse import DEEPEST, parse


def told(text: str) -> str:
    with pytest.raises(BadQuery) as refused:
        parse(text)
    return str(refused.value)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("up > == 1", '1:6: unexpected "=="'),
        ("sum(up) by instance", '1:12: unexpected "instance", expected "("'),
        ("up > bool", "1:10: unexpected end of the query"),
        ("up >\n\n  == 1", '3:3: unexpected "=="'),
        ("# a comment (\nup up", '2:4: unexpected "up"'),
        ("1 +", "1:4: unexpected end of the query"),
        ("up @ foo", '1:6: unexpected "foo", expected a time'),
        ("a / ignoring up", '1:14: unexpected "up", expected "("'),
        ("a == on(a) group_left(b) c d", '1:28: unexpected "d"'),
        ('up "a"', '1:4: unexpected string "a"'),
        ("up{a=}", '1:6: unexpected "}", expected a string'),
        ('up{a="b",,}', '1:10: unexpected ",", expected a label'),
        ("sum(up,)", "1:7: no argument follows this comma"),
        ("up = 1", '1:4: unexpected "="'),
        ("rate(up[])", '1:9: unexpected "]", expected a duration'),
        ("rate(up[5x])", "1:9: bad number or duration syntax: 5x"),
        ("sum(rate(up[5m])", "1:4: unclosed left parenthesis"),
        ("up)", "1:3: unexpected right parenthesis ')'"),
        ('up{a="b"', "1:9: unexpected end of input inside braces"),
        ("up + 'x", "1:6: unterminated quoted string '"),
        ("1 + ß", "1:5: unexpected character: 'ß'"),
        ("'ß' ß", "1:5: unexpected character: 'ß'"),
        ("abs(nosuch(up))", "1:5: unknown function with name 'nosuch'"),
        ("up nosuch up (", '1:4: unexpected "nosuch"'),
        ("x" + "y" * 50 + " " + "z" * 50, f'1:53: unexpected "{"z" * 39}…"'),
    ],
)
def test_a_mistake_is_told_with_line_and_column(query: str, words: str) -> None:
    assert told(query) == words


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", "no expression found in input"),
        ("rate(up)", "expected type matrix in call to function 'rate', got vector"),
        ("1 > 2", "comparisons between scalars must use BOOL modifier"),
        ("fill x", "invalid promql query"),
        ("x smoothed y", "invalid promql query"),
        ("x offset 5m offset 5m", "offset may not be set multiple times"),
        ('topk("a", up) + x[5m', "1:21: unexpected end of input inside brackets"),
    ],
)
def test_where_the_place_is_not_known_only_the_text_is_told(query: str, words: str) -> None:
    assert told(query) == words


def test_of_a_query_no_mistake_is_found() -> None:
    for query in (
        'sum by (a, "b") (rate(x{a=~"b", "c"!="d",}[5m] offset -5m)) / on () group_left (by) y @ start() > bool -5',
        "SUM(x) BY (a) AND y uNLess on (a) z[1h:] @ -5 offset 1h",
        "topk without (on, bool) (0x1F, {a='b' or c='d'}) or -.5 ^ +1e3 % Inf atan2 offset offset 5m # end",
        "by + without * offset - start / end == sum{a='b'} != and or or",
    ):
        assert readable(query)
        assert syntax.mistake(query) is None


def test_depth_is_bounded_for_every_reader_of_expressions() -> None:
    deep = "(" * 5_000 + "x" + ")" * 5_000
    assert told(deep) == f"the query is nested deeper than {DEEPEST} levels"
    assert syntax.mistake("(" * 200_000) is None


@pytest.mark.parametrize("number", ["inf", "-Inf", "nan", "1e20", "-1e300", "1E+20", "99999999999999999999", "1e17", "3153600001"])
def test_an_endless_duration_is_refused_before_the_parser_panics(number: str) -> None:
    said = told(f"sum(x offset {number})")
    assert said == f"a duration of {number.removeprefix('-')} seconds is longer than 100 years"
    if "-" not in number and number[0].isdigit():
        assert told(f"max_over_time(x[5m:{number}])") == said
        assert told(f"rate(x[{number}])") == said


def test_what_looks_like_an_endless_duration_and_is_none_is_taken() -> None:
    for query in (
        "rate(x[3153600000])",
        "x > inf",
        "x @ 1e11",
        "a:1e20 + 1e300",
        'x{a="[1e20]"} # [inf]',
        "x offset -5",
        "offset{a='b'} * 1e20",
    ):
        assert parse(query)


def test_a_fault_of_the_parser_itself_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        """As pyo3 has it."""

    def panic(text: str) -> None:
        raise PanicException("index out of bounds")

    monkeypatch.setattr(promql_parser, "parse", panic)
    assert told("x") == "the parser cannot read this: index out of bounds"


TOKENS = (
    *[
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        ",",
        "+",
        "-",
        "*",
        "/",
        "%",
        "^",
        "==",
        "!=",
        ">",
        "=",
        "=~",
        "@",
        ":",
        "x",
        "y",
        "5",
        "5m",
        "'s'",
        "a='b'",
        "by",
        "without",
        "on",
        "ignoring",
        "group_left",
        "bool",
        "and",
        "unless",
        "offset",
        "sum",
        "topk",
        "rate",
        "start",
    ],
    *(
        "x{a='b'}",
        "x[5m]",
        "x[5m:1m]",
        "(x)",
        "by (a)",
        "on (a)",
        "sum(x)",
        "rate(x[5m])",
        "\n",
        "# c\n",
        "or y",
        "> 1",
        "end()",
        "a:b",
        "inf",
    ),
)
#: What the parser says of the grammar and of characters; everything else is said of what a query means, which it then has read to its end.
SYNTAX = re.compile(
    r"invalid promql|unexpected|unclosed|unterminated|bad number|trailing commas|invalid label matcher|expect duration|is not valid label|missing unit|no expression"
)
CLOSES = {"(": ")", "{": "}", "[": "]"}


def readable(text: str) -> bool:
    """Whether the parser has nothing against the grammar of a text."""
    try:
        parse(text)
    except BadQuery as refused:
        return SYNTAX.search(str(refused)) is None
    return True


def can_go_on(start: str) -> bool:
    """Whether a text can be the beginning of a query: tried with what may follow, all that is open closed, and what may follow then."""
    bare = re.sub(r"#[^\n]*|'[^']*'", "", start)
    opened: list[str] = []
    for bracket in re.findall(r"[()\[\]{}]", bare):
        if bracket in CLOSES:
            opened.append(bracket)
        elif opened:
            opened.pop()
    inner = ("", "x", "(x)", "(a)", "(a) x", "(a)(x)", "5m", "5", "'s'", "a='s'", "='s'", "()", "5m:")
    outer = ("", "(x)", "x")
    for first in inner:
        for between in itertools.product(outer, repeat=min(len(opened), 2)):
            tail, rest = first, list(opened)
            for each in (*between, *[""] * len(opened)):
                if rest:
                    tail += f" {CLOSES[rest.pop()]} {each}"
            if readable(f"{start} {tail}"):
                return True
    return False


@settings(max_examples=150)
@given(st.lists(st.sampled_from(TOKENS), min_size=1, max_size=9))
def test_before_the_place_a_query_can_go_on_and_with_what_stands_there_it_cannot(tokens: list[str]) -> None:
    text = " ".join(tokens)
    found = syntax.mistake(text)
    if found is None or readable(text):
        return
    token = re.match(r"\w[\w:.]*|'[^']*'|[=!<>]=|[=!]~|.|$", text[found.at :], re.DOTALL)
    assert token is not None
    if found.at < len(text) and not found.lexical:
        assert not can_go_on(text[: found.at] + token[0]), found
    if not found.lexical:
        assert can_go_on(text[: found.at]), found


@given(st.text(alphabet="xy(){}[]+-*/<>=!~\"'`#,5m \n\\ofsetbyrandnlsi:@.eßE", max_size=60))
def test_whatever_the_text_the_place_is_within_it(text: str) -> None:
    try:
        parse(text)
    except BadQuery as refused:
        if place := re.match(r"(\d+):(\d+): ", str(refused)):
            line, column = int(place[1]), int(place[2])
            lines = text.split("\n")
            assert 1 <= line <= len(lines)
            assert 1 <= column <= len(lines[line - 1]) + 1
