"""How the store's file is asked: by the index that leads to the chunks of a few series, however many others there are."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from poise.history.promql.labels import labels
from poise.history.store.chunks import HOUR, by_hour
from poise.history.store.database import Database
from poise.history.store.reader import Reader
from sqlalchemy import Engine, event

SERIES, HOURS = 40, 3


@pytest.mark.parametrize("count", [1, 2, 16, 40])
@pytest.mark.parametrize("asked", [Reader.chunks, Reader.present], ids=["chunks", "present"])
def test_the_chunks_of_some_series_are_found_without_a_look_at_those_of_others(
    tmp_path: Path, asked: Callable[[Reader, list[int], int, int], dict[int, Any] | set[int]], count: int
) -> None:
    database = Database(tmp_path / "h.db")
    names = [labels({"__name__": "x", "gpu": str(number)}) for number in range(SERIES)]
    times = np.arange(0, HOURS * HOUR, 300_000, dtype=np.int64)
    with database.writing() as writer:
        numbers = writer.add_series(names)
        for number in numbers.values():
            writer.put_chunks(by_hour(number, times, times.astype(np.float64)))
    statements: list[tuple[str, Any]] = []

    def noted(_connection: Any, _cursor: Any, statement: str, given: Any, _context: Any, _many: bool) -> None:
        statements.append((statement, given))

    wanted = list(numbers.values())[:count]
    event.listen(Engine, "before_cursor_execute", noted)
    try:
        assert sorted(asked(database.reader, wanted, HOUR, 2 * HOUR - 1)) == wanted
    finally:
        event.remove(Engine, "before_cursor_execute", noted)
    database.close()
    ((statement, given),) = [one for one in statements if one[0].startswith("SELECT")]
    with contextlib.closing(sqlite3.connect(tmp_path / "h.db")) as connection:
        plan = [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", given)]
        ((index,),) = connection.execute("SELECT name FROM pragma_index_list('chunk') WHERE origin = 'pk'")
    assert re.match(rf"SEARCH chunk USING (COVERING )?INDEX {index} \(series=\? AND start>\? AND start<\?", plan[0]), plan
