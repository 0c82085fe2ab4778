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
from poise.history.promql.errors import ExecutionError
from poise.history.promql.labels import labels
from poise.history.store.chunks import HEAD_BYTES, HOUR, by_hour, chunk_samples
from poise.history.store.database import Database
from poise.history.store.head import Record
from poise.history.store.reader import Reader, TooMany
from poise.history.store.selecting import newer, with_older
from sqlalchemy import Engine, event

from tests.kept_history import EVERYTHING, World, run_hours

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


def test_samples_over_the_limit_of_a_query_are_neither_read_nor_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with World(tmp_path / "history.db") as world:
        run_hours(world, 3, beside=3)
        head, reader = world.store._head, world.store._database.reader  # type: ignore[union-attr]  # it has a file
        part = newer(head, EVERYTHING, 0, 1 << 60)
        in_memory = sum(len(times) for times, _ in part.samples)
        chunks = reader.chunks([1, 2, 3, 4], 0, 1 << 60)
        on_disk = sum(chunk_samples(data[:HEAD_BYTES]) for own in chunks.values() for data in own)
        assert in_memory > 0
        assert on_disk > 0
        assert len(with_older(part, reader, 0, 1 << 60, on_disk)) == 4
        assert newer(head, EVERYTHING, 0, 1 << 60, in_memory).records
        last = round(world.clock.wall * 1000)
        assert newer(head, EVERYTHING, last, last, 4).records  # only those that were asked for count
        monkeypatch.setattr("poise.history.store.selecting.decode_chunk", None)
        monkeypatch.setattr(Record, "between", None)
        with pytest.raises(ExecutionError, match="reads more than 50000000 samples; ask for a shorter range or fewer series"):
            with_older(part, reader, 0, 1 << 60, on_disk - 1)
        with pytest.raises(ExecutionError, match="reads more than"):
            newer(head, EVERYTHING, 0, 1 << 60, in_memory - 1)


def test_reading_chunks_ends_where_there_are_too_many(tmp_path: Path) -> None:
    database = Database(tmp_path / "h.db")
    times = np.arange(0, HOURS * HOUR, 300_000, dtype=np.int64)
    with database.writing() as writer:
        numbers = writer.add_series([labels({"__name__": "x", "gpu": str(number)}) for number in range(SERIES)])
        for number in numbers.values():
            writer.put_chunks(by_hour(number, times, times.astype(np.float64)))
    seen: list[int] = []

    def counted(head: bytes) -> int:
        seen.append(chunk_samples(head))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("poise.history.store.reader.chunk_samples", counted)
        with pytest.raises(TooMany):
            database.reader.chunks(list(numbers.values()), 0, HOURS * HOUR, most=40)
    assert seen == [12, 12, 12, 12]
    database.close()
