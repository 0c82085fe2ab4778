"""Values during evaluation: every expression is evaluated at all steps of its grid at once, a row for each series.

A cell that is not present says nothing, whatever its value; NaN is a value. This file knows no operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from poise.history.promql.errors import ExecutionError
from poise.history.promql.labels import Labels, text
from poise.history.promql.series import Flags, Floats, StoredSeries, Times, at_any


@dataclass(frozen=True, slots=True)
class Grid:
    """The moments of an evaluation: `count` steps from `start`, `step` apart (milliseconds)."""

    start: int
    step: int
    count: int

    @property
    def times(self) -> Times:
        """All moments, milliseconds."""
        return self.start + self.step * np.arange(self.count, dtype=np.int64)

    @property
    def end(self) -> int:
        """The last moment."""
        return self.start + self.step * (self.count - 1)


@dataclass(slots=True)
class Vector:
    """An instant vector at each step: labels per row, `values` and `present` of shape (rows, steps)."""

    labels: list[Labels]
    values: Floats
    present: Flags

    @staticmethod
    def empty(steps: int) -> Vector:
        """No rows."""
        return Vector([], np.empty((0, steps)), np.empty((0, steps), dtype=bool))

    @staticmethod
    def unfilled(series: Sequence[StoredSeries], steps: int) -> Vector:
        """A row for each series, in which values and presence are still to be written: rows that are made first take the memory twice."""
        shape = (len(series), steps)
        return Vector([one.labels for one in series], np.zeros(shape), np.empty(shape, dtype=bool))

    @staticmethod
    def of(rows: Sequence[tuple[Labels, Floats, Flags]], steps: int) -> Vector:
        """From rows; those that are nowhere present are left out."""
        if not rows:
            return Vector.empty(steps)
        # One after the other and then in rows: `stack` takes ten times as long over rows of one step, of which rules are made.
        values = np.concatenate([row[1] for row in rows]).reshape(-1, steps)
        present = np.concatenate([row[2] for row in rows]).reshape(-1, steps)
        return Vector([row[0] for row in rows], values, present).without_absent_rows()

    @staticmethod
    def column(named: list[Labels], values: Sequence[float]) -> Vector:
        """At a single step, all rows present."""
        return Vector(named, np.array(values, dtype=np.float64).reshape(-1, 1), np.ones((len(named), 1), dtype=bool))

    def without_absent_rows(self) -> Vector:
        """Without rows that are nowhere present."""
        if not self.labels:
            return self
        some = self.present.any(axis=1)
        if some.all():
            return self
        kept = np.flatnonzero(some)
        return Vector([self.labels[row] for row in kept], self.values[kept], self.present[kept])


@dataclass(frozen=True, slots=True)
class Window:
    """One series' samples for a range function: times and values without stale markers; per step the half-open places [first, last)."""

    labels: Labels
    times: Times
    values: Floats
    first: Times
    last: Times


def distinct(vector: Vector, together: bool = True) -> Vector:
    """Rows with the same labels become one, as Prometheus does it for results that follow each other in time.

    Raises:
        ExecutionError: two rows with the same labels are present at one step, or, with `together` false, at all.
    """
    if len(set(vector.labels)) == len(vector.labels):
        return vector
    places: dict[Labels, list[int]] = {}
    for row, own in enumerate(vector.labels):
        places.setdefault(own, []).append(row)
    rows = []
    for own, members in places.items():
        present = vector.present[members]
        living = [member for member in members if vector.present[member].any()]
        if len(living) > 1 and (not together or (present.sum(axis=0) > 1).any()):
            raise ExecutionError(f"vector cannot contain metrics with the same labelset: {text(own)}")
        values = np.full(vector.values.shape[1], np.nan)
        for member in members:
            here = vector.present[member]
            values[here] = vector.values[member][here]
        rows.append((own, values, at_any(present)))
    return Vector.of(rows, vector.values.shape[1])
