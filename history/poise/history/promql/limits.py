"""What a query may cost: time, points, cells. One object follows a query through its evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from poise.history.promql.errors import ExecutionError, QueryTimeout

#: Prometheus' own limit on steps of a range query.
MOST_STEPS = 11_000
#: Series × steps of any part of a query, 9 bytes each; Prometheus' limit of 50 million samples, less what several parts need at once.
MOST_CELLS = 10_000_000
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


@dataclass(slots=True)
class Budget:
    """What is left for one query. `clock` gives monotonic seconds, `deadline` in the same."""

    clock: Callable[[], float]
    deadline: float
    samples: int = MOST_SAMPLES
    characters: int = MOST_CHARACTERS

    def check_time(self) -> None:
        """Raises QueryTimeout past the deadline."""
        if self.clock() > self.deadline:
            raise QueryTimeout("the query took too long; ask for a shorter range, a longer step or fewer series")

    def take_samples(self, count: int) -> None:
        """Raises ExecutionError when the query has read more than it may."""
        self.samples -= count
        if self.samples < 0:
            raise ExecutionError(f"the query reads more than {MOST_SAMPLES} samples; ask for a shorter range or fewer series")

    def take_label(self, length: int) -> None:
        """For each label value that is made. Raises ExecutionError when it is too long, or all together are; QueryTimeout past the deadline."""
        if length > LONGEST_LABEL:
            raise ExecutionError(f"the query makes a label value of more than {LONGEST_LABEL} characters")
        self.characters -= length
        if self.characters < 0:
            raise ExecutionError(f"the query makes label values of more than {MOST_CHARACTERS} characters together; ask for fewer series")
        self.check_time()

    def check_cells(self, rows: int, steps: int) -> None:
        """Raises ExecutionError for a result that is too large to hold."""
        if rows * steps > MOST_CELLS:
            raise ExecutionError(f"a part of the query has {rows} series at {steps} steps, more than {MOST_CELLS} values; ask for less")
