"""What a query may cost: time, points, cells, and what all queries of a process may hold together. One object follows a query through its evaluation.

A cell is a value at a step with its flag, 9 bytes. Cells are taken where a vector is made and given back where what was made of it stands in its place,
so that the sum is what is held at once: of `a + (b + (c + d))` all four and the sums on the way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from poise.history.promql.errors import ExecutionError, QueryTimeout, Unavailable

#: Prometheus' own limit on steps of a range query.
MOST_STEPS = 11_000
#: Series × steps of any part of a query, 9 bytes each; Prometheus' limit of 50 million samples, less what several parts need at once.
MOST_CELLS = 10_000_000
#: Cells of all parts of a query that are held at once: two of the largest, and what an operator makes of them. 270 MB.
MOST_CELLS_OF_QUERY = 3 * MOST_CELLS
#: Cells of all queries that are computed at the same time: one of the largest, and another of usual size beside it. 360 MB.
MOST_CELLS_OF_ALL = 4 * MOST_CELLS
#: Cells that a sample of 16 bytes counts, where an expression is made into series.
CELLS_OF_SAMPLE = 2
#: Samples that a query reads from the store; 400 series over 7 days at 5 s are 48 million.
MOST_SAMPLES = 50_000_000
#: Characters of a label value that an expression makes: as long as a scraped one may be (text_format.py). Without a limit replacements within each
#: other multiply: "$1$1$1$1" makes 4 to the power of their depth.
LONGEST_LABEL = 4_096
#: Labels of a series to which an expression adds one; a scraped one has at most 64, and those of its target.
MOST_LABELS = 128
#: Characters that all the label values made by a query may have together.
MOST_CHARACTERS = 50_000_000
#: Seconds (Prometheus: two minutes, for a disk that is not in this process).
TIMEOUT = 30.0


def too_many_samples() -> ExecutionError:
    """What is said of a query that reads more than it may; a storage says so itself before it has them all in memory."""
    return ExecutionError(f"the query reads more than {MOST_SAMPLES} samples; ask for a shorter range or fewer series")


class Cells:
    """What several queries hold together. Safe from several threads."""

    def __init__(self, most: int = MOST_CELLS_OF_ALL) -> None:
        self._most = most
        self._held = 0
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """Cells that are taken."""
        return self._held

    def take(self, count: int) -> None:
        """Raises Unavailable when the queries would hold more than they may together."""
        with self._lock:
            if self._held + count > self._most:
                raise Unavailable(
                    f"the queries that are computed now hold {self._held} values, and with {count} more it would be over {self._most}; "
                    "ask again later, or for a shorter range, a longer step or fewer series"
                )
            self._held += count

    def give_back(self, count: int) -> None:
        """Cells that were taken."""
        with self._lock:
            self._held -= count


@dataclass(slots=True)
class Budget:
    """What is left for one query. `clock` gives monotonic seconds, `deadline` in the same; `held` are its cells, which are among those of `all_held`.

    Who makes one calls `close` in the end, whatever happened.
    """

    clock: Callable[[], float]
    deadline: float
    samples: int = MOST_SAMPLES
    characters: int = MOST_CHARACTERS
    all_held: Cells = field(default_factory=Cells)
    held: int = 0

    def close(self) -> None:
        """Gives back what is held."""
        self.keep_only(0)

    def check_time(self) -> None:
        """Raises QueryTimeout past the deadline."""
        if self.clock() > self.deadline:
            raise QueryTimeout("the query took too long; ask for a shorter range, a longer step or fewer series")

    def take_samples(self, count: int) -> None:
        """Raises ExecutionError when the query has read more than it may."""
        self.samples -= count
        if self.samples < 0:
            raise too_many_samples()

    def take_label(self, length: int) -> None:
        """For each label value that is made. Raises ExecutionError when it is too long, or all together are; QueryTimeout past the deadline."""
        if length > LONGEST_LABEL:
            raise ExecutionError(f"the query makes a label value of more than {LONGEST_LABEL} characters")
        self.characters -= length
        if self.characters < 0:
            raise ExecutionError(f"the query makes label values of more than {MOST_CHARACTERS} characters together; ask for fewer series")
        self.check_time()

    def check_cells(self, rows: int, steps: int) -> None:
        """Raises ExecutionError for a result that is too large to hold, by itself or beside what is held."""
        if rows * steps > MOST_CELLS:
            raise ExecutionError(f"a part of the query has {rows} series at {steps} steps, more than {MOST_CELLS} values; ask for less")
        self._check_sum(rows * steps)

    def _check_sum(self, count: int) -> None:
        if self.held + count > MOST_CELLS_OF_QUERY:
            raise ExecutionError(
                f"the parts of the query that are needed at once have more than {MOST_CELLS_OF_QUERY} values together; "
                "ask for a shorter range, a longer step, fewer series or fewer parts"
            )

    def take_cells(self, count: int) -> None:
        """For what is made. Raises ExecutionError when the query would hold too much at once, Unavailable when all queries would together."""
        self._check_sum(count)
        self.all_held.take(count)
        self.held += count

    def keep_only(self, held: int) -> None:
        """Gives back all but so many cells: what they were is no more."""
        self.all_held.give_back(self.held - held)
        self.held = held
