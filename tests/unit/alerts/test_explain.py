"""Why an alert fires or not, clause by clause, over series that are written down here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import ClassVar

import pytest
from poise.alerts import explain_text
from poise.alerts.explain import Clause, Kind, explain
from poise.history.promql.engine import Result
from poise.history.promql.errors import BadQuery
from poise.history.promql.labels import NAME, Labels, labels
from poise.history.promql.nodes import Matcher
from poise.history.querier.door import Answer
from poise.history.querier.embedded import EmbeddedQuerier

from tests.rule_replay import ReplayStore

NOW = 7_200.0
STEP = 15


class Series(ReplayStore):
    """Series that have had a value since a moment, and what else a querier asks."""

    def have(self, name: str, value: float, since: float = 0.0, **own: str) -> None:
        at = labels({NAME: name, **own})
        moments = list(range(int(since), int(NOW) + 1, STEP))
        self.add(at, [moment * 1000 for moment in moments], [value] * len(moments))

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[Labels]:
        return [one.labels for one in self.select(matchers, start, end)]


@pytest.fixture
def store() -> Series:
    made = Series()
    made.have("busy", 0.97, 0, gpu="0", engine="e")
    made.have("busy", 0.02, 6_600, gpu="1", engine="e")
    made.have("tokens", 100.0, 7_000, engine="e")
    made.have("info", 1.0, 0, engine="e", node="n")
    return made


def explained(store: Series, expression: str, recordings: Mapping[str, str] | None = None, *, deep: bool = True, **where: str) -> Clause:
    async def ask() -> Clause:
        querier = EmbeddedQuerier(store, clock=lambda: 0.0)
        try:
            return await explain(expression, querier, NOW, recordings=recordings, where=where, deep=deep)
        finally:
            await querier.close()

    return asyncio.run(ask())


def text(clause: Clause) -> str:
    return "\n".join(explain_text.lines(clause, lambda at: f"{at:.0f}"))


def test_a_comparison_shows_each_series_with_the_threshold_and_since_when(store: Series) -> None:
    clause = explained(store, "busy < 0.1")
    assert (clause.kind, clause.holds, clause.since) == (Kind.COMPARISON, True, 6_600.0)
    assert [(dict(row.labels)["gpu"], row.value, row.threshold, row.holds) for row in clause.rows] == [
        ("1", 0.02, 0.1, True),
        ("0", 0.97, 0.1, False),
    ]
    assert text(clause).splitlines() == [
        "✓ busy < 0.1  (holds since 6600)",
        "    ✓ gpu=1 0.02 < 0.1",
        "    ✗ gpu=0 0.97 not < 0.1",
    ]


def test_a_comparison_that_is_written_the_other_way_round_reads_from_the_series(store: Series) -> None:
    clause = explained(store, "0.1 > busy")
    assert (clause.operator, clause.threshold) == ("<", "0.1")
    assert [row.holds for row in clause.rows] == [True, False]


def test_and_or_unless_are_taken_apart(store: Series) -> None:
    clause = explained(store, "busy < 0.1 and on (engine) tokens > 10 unless on (engine) (info > 2 or starting)")
    assert clause.kind is Kind.UNLESS
    assert clause.holds
    both, without = clause.children
    assert [(child.text, child.holds, child.since) for child in both.children] == [
        ("busy < 0.1", True, 6_600.0),
        ("tokens > 10", True, 7_005.0),
    ]
    assert (both.holds, both.since) == (True, 7_005.0)
    assert (without.kind, without.holds) == (Kind.OR, False)
    assert [child.missing for child in without.children] == [(), ("starting",)]


def test_what_does_not_hold_says_since_when_it_does_not(store: Series) -> None:
    store.have("gone", 1.0, 7_100)
    assert explained(store, "busy > 2").since is None
    clause = explained(store, "absent(gone)")
    assert (clause.holds, clause.since) == (False, 7_110.0)


def test_only_rows_of_what_is_asked_for_count(store: Series) -> None:
    store.have("busy", 0.03, 0, gpu="0", engine="other")
    assert explained(store, "busy < 0.1", engine="e").rows_in_all == 2
    assert not explained(store, "busy < 0.025", engine="other").holds
    assert explained(store, "busy < 0.025").holds
    assert explained(store, "vector(1)", engine="other").holds


def test_a_recorded_series_is_explained_by_what_it_is_recorded_from(store: Series) -> None:
    recordings = {"level:idle:x": "busy < 0.01 and on (engine) tokens", "level:self:x": "level:self:x > 1"}
    clause = explained(store, "level:idle:x > 0", recordings)
    assert clause.missing == ()
    assert clause.recorded is not None
    recorded = clause.recorded["level:idle:x"]
    assert [child.holds for child in recorded.children] == [False, True]
    assert "level:idle:x is recorded from" in text(clause)
    assert explained(store, "level:self:x", recordings).recorded is not None


def test_a_recorded_series_is_explained_once_and_only_when_that_is_asked_for(store: Series) -> None:
    recordings = {"level:idle:x": "busy < 0.01"}
    twice = "level:idle:x > 0 or level:idle:x < 0"
    assert text(explained(store, twice, recordings)).count("is recorded from") == 1
    flat = explained(store, twice, recordings, deep=False)
    assert "is recorded from" not in text(flat)
    assert [child.missing for child in flat.children] == [(), ()]


def test_arithmetic_between_vectors_is_a_join_of_two_sides(store: Series) -> None:
    clause = explained(store, "(busy < 0.1) * on (engine) group_left (node) info")
    assert (clause.kind, clause.holds) == (Kind.JOIN, True)
    assert [child.kind for child in clause.children] == [Kind.COMPARISON, Kind.VALUE]
    lost = explained(store, "(busy < 0.1) * on (engine) group_left (node) nothing")
    assert (lost.holds, lost.children[1].missing) == (False, ("nothing",))


def test_a_condition_inside_an_aggregation_is_shown(store: Series) -> None:
    clause = explained(store, "max by (engine) (busy < 0.1 and on (engine) tokens > 10) < 0.5")
    assert clause.kind is Kind.COMPARISON
    (within,) = clause.children
    assert within.kind is Kind.WITHIN
    assert within.children[0].kind is Kind.AND


def test_two_vectors_that_are_compared_show_what_each_is_compared_with(store: Series) -> None:
    store.have("limit", 0.5, 0, gpu="0", engine="e")
    clause = explained(store, "busy > limit")
    assert [(row.value, row.threshold, row.holds) for row in clause.rows] == [(0.97, 0.5, True), (0.02, None, False)]
    assert text(clause).splitlines() == ["✓ busy > limit", "    ✓ gpu=0 0.97 > 0.5", "    ✗ gpu=1 0.02 not > limit"]
    paired = explained(store, "busy < on (gpu) group_left () limit")
    assert [(row.threshold, row.holds) for row in paired.rows] == [(0.5, False), (None, False)]


def test_a_clause_that_cannot_be_evaluated_says_so_and_the_others_are_explained(store: Series) -> None:
    store.have("info", 1.0, 0, engine="e", node="m")
    clause = explained(store, "busy < 0.1 and on (engine) (tokens * on (engine) info)")
    assert "cannot be evaluated" in text(clause)
    assert clause.children[0].holds


def test_rows_that_nobody_could_read_are_counted(store: Series) -> None:
    for number in range(100):
        store.have("many", float(number), 7_000, gpu=str(number))
    clause = explained(store, "many >= 0")
    assert (len(clause.rows), clause.rows_in_all) == (50, 100)
    assert "… and 94 more" in text(clause)


def test_what_is_no_expression_is_refused(store: Series) -> None:
    with pytest.raises(BadQuery):
        explained(store, "busy <")


@pytest.mark.parametrize(
    ("expression", "state", "words"),
    [
        ("busy < 0.1", "firing", "fires because `busy < 0.1` holds (gpu=1: 0.02 and 1 more)"),
        (
            "busy < 0.1 and on (engine) tokens > 10",
            "pending",
            "is pending because `busy < 0.1` holds (gpu=1: 0.02 and 1 more) and `tokens > 10` holds (engine=e: 100)",
        ),
        ("busy < 0.1 and on (engine) tokens > 200", "inactive", "does not fire: `tokens > 200` does not hold (engine=e: 100)"),
        ("busy < 0.1 and starting > 1", "inactive", "does not fire: no such series here: starting"),
        ("busy < 0.1 unless on (engine) info", "inactive", "does not fire: `info` holds, which excepts it"),
        (
            "busy > 0.9 and ignoring (gpu) busy{gpu='1'} * 0 + 1 and on (gpu) busy < 0.1",
            "inactive",
            "does not fire: its parts hold, but for different labels: ",
        ),
        (
            "busy > 2 or tokens > 200 or info > 2",
            "inactive",
            "does not fire: `busy > 2` does not hold (gpu=0: 0.97 and 1 more); `tokens > 200`",
        ),
        ("busy > 2 or tokens > 200 or info > 2", "inactive", "(engine=e: 100); 1 more of 3 clauses"),
        ("busy > 2", "firing", "fires on, although its condition does not hold now: `busy > 2` does not hold"),
        (
            "busy - on (gpu) (starting or on (gpu) busy * 0) > 2",
            "inactive",
            "(starting or on (gpu) busy * 0) > 2` does not hold (gpu=0: 0.97 and 1",
        ),
        ("absent(starting)", "inactive", "is not on yet, but its condition holds: `absent(starting)` is there"),
    ],
)
def test_one_sentence_says_why(store: Series, expression: str, state: str, words: str) -> None:
    assert words in explain_text.sentence(state, explained(store, expression))


def test_an_expression_that_stands_twice_is_asked_once_for_samples_may_come_in_between(store: Series) -> None:
    class Growing(EmbeddedQuerier):
        asked: ClassVar[list[str]] = []

        async def instant(self, query: str, at: float, *, timeout: float | None = None) -> Answer[Result]:
            self.asked.append(query)
            store.have("busy", 0.97 if len(self.asked) % 2 else 0.02, 0, gpu="0", engine="e")
            return await super().instant(query, at, timeout=timeout)

    async def ask() -> Clause:
        querier = Growing(store, clock=lambda: 0.0)
        try:
            return await explain("busy > 0.9 or (busy > 0.9 and busy > 0.9)", querier, NOW)
        finally:
            await querier.close()

    clause = asyncio.run(ask())
    assert len(Growing.asked) == len(set(Growing.asked))
    alike = [clause.children[0], *clause.children[1].children]
    assert {(one.holds, one.rows, one.since) for one in alike} == {(alike[0].holds, alike[0].rows, alike[0].since)}
