"""The door of the engine: a query and its moments in, samples out. Times at this door are Unix seconds.

Results have the shapes of Prometheus' HTTP API; writing them as JSON is another file's.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from poise.history.promql.compile import compile_query
from poise.history.promql.errors import BadQuery
from poise.history.promql.evaluate import Evaluator, Settings
from poise.history.promql.labels import Labels
from poise.history.promql.limits import CELLS_OF_SAMPLE, MOST_STEPS, TIMEOUT, Budget, Cells
from poise.history.promql.nodes import Node, Range, String, Subquery, Type, type_of
from poise.history.promql.series import Floats, Storage, Times
from poise.history.promql.vectors import Grid, Vector

#: The moments that can be asked for: years 1 to 9999, so that milliseconds fit everywhere.
_EARLIEST, _LATEST = -62_135_596_800.0, 253_402_300_799.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One element of an instant vector."""

    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class Samples:
    """One series of a range vector or of a range query: times in milliseconds, rising."""

    labels: Labels
    times: Times
    values: Floats


@dataclass(frozen=True, slots=True)
class InstantVector:
    """The value of an expression at one moment (milliseconds); in order of value where the query sorts, else as stored."""

    at: int
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Series over time, in order of their labels."""

    series: tuple[Samples, ...]


@dataclass(frozen=True, slots=True)
class ScalarValue:
    """A number at one moment (milliseconds)."""

    at: int
    value: float


@dataclass(frozen=True, slots=True)
class StringValue:
    """A string, at one moment (milliseconds)."""

    at: int
    value: str


Result = InstantVector | Matrix | ScalarValue | StringValue


@dataclass(frozen=True, slots=True)
class Engine:
    """Answers queries over a storage. Safe from several threads when the storage is. `timeout` in seconds, `clock` monotonic; `all_held` counts what
    is held by all queries of the engines that have it.
    """

    storage: Storage
    settings: Settings = field(default_factory=Settings)
    timeout: float = TIMEOUT
    clock: Callable[[], float] = time.monotonic
    all_held: Cells = field(default_factory=Cells)

    def instant(self, query: str | Node, at: float) -> Result:
        """The value of a query at one moment.

        Raises:
            BadQuery: no PromQL, not supported, or a moment that cannot be.
            ExecutionError: ambiguous matches, duplicate results, limits.
            QueryTimeout: it took too long.
            Unavailable: other queries hold so much that it has no room now, or the storage says so.
        """
        node = compile_query(query) if isinstance(query, str) else query
        moment = _milliseconds(at, "time")
        with self._evaluator(Grid(moment, 1, 1)) as evaluator:
            match type_of(node):
                case Type.STRING:
                    assert isinstance(node, String)
                    return StringValue(moment, node.value)
                case Type.SCALAR:
                    return ScalarValue(moment, float(evaluator.scalar(node)[0]))
                case Type.MATRIX:
                    assert isinstance(node, Range | Subquery)
                    return _matrix_of_windows(evaluator, node)
            return InstantVector(moment, _elements(evaluator.vector(node)))

    def range(self, query: str | Node, start: float, end: float, step: float) -> Matrix:
        """The values of a query from `start` to `end` (inclusive), `step` seconds apart.

        Raises:
            BadQuery: as `instant`; also for a query that gives no instant vector or number, and for steps that cannot be.
            ExecutionError: as `instant`.
            QueryTimeout: as `instant`.
            Unavailable: as `instant`.
        """
        node = compile_query(query) if isinstance(query, str) else query
        kind = type_of(node)
        if kind not in (Type.SCALAR, Type.VECTOR):
            raise BadQuery(f"a range query takes a scalar or an instant vector; this is a {kind}: {node.text}")
        grid = _grid(start, end, step)
        with self._evaluator(grid) as evaluator:
            if kind is Type.SCALAR:
                return Matrix((Samples((), grid.times, evaluator.scalar(node)),))
            vector = evaluator.vector(node)
            evaluator.budget.take_cells(int(vector.present.sum()) * CELLS_OF_SAMPLE)
            times = grid.times
            rows = [
                Samples(own, times[here], values[here])
                for own, values, here in zip(vector.labels, vector.values, vector.present, strict=True)
            ]
            return Matrix(tuple(sorted((row for row in rows if len(row.times)), key=lambda row: row.labels)))

    @contextlib.contextmanager
    def _evaluator(self, grid: Grid) -> Iterator[Evaluator]:
        """Whoever evaluates one query; afterwards it holds nothing, whatever became of it."""
        budget = Budget(self.clock, self.clock() + self.timeout, all_held=self.all_held)
        try:
            yield Evaluator(self.storage, self.settings, budget, grid)
        finally:
            budget.close()


def _milliseconds(seconds: float, name: str) -> int:
    if not math.isfinite(seconds) or not _EARLIEST <= seconds <= _LATEST:
        raise BadQuery(f"{name}={seconds} is no Unix time in seconds")
    return round(seconds * 1000)


def _grid(start: float, end: float, step: float) -> Grid:
    first, last = _milliseconds(start, "start"), _milliseconds(end, "end")
    if last < first:
        raise BadQuery(f"end={end} is before start={start}")
    if not math.isfinite(step) or round(step * 1000) <= 0:
        raise BadQuery(f"step={step} must be at least a millisecond")
    width = round(step * 1000)
    count = (last - first) // width + 1
    if count > MOST_STEPS:
        raise BadQuery(f"{count} steps exceed the maximum of {MOST_STEPS} per series; ask for a longer step or a shorter range")
    return Grid(first, width, count)


def _elements(vector: Vector) -> tuple[Sample, ...]:
    return tuple(Sample(own, float(vector.values[row, 0])) for row, own in enumerate(vector.labels) if vector.present[row, 0])


def _matrix_of_windows(evaluator: Evaluator, node: Range | Subquery) -> Matrix:
    rows = []
    for window in evaluator.windows(node):
        inside = np.s_[int(window.first[0]) : int(window.last[0])]
        if len(window.times[inside]):
            rows.append(Samples(window.labels, window.times[inside], window.values[inside]))
    return Matrix(tuple(sorted(rows, key=lambda row: row.labels)))
