"""Text to the tree of promql-parser (Rust, PromQL of Prometheus 2.45), within bounds, and its mistakes with their places.

The only file that calls the parser. It recurses without a limit and then ends the process, so what is too deep is refused before it; of a mistake in the
grammar it says only that there is one, so syntax.py looks for the place. Knows no node.
"""

from __future__ import annotations

import re

import promql_parser as promql
from poise.history.promql import syntax
from poise.history.promql.errors import BadQuery

#: Characters of a query; the longest rule has 1,200. A longer one is a mistake or an attack.
LONGEST_QUERY = 16_384
#: Brackets within brackets, and operators, of a query; the largest rule has 9 and 30. Some thousands of either overflow the parser's stack.
DEEPEST = 100
MOST_OPERATORS = 400
#: Strings and comments, in which brackets and operators mean nothing.
_NO_SYNTAX = re.compile(r""" "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | `[^`]*` | \#[^\n]* """, re.VERBOSE | re.DOTALL)
_BRACKET = re.compile(r"[(\[{}\])]")
_OPERATOR = re.compile(r"[-+*/%^<>]|[=!]=|\b(?:and|or|unless|atan2)\b", re.IGNORECASE)
#: Seconds of a range, a step or an offset: 100 years.
LONGEST_DURATION = 3.1536e9
_INSIDE = re.compile(r"\[([^\[\]]*)")
_OFFSET = re.compile(r"\boffset\b\s*+(?:[-+]\s*+)?([0-9a-z.]++(?:(?<=e)[-+][0-9]++)?)", re.IGNORECASE)
#: The class of what a fault of the parser itself comes as (pyo3, PanicException), which is no Exception.
_PANIC = "PanicException"
#: What the parser says of the grammar: only that, or the token that one of its rules stumbled over.
_GRAMMAR = "invalid promql query"
_GRAMMAR_RULES = re.compile(
    r"unexpected (?:.* in (?:label matching|grouping opts|offset|@)|end of input in)|trailing commas|invalid label matcher|is not valid label|missing unit character",
    re.DOTALL,
)
#: What it says of characters that make no token. It reads all tokens first, so the first place without one is what it means.
_LEXICAL = re.compile(
    r"bad number or duration|unexpected (?:character|right|left|second colon)|unexpected end of input inside|unclosed left|unterminated|"
    r"expect duration before|'!' can not"
)
_AT_END = "unexpected end of input inside"
_FUNCTION = re.compile(r"unknown function with name '([^']*)'")


def parse(text: str) -> promql.Expr:
    """The tree of a query. Raises BadQuery: "1:6: unexpected \"==\"" where the place is known (line and column, in characters from 1), else without it."""
    if len(text) > LONGEST_QUERY:
        raise BadQuery(f"the query has {len(text)} characters; at most {LONGEST_QUERY} are taken")
    bare = _NO_SYNTAX.sub(" ", text)
    _refuse_deep(bare)
    _refuse_endless(bare)
    try:
        return promql.parse(text)
    except (ValueError, OverflowError) as error:
        raise BadQuery(_told(text, " ".join(str(error).split()))) from None
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        raise BadQuery(f"the parser cannot read this: {error}") from None


def _told(text: str, said: str) -> str:
    """What the parser said of a text, with the place."""
    if function := _FUNCTION.fullmatch(said):
        at = syntax.called(text, function[1])
        return said if at is None else f"{syntax.line_and_column(text, at)}: {said}"
    found = syntax.mistake(text)
    if found is None:
        return said
    if not found.lexical:
        # Else it took every token and refuses what they mean: then the grammar here is not its own.
        refused = said == _GRAMMAR or _GRAMMAR_RULES.search(said) or _LEXICAL.match(said)
        return f"{syntax.line_and_column(text, found.at)}: {found.message}" if refused else said
    if not _LEXICAL.match(said):
        return said
    return f"{syntax.line_and_column(text, len(text) if said.startswith(_AT_END) else found.at)}: {said}"


def _refuse_deep(bare: str) -> None:
    """The parser recurses without a limit and then ends the process, so that is bounded before it: brackets in brackets, and operators."""
    depth = 0
    for bracket in _BRACKET.findall(bare):
        depth += 1 if bracket in "([{" else -1
        if depth > DEEPEST:
            raise BadQuery(f"the query is nested deeper than {DEEPEST} levels")
    operators = len(_OPERATOR.findall(bare))
    if operators > MOST_OPERATORS:
        raise BadQuery(f"the query has {operators} operators; at most {MOST_OPERATORS} are taken")


def _refuse_endless(bare: str) -> None:
    """Durations may be numbers of seconds; of one that is too large the parser panics, or makes a time that Python has no type for."""
    for text in (*(part for inside in _INSIDE.findall(bare) for part in inside.split(":")), *_OFFSET.findall(bare)):
        try:
            seconds = float(text)
        except ValueError:  # with a unit, of which the parser knows the bounds, or none at all
            continue
        if not seconds <= LONGEST_DURATION:
            raise BadQuery(f"a duration of {text.strip()} seconds is longer than 100 years")
