"""What a query holds: taken where a vector is made, given back where it is consumed; one sum for the query and one for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from poise.history.promql import limits
from poise.history.promql.compile import compile_query
from poise.history.promql.engine import Engine
from poise.history.promql.errors import ExecutionError, QueryError, Unavailable
from poise.history.promql.evaluate import Evaluator, Settings
from poise.history.promql.labels import labels
from poise.history.promql.limits import MOST_CELLS, MOST_CELLS_OF_ALL, MOST_CELLS_OF_QUERY, Budget, Cells
from poise.history.promql.nodes import Matcher, Type, type_of
from poise.history.promql.series import MemoryStorage, StoredSeries
from poise.history.promql.vectors import Grid
from poise.history.querier.embedded import EmbeddedQuerier

PATIENCE = 20.0
SERIES, STEPS = 6, 10
TIMES = np.arange(0, STEPS * 1_000, 1_000, dtype=np.int64)
M = MemoryStorage(
    [
        StoredSeries(labels({"__name__": "m", "i": str(i), "half": str(i % 2)}), TIMES, TIMES.astype(np.float64) + float(i))
        for i in range(SERIES)
    ]
)
CELLS = SERIES * STEPS


@dataclass(slots=True)
class Watched(Cells):
    """Remembers the most that was held at once."""

    most: int = 0
    now: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def held(self) -> int:
        return self.now

    def take(self, count: int) -> None:
        self.now += count
        self.most = max(self.most, self.now)

    def give_back(self, count: int) -> None:
        self.now -= count


def evaluated(query: str, watched: Watched) -> int:
    """Evaluates over ten steps; the cells that the result has."""
    node = compile_query(query)
    budget = Budget(lambda: 0.0, 1.0, all_held=watched)
    evaluator = Evaluator(M, Settings(), budget, Grid(0, 1_000, STEPS))
    cells = len(evaluator.scalar(node)) if type_of(node) is Type.SCALAR else evaluator.vector(node).values.size
    assert budget.held == watched.held == cells, "what stands in the end is the result and nothing else"
    return cells


# Each expected peak in cells (60 of `m`, 10 of a number): what is held at the moment when most is.
@pytest.mark.parametrize(
    ("query", "result", "most"),
    [
        ("m", CELLS, CELLS),
        ("1", STEPS, STEPS),
        ("-m", CELLS, 2 * CELLS),
        ("abs(m)", CELLS, 2 * CELLS),
        ("m + 1", CELLS, 2 * CELLS + STEPS),
        ("m + m", CELLS, 3 * CELLS),
        ("(m + m) + m", CELLS, 3 * CELLS),
        ("m + (m + m)", CELLS, 4 * CELLS),
        ("m + (m + (m + m))", CELLS, 5 * CELLS),
        ("m + (m + (m + (m + m)))", CELLS, 6 * CELLS),
        ("((m + m) + m) + (m + m)", CELLS, 4 * CELLS),
        ("m and m", CELLS, 3 * CELLS),
        ("m or -m", CELLS, 3 * CELLS),
        ("sum(m)", STEPS, 2 * CELLS + STEPS),
        ("sum by (half) (m) + sum by (half) (m)", 2 * STEPS, 2 * STEPS + 2 * CELLS + 2 * STEPS),
        ("quantile(0.5, m)", STEPS, STEPS + 2 * CELLS + STEPS),
        ("topk(2, m)", 2 * STEPS, STEPS + 2 * CELLS + 2 * STEPS),
        ("scalar(sum(m)) + 1", STEPS, 2 * CELLS + STEPS),
        ("clamp(m, 1, 2)", CELLS, CELLS + STEPS + STEPS + CELLS),
        ("vector(1)", STEPS, 2 * STEPS),
        ("absent(m)", 0, CELLS),
        ('label_replace(m, "x", "y", "i", ".*")', CELLS, 2 * CELLS),
        ("rate(m[5s])", CELLS, CELLS),
        ("rate(m[5s]) + rate(m[5s])", CELLS, 3 * CELLS),
    ],
)
def test_the_sum_is_what_is_held_at_once(query: str, result: int, most: int) -> None:
    watched = Watched()
    assert (evaluated(query, watched), watched.most) == (result, most)


def test_of_a_subquery_first_the_inner_vector_is_held_and_then_its_samples() -> None:
    watched = Watched()
    # The inner grid reaches back by the range, where nothing was: 10 steps of its 14 have samples.
    assert evaluated("sum_over_time(m[5s:1s])", watched) == CELLS
    inner = SERIES * (STEPS + 4)
    assert watched.most == inner + CELLS * 2  # a sample has 16 bytes, a cell 9
    deeper = Watched()
    evaluated("m + sum_over_time((m + m)[5s:1s])", deeper)
    assert deeper.most == CELLS + 3 * inner


@pytest.mark.parametrize("depth", [1, 5, 20])
def test_deeper_nesting_on_the_left_holds_no_more(depth: int) -> None:
    query = "m"
    for _ in range(depth):
        query = f"({query}) + m"
    watched = Watched()
    evaluated(query, watched)
    assert watched.most == 3 * CELLS


# ---------------------------------------------------------------------------------------------------------------------- limits
@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query may hold four times `m`."""
    monkeypatch.setattr(limits, "MOST_CELLS_OF_QUERY", 4 * CELLS)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "query",
    [
        "m + (m + (m + m))",
        "m + (m * (m and (m or m)))",
        "sum(m + (m + (m + m)))",
        "m + -(m + -(m + abs(m)))",
        "max_over_time((m + (m + (m + m)))[1s:1s])",
        "m + sum_over_time(m[30s:1s])",
        "rate((m + m)[20s:1s])",
    ],
)
def test_parts_that_are_needed_at_once_are_bounded_together_with_words_and_nothing_stays_taken(query: str) -> None:
    engine = Engine(M)
    with pytest.raises(ExecutionError, match=f"at once have more than {4 * CELLS} values together; ask for a shorter range, a longer step"):
        engine.range(query, 0, STEPS - 1, 1)
    assert engine.all_held.held == 0
    assert len(engine.range("m", 0, STEPS - 1, 1).series) == SERIES
    assert engine.all_held.held == 0


@pytest.mark.usefixtures("small")
def test_a_series_too_many_is_refused_before_its_values_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_CELLS", CELLS - 1)
    made: list[int] = []
    monkeypatch.setattr("poise.history.promql.evaluate.Vector.unfilled", lambda series, steps: made.append(len(series)))
    for query in ("m", "rate(m[2s])"):
        with pytest.raises(ExecutionError, match=f"has {SERIES} series at {STEPS} steps, more than {CELLS - 1} values"):
            Engine(M).range(query, 0, STEPS - 1, 1)
    assert made == []


@pytest.mark.parametrize("query", ["m / on (half) m", "m[5s]", "sum(m)", '"text"', "1 + 1", "m +"])
def test_nothing_stays_taken_whatever_becomes_of_a_query(query: str) -> None:
    engine = Engine(M)
    with contextlib.suppress(QueryError):
        engine.instant(query, 5)
    assert engine.all_held.held == 0


def test_what_all_queries_hold_is_one_sum_and_who_finds_no_room_is_told_to_ask_again() -> None:
    cells = Cells(3 * CELLS)
    first = Budget(lambda: 0.0, 1.0, all_held=cells)
    first.take_cells(2 * CELLS)
    with pytest.raises(
        Unavailable, match=f"hold {3 * CELLS} values, and with {2 * CELLS} more it would be over {3 * CELLS}; ask again later"
    ):
        Engine(M, all_held=cells).range("m", 0, STEPS - 1, 1)  # its vector fits, its answer does not
    assert cells.held == first.held == 2 * CELLS
    first.close()
    assert len(Engine(M, all_held=cells).range("m", 0, STEPS - 1, 1).series) == SERIES
    assert cells.held == 0


class Slow:
    """A storage whose second question waits, so that a query stands with a vector in its hands."""

    def __init__(self) -> None:
        self.asked = 0
        self.stands, self.open = threading.Event(), threading.Event()

    def select(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[StoredSeries]:
        self.asked += 1
        if self.asked == 2:
            self.stands.set()
            assert self.open.wait(PATIENCE)
        return M.select(matchers, start, end)

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[object]:
        raise AssertionError


def test_queries_of_one_querier_share_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise.history.querier.embedded.Cells", lambda: Cells(2 * CELLS))

    async def run() -> None:
        slow = Slow()
        querier = EmbeddedQuerier(slow, clock=time.monotonic)  # type: ignore[arg-type]  # its series are not asked for
        first = asyncio.create_task(querier.range("m + m", 0, STEPS - 1, 1))
        await asyncio.to_thread(slow.stands.wait, PATIENCE)
        with pytest.raises(Unavailable, match=f"that are computed now hold {2 * CELLS} values"):
            await querier.range("m", 0, STEPS - 1, 1)
        slow.open.set()
        with pytest.raises(Unavailable):  # alone it is too much for so little as well
            await first
        assert len((await querier.range('sum(m{i="0"})', 0, STEPS - 1, 1)).data.series) == 1
        await querier.close()

    asyncio.run(run())


def test_the_limits_leave_room_for_an_operator_over_the_largest_parts_and_for_a_query_beside_it() -> None:
    assert MOST_CELLS_OF_QUERY >= 3 * MOST_CELLS
    assert MOST_CELLS_OF_ALL > MOST_CELLS_OF_QUERY


@pytest.mark.parametrize(
    "query",
    [
        "m",
        "-m",
        "m + m",
        "m + (m + m)",
        "m > 5",
        "m and m",
        "rate(m[5s])",
        "sum(m)",
        "avg by (half) (m)",
        "topk(2, m)",
        "max_over_time(m[2s:1s])",
    ],
)
def test_what_is_counted_is_about_what_is_taken_of_the_memory(query: str) -> None:
    series, steps = 50, 2_000
    moments = np.arange(0, steps * 1_000, 1_000, dtype=np.int64)
    values = moments.astype(np.float64)
    storage = MemoryStorage(
        [StoredSeries(labels({"__name__": "m", "i": str(i), "half": str(i % 2)}), moments, values) for i in range(series)]
    )
    watched = Watched()
    evaluator = Evaluator(storage, Settings(), Budget(lambda: 0.0, 1.0, all_held=watched), Grid(0, 1_000, steps))
    node = compile_query(query)
    tracemalloc.start()
    try:
        evaluator.vector(node)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * 9 * watched.most
