"""The tokens of a PromQL text with their places, one by one, as Prometheus reads them (promql/parser/lex.go). For messages about mistakes only: the
parser reads its own (parse.py). Knows no grammar.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

#: Keywords of newer versions, of which the parser knows some uses; a text with one of them is not judged.
_NEWER = frozenset({"fill", "fill_left", "fill_right", "anchored", "smoothed"})

_SPACE = re.compile(r"(?:[ \t\n\r\f]|#[^\n\r]*)+")
_WORD = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STRING = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|`[^`]*`", re.DOTALL)
#: Possessive, since what is no number must not be tried digit by digit.
_NUMBER = re.compile(r"(?:0[xX][0-9a-fA-F]*+|[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][-+]?[0-9]*+)?(?![A-Za-z_.0-9])")
_DURATION = re.compile(r"(?:[0-9]++(?:ms|[smhdwy]))++(?![A-Za-z_0-9])")
_SYMBOL = re.compile(r"==|!=|<=|>=|[-+*/%^<>=@,(){}\[\]]")
_MATCHER_SYMBOL = re.compile(r"=~|!~|!=|[=,{}]")


class Kind(Enum):
    """What a token is; a word may be a keyword."""

    WORD = auto()
    NUMBER = auto()
    STRING = auto()
    SYMBOL = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class Token:
    """A token and where it begins, in characters from 0."""

    kind: Kind
    text: str
    at: int

    @property
    def word(self) -> str:
        """The keyword or operator that it is: keywords are known in any case of letters."""
        return self.text.lower() if self.kind is Kind.WORD else self.text if self.kind is Kind.SYMBOL else ""


@dataclass(frozen=True, slots=True)
class Mistake:
    """The first token that cannot be where it is (`at`, in characters from 0), and a message of it. `lexical`: no token at all begins there."""

    at: int
    message: str
    lexical: bool = False


class Unexpected(Exception):
    """What makes the text no query."""

    def __init__(self, mistake: Mistake) -> None:
        super().__init__(mistake.message)
        self.mistake = mistake


class Unsure(Exception):
    """Something of which the grammar here does not know enough."""


def tokens(text: str) -> Iterator[Token]:
    """The tokens one by one, END last, for whatever is wrong before counts first. Inside braces and brackets other ones are known than outside."""
    at, inside, opened = 0, "", 0
    brackets: list[int] = []
    while True:
        if space := _SPACE.match(text, at):
            if inside and "#" in space[0]:
                raise Unsure
            at = space.end()
        if at == len(text):
            break
        token = _in_braces(text, at) if inside == "{" else _in_brackets(text, at) if inside == "[" else _outside(text, at)
        if token.text == "(" and token.kind is Kind.SYMBOL:
            brackets.append(at)
        elif token.text == ")" and token.kind is Kind.SYMBOL:
            if not brackets:
                raise Unexpected(Mistake(at, 'unexpected ")"', lexical=True))
            brackets.pop()
        elif token.kind is Kind.SYMBOL and token.text in ("{", "["):
            if inside:
                raise Unexpected(Mistake(at, f'unexpected "{token.text}"', lexical=True))
            inside, opened = token.text, at
        elif token.kind is Kind.SYMBOL and token.text in ("}", "]"):
            if not inside:
                raise Unexpected(Mistake(at, f'unexpected "{token.text}"', lexical=True))
            inside = ""
        yield token
        at += len(token.text)
    if inside:
        raise Unexpected(Mistake(opened, f'"{inside}" is never closed', lexical=True))
    if brackets:
        raise Unexpected(Mistake(brackets[-1], '"(" is never closed', lexical=True))
    yield Token(Kind.END, "", at)


def _outside(text: str, at: int) -> Token:
    if found := _WORD.match(text, at):
        if found[0].lower() in _NEWER:
            raise Unsure
        return Token(Kind.NUMBER if found[0].lower() in ("inf", "nan") else Kind.WORD, found[0], at)
    if found := _NUMBER.match(text, at) or _DURATION.match(text, at):
        return Token(Kind.NUMBER, found[0], at)
    if found := _STRING.match(text, at):
        return Token(Kind.STRING, found[0], at)
    if (found := _SYMBOL.match(text, at)) and not text.startswith("=~", at):
        return Token(Kind.SYMBOL, found[0], at)
    raise _no_token(text, at)


def _in_braces(text: str, at: int) -> Token:
    if found := _LABEL.match(text, at):
        return Token(Kind.WORD, found[0], at)
    if found := _STRING.match(text, at):
        return Token(Kind.STRING, found[0], at)
    if found := _MATCHER_SYMBOL.match(text, at):
        return Token(Kind.SYMBOL, found[0], at)
    raise _no_token(text, at)


def _in_brackets(text: str, at: int) -> Token:
    if found := _NUMBER.match(text, at) or _DURATION.match(text, at):
        return Token(Kind.NUMBER, found[0], at)
    if text[at] in ":]":
        return Token(Kind.SYMBOL, text[at], at)
    raise _no_token(text, at)


def _no_token(text: str, at: int) -> Unexpected:
    return Unexpected(Mistake(at, f"no part of a query begins with {text[at]!a}", lexical=True))
