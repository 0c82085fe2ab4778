"""The store whose file is spoilt, removed or full: what is in memory goes on and is written again, and a restart finds it."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from poise.history.promql.engine import Engine, InstantVector
from poise.history.store.store import Store
from sqlalchemy import event

from tests.kept_history import START, World, own, run_hours


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "state" / "history.db")
    yield made
    made.store.close()


def settled(path: Path) -> None:
    """The journal goes into the file, so that the file alone can be spoilt."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def spoil(path: Path, first_page: int = 1) -> None:
    """Pages become garbage; the header stays."""
    with path.open("r+b") as file:
        file.seek(first_page * 4096)
        file.write(os.urandom(path.stat().st_size - first_page * 4096))


def damaged(world: World) -> list[Path]:
    return [one for one in world.path.parent.glob("history.db.damaged-*") if not one.name.endswith("-wal")]


def living(store: Store, at: float) -> set[str]:
    result = Engine(store).instant('{job="j"}', at)
    assert isinstance(result, InstantVector)
    return {dict(sample.labels)["__name__"] for sample in result.samples}


def test_garbage_behind_a_good_header_is_put_aside_at_the_start(world: World, caplog: pytest.LogCaptureFixture) -> None:
    run_hours(world, 2)
    world.store.close()
    settled(world.path)
    spoil(world.path)
    world.store = world.open()
    assert "is damaged; it is kept as history.db.damaged-" in caplog.text
    assert len(damaged(world)) == 1
    put = run_hours(world, 2)
    world.restart()
    assert world.samples("x") == put


@pytest.mark.parametrize("found_by", ["reading", "writing"])
def test_garbage_that_is_met_in_use_is_put_aside_and_memory_goes_to_a_new_file(world: World, found_by: str) -> None:
    run_hours(world, 3, beside=20)
    settled(world.path)
    spoil(world.path)
    assert world.store._database is not None
    world.store._database._engine.dispose()  # SQLite has some pages in memory
    world.clock.go_on(100)
    if found_by == "writing":
        world.store.append("t", world.clock.wall, {own("y"): 1.0})
        assert world.store.status().error == ""
    kept = world.samples("x")
    assert len(damaged(world)) == 1
    assert len(kept) >= 10  # what memory had
    after = run_hours(world, 2)
    assert world.samples("x") == kept + after
    world.restart()
    assert world.samples("x") == kept + after
    assert len(damaged(world)) == 1


def test_a_disk_that_spoils_all_that_is_written_is_not_filled_with_spoilt_files(world: World) -> None:
    run_hours(world, 1)
    assert world.store._database is not None

    @event.listens_for(world.store._database._engine, "before_cursor_execute")
    def fail(connection: object, cursor: object, statement: str, *more: object) -> None:
        if statement.startswith("INSERT"):
            error = sqlite3.DatabaseError("database disk image is malformed")
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error

    for _ in range(100):
        world.store.append("t", world.clock.go_on(1), {own("x"): 1.0})
    assert 1 <= len(damaged(world)) <= 2
    assert "malformed" in world.store.status().error
    assert world.samples("x")[-1][0] == world.clock.wall - START


def test_a_series_whose_labels_are_spoilt_is_left_out_and_the_rest_stays(world: World, caplog: pytest.LogCaptureFixture) -> None:
    put = run_hours(world, 2, beside=3)
    world.store.close()
    with sqlite3.connect(world.path) as connection:
        for labels, name in ((b"{", "beside0"), (b"\xff\xfe", "beside1"), (b'["a"]', "beside2")):
            text = connection.execute("SELECT id FROM series WHERE labels LIKE ?", (f"%{name}%",)).fetchone()
            connection.execute("UPDATE series SET labels = CAST(? AS TEXT) WHERE id = ?", (labels, *text))
    connection.close()
    world.store = world.open()
    assert world.samples("x") == put
    assert world.store.status().series == 1
    assert caplog.text.count("the labels of 3 of 4 series are damaged") == 1
    more = run_hours(world, 1, beside=3)
    assert world.samples("x") == put + more
    assert world.store.status().error == ""


def test_damaged_scrapes_and_chunks_are_left_out_and_told_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    put = run_hours(world, 3)
    world.store.close()
    with sqlite3.connect(world.path) as connection:
        connection.execute("UPDATE tick SET data = x'00'")
        connection.execute("UPDATE chunk SET data = 'text' WHERE start < ?", (round(START + 3_600) * 1000,))
    connection.close()
    world.store = world.open()
    for _ in range(3):
        assert world.samples("x") == [point for point in put if 3_600 <= point[0] < 7_200]
    assert caplog.text.count("scrapes are damaged and left out") == 1
    assert caplog.text.count("a chunk is damaged and left out") == 1


def test_a_folder_that_is_removed_while_it_is_in_use_is_made_again_with_what_memory_has(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    put = run_hours(world, 0.5)
    shutil.rmtree(world.path.parent)
    more = run_hours(world, 0.5)
    assert "history.db was removed while it was in use; a new one is begun" in caplog.text
    assert world.store.status().error == ""
    world.restart()
    assert world.samples("x") == put + more


def test_a_folder_that_another_process_took_meanwhile_is_told_and_observation_goes_on(world: World) -> None:
    run_hours(world, 0.5)
    shutil.rmtree(world.path.parent)
    other = world.open()
    run_hours(world, 0.5)
    assert "in use by process" in world.store.status().error
    assert len(world.samples("x")) == 12
    other.close()
    run_hours(world, 0.1)
    assert world.store.status().error == ""


def test_what_a_full_disk_kept_in_memory_is_written_when_the_process_ends(world: World) -> None:
    put = run_hours(world, 0.5)
    assert world.store._database is not None
    full = [True]

    @event.listens_for(world.store._database._engine, "before_cursor_execute")
    def fail(connection: object, cursor: object, statement: str, *more: object) -> None:
        if full[0] and statement.startswith("INSERT"):
            raise sqlite3.OperationalError("database or disk is full")

    put += run_hours(world, 0.5)
    assert "full" in world.store.status().error
    full[0] = False
    world.clock.go_on(10)
    world.restart()
    assert world.samples("x") == put
    assert living(world.store, world.clock.wall) == set()


def test_after_a_restart_no_series_lives_on_whichever_target_was_scraped_last(world: World) -> None:
    for _ in range(3):
        at = world.clock.go_on(10)
        for number, name in enumerate("abc"):
            world.store.append(name, at + number, {own(name): 1.0})
    assert living(world.store, world.clock.wall + 3) == {"a", "b", "c"}
    world.clock.go_on(30)
    world.restart()
    assert living(world.store, world.clock.wall) == set()
    world.store.append("b", world.clock.go_on(1), {own("b"): 1.0})
    assert living(world.store, world.clock.wall) == {"b"}
