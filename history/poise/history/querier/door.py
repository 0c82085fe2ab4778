"""`Querier`: what can be asked of series, whoever has them. Owns the shapes of questions and answers and no way to get them.

Times are Unix seconds, durations seconds. Every method raises a QueryError (poise.history.promql.errors) when there is no answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from poise.history.promql.compile import compile_query
from poise.history.promql.engine import Matrix, Result
from poise.history.promql.errors import BadQuery
from poise.history.promql.labels import Labels
from poise.history.promql.nodes import Matcher, Selector
from poise.history.text_format import Metadata

Data = TypeVar("Data", covariant=True)


@dataclass(frozen=True, slots=True)
class Answer(Generic[Data]):
    """What was asked for. `warnings` say that it may not be everything (Prometheus' `warnings`, its `infos` after them)."""

    data: Data
    warnings: tuple[str, ...] = ()


class Querier(Protocol):
    """Asks for series. `timeout` bounds one question; None is the querier's own. `limit` 0 is none."""

    async def instant(self, query: str, at: float, *, timeout: float | None = None) -> Answer[Result]:
        """The value of an expression at one moment."""
        ...

    async def range(self, query: str, start: float, end: float, step: float, *, timeout: float | None = None) -> Answer[Matrix]:
        """The values of an expression from start to end (inclusive), step apart."""
        ...

    async def series(self, matches: Sequence[str], start: float, end: float, *, limit: int = 0) -> Answer[list[Labels]]:
        """The labels of all series with samples from start to end that fit one of the selectors, sorted; at least one selector."""
        ...

    async def label_names(self, matches: Sequence[str], start: float, end: float, *, limit: int = 0) -> Answer[list[str]]:
        """The names of the labels of such series, sorted; without a selector of all series."""
        ...

    async def label_values(self, name: str, matches: Sequence[str], start: float, end: float, *, limit: int = 0) -> Answer[list[str]]:
        """The values of one label of such series, sorted; without a selector of all series."""
        ...

    async def metadata(self, metric: str = "", *, limit: int = 0) -> Answer[Mapping[str, tuple[Metadata, ...]]]:
        """Type and help of each family (or of one) as the targets say them, each only once."""
        ...

    async def close(self) -> None:
        """Ends what is in flight; nothing is asked after this."""
        ...


#: What Prometheus says when an answer was cut (web/api/v1/api.go, truncateSeries and others).
TRUNCATED = "results truncated due to limit"


def matchers(match: str) -> tuple[Matcher, ...]:
    """The matchers of a `match[]` parameter.

    Raises:
        BadQuery: it is no selector.
    """
    node = compile_query(match)
    if not isinstance(node, Selector) or node.offset:
        raise BadQuery(f'match[] takes a selector such as up{{job="poise"}}; this is none: {match}')
    return node.matchers
