"""Many new series at once: one statement, numbers that nobody had before, a limit for one scrape, and no reader who waits for the disk."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from poise.history.promql.series import stale_flags
from poise.history.store.chunks import encode_tick
from poise.history.store.database import LARGEST_NUMBER, Database
from poise.history.store.intake import MOST_NEW_SERIES
from poise.history.store.sqlite_file import WriteFailed
from poise.history.store.store import Store
from sqlalchemy import event, text

from tests.kept_history import EVERYTHING, START, World, own

PATIENCE = 20.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "history.db")
    yield made
    made.store.close()


def numbers(path: Path) -> dict[str, int]:
    """The number of each series in a file, by its name."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("SELECT json_extract(labels, '$.__name__'), id FROM series WHERE json_valid(labels)").fetchall())


def spoil(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


# ----------------------------------------------------------------------------------------------------------------- statements
def test_as_many_statements_write_a_thousand_new_series_as_one(world: World) -> None:
    assert world.store._database is not None
    asked: list[tuple[str, bool]] = []

    @event.listens_for(world.store._database._engine, "before_cursor_execute")
    def remember(connection: object, cursor: object, statement: str, given: object, context: object, many: bool) -> None:
        asked.append((" ".join(statement.split()[:3]), many))

    world.store.append("t", START, {own(f"x{n}"): float(n) for n in range(1_000)})
    assert [statement for statement, _ in asked if "INSERT" in statement] == ["INSERT INTO series", "INSERT INTO tick"]
    assert ("INSERT INTO series", True) in asked
    asked.clear()
    world.store.append("t", START + 1, {own(f"x{n}"): float(n) for n in range(1_000)})
    assert [statement for statement, _ in asked if "INSERT" in statement] == ["INSERT INTO tick"]
    world.clock.go_on(10)
    world.restart()
    assert [world.samples(f"x{n}") for n in (0, 999)] == [[(0, 0.0), (1, 0.0)], [(0, 999.0), (1, 999.0)]]


@pytest.mark.parametrize("over", ["an hour", "a clock set back"])
def test_as_many_statements_pack_three_hundred_series_as_one(world: World, over: str) -> None:
    page = {own(f"x{n}"): float(n) for n in range(300)}
    world.store.append("t", START, page)
    world.store.append("t", START + 10, page)
    assert world.store._database is not None
    asked: list[str] = []

    @event.listens_for(world.store._database._engine, "before_cursor_execute")
    def remember(connection: object, cursor: object, statement: str, *more: object) -> None:
        asked.append(statement)

    world.store.append("t", START + (2 * 3_600 if over == "an hour" else 5), {own("x0"): 1.0})
    # The hour; or what lies ahead of the clock, and what came before the step.
    assert len([one for one in asked if one.startswith("INSERT OR REPLACE INTO chunk")]) == (1 if over == "an hour" else 2)
    event.remove(world.store._database._engine, "before_cursor_execute", remember)
    assert world.samples("x299", START, START + 4) == [(0, 299.0)]
    assert len(world.samples("x299")) == (2 if over == "an hour" else 1)


# -------------------------------------------------------------------------------------------------------------------- numbers
def test_no_number_is_given_twice_over_restarts_and_through_damage(world: World) -> None:
    world.store.append("t", START, {own(name): 1.0 for name in "abc"})
    world.clock.go_on(3_700)
    world.store.append("t", world.clock.go_on(5), {own("d"): 2.0})  # and what was before is in chunks
    world.store.close()
    assert numbers(world.path) == {"a": 1, "b": 2, "c": 3, "d": 4}
    # A row whose labels are garbage, a row that is gone while its chunks stay, and ticks of a series that nobody knows.
    spoil(world.path, "UPDATE series SET labels = '{' WHERE id = 2", "DELETE FROM series WHERE id IN (3, 4)")
    world.store = world.open()
    at = world.clock.go_on(5)
    world.store.append("t", at, {own("e"): 5.0})
    world.restart()
    assert numbers(world.path) == {"a": 1, "e": 5}
    assert world.samples("e") == [(at - START, 5.0)]
    assert world.samples("a") == [(0, 1.0)]


def test_a_number_that_only_a_tick_names_is_taken(tmp_path: Path) -> None:
    with World(tmp_path / "history.db") as world:
        world.store.append("t", START, {own("x"): 1.0})
        world.store.close()
        tick = encode_tick(np.array([1, 70], dtype=np.uint32), np.array([2.0, 9.0]))
        with contextlib.closing(sqlite3.connect(world.path)) as connection:
            connection.execute("INSERT INTO tick (at, data) VALUES (?, ?)", (round(START + 5) * 1000, tick))
            connection.commit()
        world.clock.go_on(10)
        world.store = world.open()
        world.store.append("t", world.clock.wall, {own("new"): 3.0})
        world.restart()
        assert numbers(world.path) == {"x": 1, "new": 71}
        assert world.samples("new") == [(10, 3.0)]


def test_what_a_full_disk_did_not_take_has_used_no_numbers_and_gets_one_later(world: World) -> None:
    assert world.store._database is not None
    full = [True]

    @event.listens_for(world.store._database._engine, "before_cursor_execute")
    def fail(connection: object, cursor: object, statement: str, *more: object) -> None:
        if full[0] and statement.startswith("INSERT INTO tick"):
            raise sqlite3.OperationalError("database or disk is full")

    for tick in range(3):
        world.store.append("t", START + tick, {own(name): float(tick) for name in "ab"})
    assert "full" in world.store.status().error
    full[0] = False
    world.store.append("t", START + 3, {own(name): 3.0 for name in "abc"})
    assert numbers(world.path) == {"a": 1, "b": 2, "c": 3}
    assert world.samples("a") == [(tick, float(tick)) for tick in range(4)]


def test_where_numbers_are_used_up_a_new_file_is_begun_and_what_is_in_memory_goes_there(world: World) -> None:
    world.store.append("t", START, {own("x"): 1.0})
    assert world.store._database is not None
    world.store._database.number_after(LARGEST_NUMBER - 1)
    world.store.append("t", START + 5, {own(name): 2.0 for name in ("x", "y", "z")})
    assert world.store.status().error == ""
    assert len(list(world.path.parent.glob("history.db.damaged-*"))) == 1
    world.clock.go_on(10)
    world.restart()
    assert [world.samples(name) for name in "xyz"] == [[(0, 1.0), (5, 2.0)], [(5, 2.0)], [(5, 2.0)]]
    assert sorted(numbers(world.path).values()) == [1, 2, 3]


def test_the_last_number_can_be_had_and_none_after_it(tmp_path: Path) -> None:
    database = Database(tmp_path / "history.db")
    database.number_after(LARGEST_NUMBER - 1)
    with database.writing() as writer:
        assert writer.add_series([own("last")]) == {own("last"): LARGEST_NUMBER}
    with pytest.raises(WriteFailed, match="no numbers left"), database.writing() as writer:
        writer.add_series([own("more")])
    database.close()


# --------------------------------------------------------------------------------------------------------------------- readers
def test_neither_queries_nor_the_status_wait_for_a_disk_and_writes_come_in_their_order(world: World) -> None:
    world.store.append("t", START, {own("x"): 1.0})
    assert world.store._database is not None
    engine, arrived, go_on = world.store._database._engine, threading.Event(), threading.Event()

    @event.listens_for(engine, "commit")
    def hold(connection: object) -> None:
        arrived.set()
        assert go_on.wait(PATIENCE)

    first = threading.Thread(target=world.store.append, args=("t", START + 5, {own("x"): 2.0, own("new"): 2.0}))
    second = threading.Thread(target=world.store.append, args=("other", START + 6, {own("late"): 3.0}))
    try:
        first.start()
        assert arrived.wait(PATIENCE)
        second.start()
        # All of this happens in this thread while the first write stands before its commit.
        assert world.samples("x", START) == [(0, 1.0), (5, 2.0)]
        assert world.samples("new", START) == [(5, 2.0)]
        assert set(world.store.names()) == {"x", "new"}
        assert world.store.names_since(START + 5) == {"x", "new"}
        assert len(world.store.series(EVERYTHING, round(START * 1000), 1 << 60)) == 2
        assert (world.store.status().series, world.store.status().error) == (2, "")
        assert world.store.oldest() == START
        assert first.is_alive()
        assert second.is_alive()
    finally:
        go_on.set()
        first.join(PATIENCE)
        second.join(PATIENCE)
        event.remove(engine, "commit", hold)
    with engine.connect() as connection:
        assert [row[0] for row in connection.execute(text("SELECT at FROM tick ORDER BY id"))] == [
            round(START + at) * 1000 for at in (0, 5, 6)
        ]


def test_while_an_hour_goes_to_chunks_all_of_it_can_be_read(world: World) -> None:
    put = []
    for _ in range(11):
        at = world.clock.go_on(300)
        world.store.append("t", at, {own("x"): at - START})
        put.append((at - START, at - START))
    assert world.store._database is not None
    seen: list[list[tuple[float, float]]] = []

    @event.listens_for(world.store._database._engine, "commit")
    def look(connection: object) -> None:
        # In a thread of its own, for whoever writes may look at everything.
        reader = threading.Thread(target=lambda: seen.append(world.samples("x")))
        reader.start()
        reader.join(PATIENCE)

    for _ in range(14):
        at = world.clock.go_on(300)
        put.append((at - START, at - START))
        before = len(seen)
        world.store.append("t", at, {own("x"): at - START})
        assert len(seen) > before
        assert all(one == put for one in seen[before:])
    assert world.store.status().chunks > 0


def test_a_process_that_is_killed_loses_nothing_of_series_that_were_new(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    code = f"""
from pathlib import Path
from poise.history.promql.labels import labels
from poise.history.store.store import Store
store = Store(Path({str(path)!r}), wall=lambda: {START})
count = 0
while True:
    store.append("t", {START} + count, {{labels({{"__name__": f"x{{count}}", "job": "j", "n": str(n)}}): float(count) for n in range(50)}})
    print(count, flush=True)
    count += 1
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 30:
                break
        process.kill()
        seen = [int(line) for line in process.stdout if line.strip()]
    last = max(seen, default=30)
    store = Store(path, wall=lambda: START + 1_000_000)
    found = {one.labels: one.values[~stale_flags(one.values)].tolist() for one in store.select(EVERYTHING, 0, 1 << 60)}
    store.close()
    assert all(found[own(f"x{tick}", n=str(n))] == [float(tick)] for tick in range(last + 1) for n in range(50))


# ---------------------------------------------------------------------------------------------------------------------- limits
def test_more_new_series_than_one_scrape_may_bring_come_with_the_next_ones_and_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    store = Store(None, most_new_series=5)
    page = {own(f"x{n}"): 1.0 for n in range(12)}
    had = []
    for tick in range(4):
        store.append("t", START + tick, page)
        store.append("other", START + tick, {own("other"): 1.0})
        had.append((store.status().series, store.status().postponed_series))
    assert had == [(6, 7), (11, 9), (13, 9), (13, 9)]
    assert store.status().dropped_series == 0
    assert caplog.text.count("target t has 7 new series more than one scrape may bring") == 1
    assert "target other" not in caplog.text
    store.append("t", START + 4, {own(f"y{n}"): 1.0 for n in range(6)})
    assert caplog.text.count("more than one scrape may bring") == 2


def test_after_a_restart_a_page_that_was_known_is_whole_at_once(tmp_path: Path) -> None:
    page = {own(f"x{n}"): 1.0 for n in range(12)}
    path = tmp_path / "history.db"
    clock = [START]
    store = Store(path, wall=lambda: clock[0])
    store.append("t", START, page)
    store.close()
    clock[0] += 3 * 3_600
    store = Store(path, wall=lambda: clock[0], most_new_series=1)
    store.append("t", clock[0], page)
    assert store.status().postponed_series == 0
    assert len(store.select(EVERYTHING, round(clock[0] * 1000), round(clock[0] * 1000))) == 12
    store.close()


def test_a_node_of_our_largest_page_is_whole_with_its_first_scrape() -> None:
    assert MOST_NEW_SERIES >= 4_000  # 8 cards and 4 engines, as text_format.py says
