"""Walks a syntax tree over a grid of moments. Everything that needs series, time or limits is here; the arithmetic is in its neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from poise.history.promql import aggregations, functions, histogram, one_step, operators, windows
from poise.history.promql.compile import RANGE_FUNCTIONS, SET_OPERATORS
from poise.history.promql.errors import ExecutionError
from poise.history.promql.labels import drop_name
from poise.history.promql.limits import CELLS_OF_SAMPLE, MOST_STEPS, Budget
from poise.history.promql.nodes import (
    Aggregation,
    Binary,
    Call,
    Negation,
    Node,
    Number,
    Range,
    Selector,
    String,
    Subquery,
    Type,
    type_of,
)
from poise.history.promql.series import Floats, Storage, StoredSeries, Times, any_stale, at_any, stale_flags
from poise.history.promql.vectors import Grid, Vector, Window, distinct


class Semantics(Enum):
    """Where the two living generations of Prometheus differ: the edge of a range, and how a new counter is extrapolated."""

    PROMETHEUS_2 = 2  # a sample exactly as old as the range belongs to it
    PROMETHEUS_3 = 3  # it does not


@dataclass(frozen=True, slots=True)
class Settings:
    """How to evaluate. Milliseconds."""

    lookback: int = 5 * 60_000
    default_step: int = 60_000  # of a subquery that names none; Prometheus' global evaluation interval
    semantics: Semantics = Semantics.PROMETHEUS_3


@dataclass(slots=True)
class Evaluator:
    """Evaluates nodes at all moments of `grid`."""

    storage: Storage
    settings: Settings
    budget: Budget
    grid: Grid

    @property
    def _closed(self) -> bool:
        """Whether the far edge of a range belongs to it."""
        return self.settings.semantics is Semantics.PROMETHEUS_2

    # ----------------------------------------------------------------------------------------------------------- by type
    def scalar(self, node: Node) -> Floats:
        """The number at each step."""
        before = self.budget.held
        result = self._scalar(node)
        self._stands(1, before)
        return result

    def _scalar(self, node: Node) -> Floats:
        match node:
            case Number():
                return np.full(self.grid.count, node.value)
            case Negation():
                return -self.scalar(node.inner)
            case Binary():
                return operators.scalars(node.operator, self.scalar(node.left), self.scalar(node.right))
            case Call(function="time"):
                seconds: Floats = self.grid.times / 1000.0
                return seconds
            case Call(function="scalar"):
                return functions.scalar_of(self.vector(node.arguments[0]))
        raise ExecutionError(f"{node.text} is no number")

    def vector(self, node: Node) -> Vector:
        """The instant vector at each step."""
        self.budget.check_time()
        before = self.budget.held
        result = self._vector(node)
        self._stands(len(result.labels), before)
        return result

    def _stands(self, rows: int, before: int) -> None:
        """What was made stands in the place of everything that was taken for it, since the budget had `before` cells."""
        self.budget.check_cells(rows, self.grid.count)
        self.budget.take_cells(rows * self.grid.count)
        self.budget.keep_only(before + rows * self.grid.count)

    def _vector(self, node: Node) -> Vector:
        match node:
            case Selector():
                return self._selected(node, timestamps=False)
            case Negation():
                inner = self.vector(node.inner)
                return functions.nameless(inner, -inner.values)
            case Binary():
                return self._binary(node)
            case Aggregation():
                parameter = None if node.parameter is None else self.scalar(node.parameter)
                vector = self.vector(node.inner)
                self.budget.take_cells(vector.values.size)  # the values of a group are put together anew
                return aggregations.aggregate(node, vector, parameter)
            case Call():
                return self._windowed(node) if node.function in RANGE_FUNCTIONS else self._call(node)
        raise ExecutionError(f"{node.text} is no instant vector")

    # --------------------------------------------------------------------------------------------------------- selectors
    def _series(self, selector: Selector, reach: int) -> list[StoredSeries]:
        """The series of a selector with the samples that any step may see, `reach` milliseconds back."""
        start, end = self.grid.start - selector.offset - reach, self.grid.end - selector.offset
        found = list(self.storage.select(selector.matchers, start, end))
        self.budget.take_samples(sum(len(one.times) for one in found))
        return found

    def _selected(self, selector: Selector, *, timestamps: bool) -> Vector:
        """The newest sample of each series at each step, or its time in seconds."""
        lookback = self.settings.lookback
        moments = self.grid.times - selector.offset
        found = self._series(selector, lookback)
        self.budget.check_cells(len(found), self.grid.count)
        if self.grid.count == 1:
            return self._newest(found, int(moments[0]), timestamps=timestamps)
        made = Vector.unfilled(found, self.grid.count)
        for row, one in enumerate(found):
            places = np.searchsorted(one.times, moments, side="right") - 1
            clipped = np.maximum(places, 0)
            age = moments - one.times[clipped]
            fresh = age <= lookback if self._closed else age < lookback
            made.present[row] = (places >= 0) & fresh & ~stale_flags(one.values)[clipped]
            made.values[row] = one.times[clipped] / 1000.0 if timestamps else one.values[clipped]
        return made.without_absent_rows()

    def _newest(self, found: Sequence[StoredSeries], moment: int, *, timestamps: bool) -> Vector:
        """`_selected` at a single moment: nothing that was found is later, so that the last sample decides."""
        oldest = moment - self.settings.lookback + (0 if self._closed else 1)
        found = [one for one in found if len(one.times)]
        newest = np.array([one.values[-1] for one in found])
        ended = stale_flags(newest).tolist()
        named, values = [], []
        for one, value, is_over in zip(found, newest.tolist(), ended, strict=True):
            at = int(one.times[-1])
            if at >= oldest and not is_over:
                named.append(one.labels)
                values.append(at / 1000.0 if timestamps else value)
        return Vector.column(named, values)

    def windows(self, node: Range | Subquery) -> Iterator[Window]:
        """Every series of a range with the places of each step's samples."""
        return self._windows(node, self._ranged(node))

    def _ranged(self, node: Range | Subquery) -> list[StoredSeries]:
        """The series of a range."""
        series = self._series(node.selector, node.window) if isinstance(node, Range) else self._subquery(node)
        self.budget.check_cells(len(series), self.grid.count)
        return series

    def _windows(self, node: Range | Subquery, series: Sequence[StoredSeries]) -> Iterator[Window]:
        """One after the other, for places take more than the values in them."""
        offset = node.selector.offset if isinstance(node, Range) else node.offset
        starts, ends = self._edges(node.window, offset)
        for one in series:
            self.budget.check_time()
            times, values = one.times, one.values
            stale = stale_flags(values)
            if stale.any():
                times, values = times[~stale], values[~stale]
            first = np.searchsorted(times, starts, side="left" if self._closed else "right")
            yield Window(one.labels, times, values, first, np.searchsorted(times, ends, side="right"))

    def _edges(self, window: int, offset: int) -> tuple[Times, Times]:
        """Start and end of the range at each step."""
        ends = self.grid.times - offset
        return ends - window, ends

    def _subquery(self, node: Subquery) -> list[StoredSeries]:
        """The inner expression at multiples of the step, as series."""
        step = node.step or self.settings.default_step
        earliest = self.grid.start - node.offset - node.window
        start = -(-earliest // step) * step if self._closed else (earliest // step + 1) * step
        end = self.grid.end - node.offset
        count = max((end - start) // step + 1, 0)
        if count > MOST_STEPS * 4:
            raise ExecutionError(f"the subquery {node.text} has {count} steps; at most {MOST_STEPS * 4} are taken")
        if count == 0:
            return []
        inner = replace(self, grid=Grid(start, step, count))
        before = self.budget.held
        vector = inner.vector(node.inner)
        times, samples = inner.grid.times, int(vector.present.sum())
        self.budget.take_samples(samples)
        self.budget.take_cells(samples * CELLS_OF_SAMPLE)
        series = [
            StoredSeries(own, times[here], values[here])
            for own, values, here in zip(vector.labels, vector.values, vector.present, strict=True)
        ]
        self.budget.keep_only(before + samples * CELLS_OF_SAMPLE)
        return series

    # --------------------------------------------------------------------------------------------------------- functions
    def _windowed(self, node: Call) -> Vector:
        """A function over a range."""
        argument = node.arguments[0]
        assert isinstance(argument, Range | Subquery)
        if self.grid.count == 1 and node.function != "absent_over_time":
            return self._one_step(node.function, argument)
        series = self._ranged(argument)
        found = self._windows(argument, series)
        if node.function == "absent_over_time":
            there = np.zeros(self.grid.count, dtype=bool)
            for window in found:
                there |= windows.counted(window) > 0
            return functions.absent(argument, there)
        offset = argument.selector.offset if isinstance(argument, Range) else argument.offset
        starts, ends = self._edges(argument.window, offset)
        extrapolating, simple = windows.EXTRAPOLATING.get(node.function), windows.SIMPLE.get(node.function)
        made = Vector.unfilled(series, self.grid.count)
        if node.function != "last_over_time":
            made.labels = [drop_name(own) for own in made.labels]
        for row, window in enumerate(found):
            if not len(window.times):
                made.present[row] = False
            elif extrapolating is not None:
                made.values[row], made.present[row] = extrapolating(window, starts, ends, argument.window / 1000.0, self._closed)
            else:
                assert simple is not None
                made.values[row], made.present[row] = simple(window)
        return distinct(made.without_absent_rows(), together=False)

    def _one_step(self, name: str, argument: Range | Subquery) -> Vector:
        """A function over a range at a single moment, for which no sample was found that lies outside of the range, but on its far edge."""
        offset = argument.selector.offset if isinstance(argument, Range) else argument.offset
        series = self._series(argument.selector, argument.window) if isinstance(argument, Range) else self._subquery(argument)
        end = self.grid.start - offset
        start, function = end - argument.window, one_step.FUNCTIONS[name]
        named, found = [], []
        # Asked of all series together: few ever have a marker, and each asked by itself costs as much as its function.
        ended = any_stale([one.values for one in series])
        closed, keeps_name = self._closed, name == "last_over_time"
        for one in series:
            times, values = one.times, one.values
            if not closed and len(times) and times[0] == start:
                times, values = times[1:], values[1:]
            if ended:
                living = ~stale_flags(values)
                times, values = times[living], values[living]
            value = function(one_step.Span(times, values, start, end, closed)) if len(times) else None
            if value is not None:
                named.append(one.labels if keeps_name else drop_name(one.labels))
                found.append(value)
        return distinct(Vector.column(named, found), together=False)

    def _call(self, node: Call) -> Vector:
        """A function over instant vectors and numbers."""
        first = node.arguments[0]
        match node.function:
            case "vector":
                steps = self.grid.count
                return Vector([()], self.scalar(first)[np.newaxis, :], np.ones((1, steps), dtype=bool))
            case "timestamp":
                return self._timestamps(first)
            case "histogram_quantile":
                return histogram.histogram_quantile(self.scalar(first), self.vector(node.arguments[1]))
            case "absent":
                return functions.absent(first, at_any(self.vector(first).present))
        vector = self.vector(first)
        match node.function:
            case "abs" | "ceil" | "floor":
                return functions.elementwise(node.function, vector)
            case "round":
                return functions.rounded(vector, self.scalar(node.arguments[1]) if len(node.arguments) > 1 else None)
            case "clamp":
                return functions.clamped(vector, self.scalar(node.arguments[1]), self.scalar(node.arguments[2]))
            case "clamp_min":
                return functions.clamped_below(vector, self.scalar(node.arguments[1]))
            case "clamp_max":
                return functions.clamped_above(vector, self.scalar(node.arguments[1]))
            case "sort" | "sort_desc":
                return functions.ordered(vector, descending=node.function == "sort_desc")
        texts = [argument.value for argument in node.arguments[1:] if isinstance(argument, String)]
        if node.function == "label_replace":
            return functions.label_replace(vector, self.budget, *texts)
        return functions.label_join(vector, self.budget, texts[0], texts[1], texts[2:])

    def _timestamps(self, argument: Node) -> Vector:
        """Of a selector the times of its samples, of anything else the time of evaluation; seconds."""
        if isinstance(argument, Selector):
            vector = self._selected(argument, timestamps=True)
            return functions.nameless(vector, vector.values)
        vector = self.vector(argument)
        return functions.nameless(vector, np.broadcast_to(self.grid.times / 1000.0, vector.values.shape).copy())

    def _binary(self, node: Binary) -> Vector:
        left_scalar, right_scalar = (type_of(side) is Type.SCALAR for side in (node.left, node.right))
        if left_scalar or right_scalar:
            vector, scalar = (node.right, node.left) if left_scalar else (node.left, node.right)
            return operators.vector_with_scalar(
                node.operator, self.vector(vector), self.scalar(scalar), scalar_left=left_scalar, returns_bool=node.returns_bool
            )
        left, right = self.vector(node.left), self.vector(node.right)
        if node.operator in SET_OPERATORS:
            return operators.sets(node.operator, left, right, node.matching)
        return operators.vectors(node.operator, left, right, node.matching, node.returns_bool)
