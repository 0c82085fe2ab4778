"""Why an alert fires, or does not: its expression taken apart into clauses, each with its present values, whether it holds, since when, and what it
lacks.

Asks through a `Querier`, so that the embedded store and a Prometheus are explained alike. Owns no words for a person: explain_text.py has them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from poise.history.promql.compile import compile_query
from poise.history.promql.engine import InstantVector, Matrix, Result, ScalarValue
from poise.history.promql.errors import QueryError
from poise.history.promql.labels import Labels, drop_name
from poise.history.promql.nodes import Binary, Matching, Node, Number, Subquery, children, selectors
from poise.history.querier.door import Querier

#: How far back the beginning of a clause is looked for, and at which distance (seconds).
LOOKED_BACK = 3_600.0
STEP = 15.0
#: Rows of a clause; a fleet has thousands, and nobody reads more.
MOST_ROWS = 50
#: Recordings of recordings of recordings …
_DEEPEST = 6

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SETS = frozenset({"and", "or", "unless"})


class Kind(StrEnum):
    """What a clause is. A join is arithmetic between vectors: each side has to be there. `within` is a condition inside a function or aggregation."""

    AND = "and"
    OR = "or"
    UNLESS = "unless"
    COMPARISON = "comparison"
    JOIN = "join"
    WITHIN = "within"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class Row:
    """One series of a clause: its value, for a comparison what it is compared with (None: nothing, or several things), and whether it is in the result."""

    labels: Labels
    value: float
    threshold: float | None
    holds: bool


@dataclass(frozen=True, slots=True)
class Clause:
    """A part of an expression. `since` (Unix seconds) is since when `holds` has been what it is, None when that is longer than was looked back.

    `missing` are names of series that are not there; `recorded` explains the recorded series that the clause reads, by name.
    """

    text: str
    kind: Kind
    holds: bool
    rows: tuple[Row, ...]
    rows_in_all: int
    since: float | None
    operator: str = ""
    threshold: str = ""
    missing: tuple[str, ...] = ()
    error: str = ""
    children: tuple[Clause, ...] = ()
    recorded: Mapping[str, Clause] | None = None


async def explain(
    expression: str,
    querier: Querier,
    at: float,
    *,
    recordings: Mapping[str, str] | None = None,
    where: Mapping[str, str] | None = None,
    deep: bool = True,
) -> Clause:
    """The clauses of an expression at `at` (Unix seconds).

    `recordings` are the expressions of recorded names, which are explained too when `deep`; `where` keeps the rows that have these labels, or lack
    them.

    Raises:
        QueryError: the expression is none, or there is nobody to ask.
    """
    return await _Explainer(querier, at, recordings or {}, where or {}, deep).clause(compile_query(expression), frozenset())


@dataclass(frozen=True, slots=True)
class _Explainer:
    querier: Querier
    at: float
    recordings: Mapping[str, str]
    where: Mapping[str, str]
    deep: bool
    known: dict[str, Clause] = field(default_factory=dict)
    # Each expression is asked once: samples of the moment may still come, and the same clause must not say two things.
    asked: dict[str, Sequence[tuple[Labels, float]]] = field(default_factory=dict)
    ranged: dict[str, Matrix] = field(default_factory=dict)

    async def clause(self, node: Node, seen: frozenset[str]) -> Clause:
        match node:
            case Binary(operator=word) if word in _SETS:
                both = (await self.clause(node.left, seen), await self.clause(node.right, seen))
                return await self._whole(node, Kind(word), seen, both)
            case Binary(operator=word) if word in _COMPARISONS and not node.returns_bool:
                return await self._comparison(node, seen)
            case Binary() if not isinstance(node.left, Number) and not isinstance(node.right, Number):
                both = (await self.clause(node.left, seen), await self.clause(node.right, seen))
                return await self._whole(node, Kind.JOIN, seen, both)
        inner = [child for child in children(node) if _has_condition(child)]
        if inner:
            return await self._whole(node, Kind.WITHIN, seen, tuple([await self.clause(child, seen) for child in inner]))
        return await self._whole(node, Kind.VALUE, seen, ())

    async def _whole(self, node: Node, kind: Kind, seen: frozenset[str], parts: tuple[Clause, ...]) -> Clause:
        """A clause whose rows are its own result."""
        try:
            rows = [Row(own, value, None, True) for own, value in await self._values(node.text)]
            since = await self._since(node.text, bool(rows))
        except QueryError as error:
            return Clause(node.text, kind, False, (), 0, None, error=str(error), children=parts)
        if parts:
            return Clause(node.text, kind, bool(rows), tuple(rows[:MOST_ROWS]), len(rows), since, children=parts)
        missing, recorded = await self._names(node, seen, bool(rows))
        return Clause(node.text, kind, bool(rows), tuple(rows[:MOST_ROWS]), len(rows), since, missing=missing, recorded=recorded)

    async def _comparison(self, node: Binary, seen: frozenset[str]) -> Clause:
        """A clause whose rows are those of its left side, with what they are compared with."""
        number, other = (node.left, node.right) if isinstance(node.left, Number) else (node.right, node.left)
        threshold = number.value if isinstance(number, Number) else None
        sides = [side for side in (node.left, node.right) if _has_condition(side)]
        parts = tuple([await self.clause(side, seen) for side in sides])
        try:
            kept = {own for own, _ in await self._values(node.text)}
            measured = other if threshold is not None else node.left
            against = {} if threshold is not None else await self._against(node)
            rows = []
            for own, value in await self._values(measured.text):
                bound = threshold if threshold is not None else against.get(_key(own, node.matching))
                pair = (bound, value) if measured is node.right else (value, bound)
                # Between vectors a result may have fewer labels than its left side: compare where the other side is known, else look it up.
                holds = own in kept if bound is None else _COMPARISONS[node.operator](*(math.nan if one is None else one for one in pair))
                rows.append(Row(own, value, bound, holds))
            since = await self._since(node.text, bool(kept))
        except QueryError as error:
            return Clause(node.text, Kind.COMPARISON, False, (), 0, None, error=str(error), children=parts)
        rows.sort(key=lambda row: not row.holds)
        missing, recorded = await self._names(node, seen, bool(kept))
        return Clause(
            node.text,
            Kind.COMPARISON,
            bool(kept),
            tuple(rows[:MOST_ROWS]),
            len(rows),
            since,
            operator=_turned(node.operator) if measured is node.right else node.operator,
            threshold=number.text if threshold is not None else node.right.text,
            missing=missing,
            children=parts,
            recorded=recorded,
        )

    async def _against(self, node: Binary) -> dict[Labels, float | None]:
        """The values of the right side by the labels that pair it with the left; None where several have the same."""
        found: dict[Labels, float | None] = {}
        for own, value in await self._instant(node.right.text):
            key = _key(own, node.matching)
            found[key] = None if key in found else value
        return found

    async def _names(self, node: Node, seen: frozenset[str], holds: bool) -> tuple[tuple[str, ...], Mapping[str, Clause] | None]:
        """The names of a clause that have no series, unless it holds without them; and what its recorded names are recorded from."""
        missing, recorded = [], {}
        for selector in selectors(node):
            name = selector.name
            if name is None:
                continue
            if name in self.recordings:
                if self.deep and name not in seen and len(seen) < _DEEPEST and name not in recorded:
                    recorded[name] = await self._recorded(name, seen)
            elif (
                not holds and name not in missing and not (await self.querier.series([name], self.at - LOOKED_BACK, self.at, limit=1)).data
            ):
                missing.append(name)
        return tuple(missing), recorded or None

    async def _recorded(self, name: str, seen: frozenset[str]) -> Clause:
        """What a recorded name is recorded from; asked for once, wherever it stands."""
        if name not in self.known:
            try:
                self.known[name] = await self.clause(compile_query(self.recordings[name]), seen | {name})
            except QueryError as error:
                self.known[name] = Clause(self.recordings[name], Kind.VALUE, False, (), 0, None, error=str(error))
        return self.known[name]

    async def _values(self, text: str) -> list[tuple[Labels, float]]:
        """Labels (without the name) and values that fit `where`, as stored; for a number one row without labels."""
        return [(own, value) for own, value in await self._instant(text) if self._fits(own)]

    async def _instant(self, text: str) -> Sequence[tuple[Labels, float]]:
        if text not in self.asked:
            self.asked[text] = _rows((await self.querier.instant(text, self.at)).data)
        return self.asked[text]

    def _fits(self, own: Labels) -> bool:
        values = dict(own)
        return all(values.get(name, wanted) == wanted for name, wanted in self.where.items())

    async def _since(self, text: str, holds: bool) -> float | None:
        """Since when the expression has had a result (or none), as far as LOOKED_BACK tells."""
        end = self.at
        if text not in self.ranged:
            self.ranged[text] = (await self.querier.range(text, end - LOOKED_BACK, end, STEP)).data
        there = {
            round(time) for series in self.ranged[text].series if self._fits(drop_name(series.labels)) for time in series.times.tolist()
        }
        moments = [round((end - LOOKED_BACK + place * STEP) * 1000) for place in range(int(LOOKED_BACK / STEP) + 1)]
        begin: int | None = None
        for moment in reversed(moments):
            if (moment in there) is not holds:
                return None if begin is None else begin / 1000
            begin = moment
        return None


def _rows(result: Result) -> Sequence[tuple[Labels, float]]:
    match result:
        case InstantVector():
            return [(drop_name(sample.labels), sample.value) for sample in result.samples]
        case ScalarValue():
            return [((), result.value)]
    return []


def _key(own: Labels, matching: Matching) -> Labels:
    """The labels by which a series is paired."""
    return tuple((name, value) for name, value in own if (name in matching.labels) is matching.on)


def _turned(word: str) -> str:
    """The operator of `2 < x` as it is read from x: `x > 2`."""
    return word.translate(str.maketrans("<>", "><"))


def _has_condition(node: Node) -> bool:
    """Whether something in it keeps or drops series."""
    if isinstance(node, Binary) and (node.operator in _SETS or (node.operator in _COMPARISONS and not node.returns_bool)):
        return True
    # What happens inside a subquery happens at other moments and is no clause of this one.
    return not isinstance(node, Subquery) and any(_has_condition(child) for child in children(node))
