"""Where a text stops being PromQL: the first token that no query can have at its place. For messages only.

The parser (parse.py) decides what a query is and says of most mistakes only that there is one; this finds the place, by the grammar of Prometheus
(promql/parser/generated_parser.y). Where it finds none, the message goes without: it knows no types, and not all that newer ones have.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from poise.history.promql.tokens import Kind, Mistake, Token, Unexpected, Unsure, tokens

#: Characters of a token in a message.
_LONGEST_SHOWN = 40

_AGGREGATIONS = frozenset(
    {
        "sum",
        "avg",
        "count",
        "min",
        "max",
        "group",
        "stddev",
        "stdvar",
        "topk",
        "bottomk",
        "count_values",
        "quantile",
        "limitk",
        "limit_ratio",
    }
)
_SET_OPERATORS = frozenset({"and", "or", "unless", "atan2"})
#: Keywords that cannot be the name of a series; all others can.
_RESERVED = frozenset({"bool", "on", "ignoring", "group_left", "group_right", "atan2"})
_OPERATORS = frozenset({"+", "-", "*", "/", "%", "^", "==", "!=", "<", "<=", ">", ">="})
_MATCHING = frozenset({"=", "!=", "=~", "!~"})


def mistake(text: str) -> Mistake | None:
    """The first mistake of a text that is no query; None where it is not known. Takes time in proportion to the text, and depth to its brackets."""
    try:
        _Reader(tokens(text)).query()
    except Unexpected as found:
        return found.mistake
    except (Unsure, RecursionError):
        pass
    return None


def called(text: str, name: str) -> int | None:
    """Where the function of a name is called for the first time; None where it is not known."""
    try:
        found = list(tokens(text))
    except (Unexpected, Unsure):
        return None
    return next((one.at for one, after in pairwise(found) if one.kind is Kind.WORD and one.text == name and after.text == "("), None)


def line_and_column(text: str, at: int) -> str:
    """A place as Prometheus writes it, "LINE:COLUMN", both from 1."""
    line = text.count("\n", 0, at) + 1
    return f"{line}:{at - (text.rfind(chr(10), 0, at) + 1) + 1}"


class _Reader:
    """Goes through the tokens as long as a query can go on with them."""

    def __init__(self, tokens: Iterator[Token]) -> None:
        self._tokens = tokens
        self._token = next(tokens)

    def _step(self) -> None:
        self._token = next(self._tokens)

    def _take(self, *words: str) -> bool:
        """Whether the next token is one of these words or symbols, which is then behind us."""
        if self._token.word not in words or not self._token.word:
            return False
        self._step()
        return True

    def _need(self, *words: str) -> None:
        if not self._take(*words):
            raise self._unexpected(" or ".join(f'"{word}"' for word in words))

    def _need_kind(self, kind: Kind, what: str) -> None:
        if self._token.kind is not kind:
            raise self._unexpected(what)
        self._step()

    def _unexpected(self, expected: str = "") -> Unexpected:
        token = self._token
        if token.kind is Kind.END:
            seen = "end of the query"
        else:
            short = token.text if len(token.text) <= _LONGEST_SHOWN else f"{token.text[: _LONGEST_SHOWN - 1]}…"
            seen = f"string {short}" if token.kind is Kind.STRING else f'"{short}"'
        return Unexpected(Mistake(token.at, f"unexpected {seen}" + (f", expected {expected}" if expected else "")))

    def query(self) -> None:
        """A whole query."""
        self._expression()
        if self._token.kind is not Kind.END:
            raise self._unexpected()

    def _expression(self) -> None:
        self._operand()
        while self._token.word in _OPERATORS or self._token.word in _SET_OPERATORS:
            self._step()
            self._modifiers()
            self._operand()

    def _modifiers(self) -> None:
        """What may stand between an operator and its right side."""
        self._take("bool")
        if self._take("on", "ignoring"):
            self._labels()
            if self._take("group_left", "group_right") and self._token.word == "(":
                self._labels()

    def _labels(self) -> None:
        self._need("(")
        while not self._take(")"):
            quoted = self._token.kind is Kind.STRING
            if not quoted and (self._token.kind is not Kind.WORD or ":" in self._token.text or self._token.word == "without"):
                raise self._unexpected("a label")
            self._step()
            if not self._take(","):
                self._need(")", ",")
                return

    def _operand(self) -> None:
        while self._take("+", "-"):
            pass
        self._primary()
        while True:
            if self._take("offset"):
                self._take("-", "+")
                self._need_kind(Kind.NUMBER, "a duration")
            elif self._take("@"):
                self._moment()
            elif self._take("["):
                self._range()
            else:
                return

    def _moment(self) -> None:
        if self._take("start", "end"):
            self._need("(")
            self._need(")")
            return
        self._take("-", "+")
        self._need_kind(Kind.NUMBER, "a time")

    def _range(self) -> None:
        self._need_kind(Kind.NUMBER, "a duration")
        if self._take(":") and self._token.kind is Kind.NUMBER:
            self._step()
        self._need("]")

    def _primary(self) -> None:
        token = self._token
        if token.kind in (Kind.NUMBER, Kind.STRING):
            self._step()
        elif self._take("("):
            self._expression()
            self._need(")")
        elif token.word == "{":
            self._matchers()
        elif token.kind is Kind.WORD and token.word not in _RESERVED:
            self._step()
            self._named(token)
        else:
            raise self._unexpected()

    def _named(self, token: Token) -> None:
        """What begins with a word: a selector, a function, an aggregation."""
        if token.word in _AGGREGATIONS:
            if self._take("by", "without"):
                self._labels()
                self._arguments()
                return
            if self._token.word == "(":
                self._arguments()
                if self._take("by", "without"):
                    self._labels()
                return
        elif self._token.word == "(":
            if token.word in _SET_OPERATORS or token.word in ("by", "without", "offset") or ":" in token.text:
                raise self._unexpected()
            self._arguments()
            return
        if self._token.word == "{":
            self._matchers()

    def _arguments(self) -> None:
        self._need("(")
        if self._take(")"):
            return
        self._expression()
        while self._token.word == ",":
            comma = self._token
            self._step()
            if self._token.word == ")":
                raise Unexpected(Mistake(comma.at, "no argument follows this comma"))
            self._expression()
        self._need(")", ",")

    def _matchers(self) -> None:
        self._need("{")
        while not self._take("}"):
            self._matcher()
            if not self._take(",", "or"):
                self._need("}", ",")
                return

    def _matcher(self) -> None:
        quoted = self._token.kind is Kind.STRING
        if self._token.word == "or":  # a label in Prometheus, an operator in the parser
            raise Unsure
        if not quoted and self._token.kind is not Kind.WORD:
            raise self._unexpected("a label")
        self._step()
        if quoted and self._token.word in (",", "}"):
            return
        if self._token.word not in _MATCHING:
            raise self._unexpected('"=", "!=", "=~" or "!~"')
        self._step()
        self._need_kind(Kind.STRING, "a string")
