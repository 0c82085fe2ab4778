"""The store through its door: what goes in comes out, over hours, restarts, full disks and clocks that are set."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from poise.history.promql.engine import Engine, InstantVector
from poise.history.promql.errors import Unavailable
from poise.history.promql.labels import get
from poise.history.promql.nodes import Matcher, MatchOperator
from poise.history.promql.series import stale_flags
from poise.history.store.database import MIGRATIONS, Database
from poise.history.store.pruning import Retention
from poise.history.store.sqlite_file import StoreError
from poise.history.store.store import HOUR, Store
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError

from tests.kept_history import EVERYTHING, START, World, own, run_hours


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "history.db")
    yield made
    made.store.close()


# ----------------------------------------------------------------------------------------------------------------- in and out
def test_what_goes_in_comes_out_over_hours_and_restarts(world: World) -> None:
    put = run_hours(world, 5)
    assert world.samples("x") == put
    assert world.store.status().chunks == 4  # the fifth hour has just ended
    assert world.store.status().head_samples <= 2 * 3600 / 300
    world.restart()
    assert world.samples("x") == put
    assert world.samples("x", START + 3_000, START + 9_000) == [point for point in put if 3_000 <= point[0] <= 9_000]


def test_a_series_that_a_scrape_lacks_ends_at_that_scrape(world: World) -> None:
    world.store.append("t", START, {own("x"): 1.0, own("y"): 1.0})
    world.store.append("t", START + 5, {own("y"): 2.0})
    assert _names(world, START + 6) == {"y"}
    world.store.append("other", START + 6, {own("z"): 1.0})
    assert _names(world, START + 7) == {"y", "z"}
    world.store.append("t", START + 10, {})
    assert _names(world, START + 11) == {"z"}


def test_what_lived_when_the_process_ended_does_not_live_on_after_a_restart(world: World) -> None:
    world.store.append("t", START, {own("x"): 1.0})
    world.clock.go_on(30)
    world.restart()
    assert _names(world, START + 31) == set()
    assert world.samples("x") == [(0, 1.0)]


def test_a_selector_that_was_asked_before_finds_what_came_and_went_since() -> None:
    store = Store(None)
    selector = (Matcher("__name__", MatchOperator.EQUAL, "x"), Matcher("place", MatchOperator.NOT_EQUAL, "c"))

    def places(at: float) -> list[str]:
        return [get(one.labels, "place") for one in store.select(selector, round(at * 1000), round(at * 1000))]

    assert places(START) == []
    store.append("t", START, {own("x", place="a"): 1.0})
    assert places(START) == ["a"]
    store.append("t", START + 1, {own("x", place=place): 1.0 for place in "abc"})
    assert places(START + 1) == ["a", "b"]
    store.append("t", START + 2, {own("x", place="d"): 1.0})
    assert places(START + 2) == ["a", "b", "d"]  # the first two end here
    store.append("t", START + 2 * 3_600, {own("x", place="d"): 1.0})
    assert places(START + 2 * 3_600) == ["d"]
    assert store.status().series == 1


def _names(world: World, at: float) -> set[str]:
    result = Engine(world.store).instant('{job="j"}', at)
    assert isinstance(result, InstantVector)
    return {dict(sample.labels)["__name__"] for sample in result.samples}


def test_without_a_file_an_hour_is_kept(tmp_path: Path) -> None:
    store = Store(None)
    for minute in range(180):
        store.append("t", START + 60 * minute, {own("x"): float(minute), own(f"short{minute // 10}"): 1.0})
    found = store.select(EVERYTHING, 0, 1 << 60)
    newest = next(one for one in found if one.labels == own("x"))
    assert (newest.times[0], newest.times[-1]) == ((START + 60 * 119) * 1000, (START + 60 * 179) * 1000)
    assert len(found) < 10


def test_series_without_end_are_bounded(tmp_path: Path) -> None:
    store = Store(None, most_series=10)
    store.append("t", START, {own(f"x{n}"): 1.0 for n in range(50)})
    assert (store.status().series, store.status().dropped_series) == (10, 40)


@settings(max_examples=15)
@given(data=st.data())
def test_any_life_of_a_store_keeps_every_sample(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    with World(tmp_path_factory.mktemp("life") / "history.db") as world:
        expected: dict[str, list[tuple[float, float]]] = {}
        for count in range(data.draw(st.integers(1, 25))):
            match data.draw(st.sampled_from(("scrape", "scrape", "scrape", "scrape", "restart", "long"))):
                case "restart":
                    world.restart()
                case "long":
                    world.clock.go_on(data.draw(st.sampled_from((3_700.0, 9_000.0, 90_000.0))))
            at = world.clock.go_on(data.draw(st.sampled_from((5.0, 60.0, 1_800.0))))
            names = data.draw(st.lists(st.sampled_from("abcd"), unique=True))
            world.store.append("t", at, {own(name): float(count) for name in names})
            for name in names:
                expected.setdefault(name, []).append((at - START, float(count)))
        assert {name: world.samples(name) for name in expected} == expected


# ---------------------------------------------------------------------------------------------------------------- retention
def test_old_samples_go_by_age_and_take_their_series_with_them(tmp_path: Path) -> None:
    world = World(tmp_path / "history.db", retention=Retention(seconds=6 * 3600))
    run_hours(world, 2, "gone")
    put = run_hours(world, 12)
    kept = world.samples("x")
    assert kept[-1] == put[-1]
    assert 6 * 3600 <= kept[-1][0] - kept[0][0] <= 8.2 * 3600
    assert world.samples("gone") == []
    assert world.store.status().series == 1
    world.store.close()


def test_old_samples_go_by_size(tmp_path: Path) -> None:
    world = World(tmp_path / "history.db", retention=Retention(bytes=400_000))
    draw = np.random.default_rng(1)
    for _ in range(40):
        for _ in range(12):
            at = world.clock.go_on(300)
            world.store.append("t", at, {own(f"x{n}"): float(value) for n, value in enumerate(draw.random(100))})
    status = world.store.status()
    assert status.used_bytes < 700_000  # the last hour's ticks come on top
    assert world.samples("x0")[-1][0] == world.clock.wall - START
    assert status.oldest is not None
    assert status.oldest > START + 3600
    world.store.close()


# -------------------------------------------------------------------------------------------------------------------- disks
def test_a_full_disk_stops_keeping_not_observing_and_all_is_kept_once_there_is_room(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    before = run_hours(world, 0.5)
    pages = _limit_pages(world.store, 1)
    during = run_hours(world, 2.5, beside=300)
    assert "full" in world.store.status().error
    assert caplog.text.count("nothing can be written") == 1
    assert world.samples("x") == before + during
    pages(1_000_000)
    after = run_hours(world, 1)
    assert world.store.status().error == ""
    assert "written again" in caplog.text
    run_hours(world, 1.2, "y")
    world.restart()
    assert world.samples("x") == before + during + after


def test_a_disk_that_gives_nothing_stops_neither_scrapes_nor_what_is_in_memory(world: World) -> None:
    put = run_hours(world, 3)
    assert world.store._database is not None
    failing = [True]

    @event.listens_for(world.store._database._engine, "before_cursor_execute")
    def fail(connection: object, cursor: object, statement: str, *more: object) -> None:
        if failing[0]:
            raise OperationalError(statement, None, sqlite3.OperationalError("disk I/O error"))

    during = run_hours(world, 2.5)
    assert world.store.status().error == "disk I/O error"
    assert world.samples("x", START + 3 * 3600 + 1) == during
    with pytest.raises(Unavailable, match=r"history\.db cannot be read: disk I/O error"):
        world.samples("x")
    assert world.store.series(EVERYTHING, 0, 1 << 60) == [own("x")]
    with pytest.raises(Unavailable):
        world.store.series(EVERYTHING, 0, round(START + 1800) * 1000)
    assert world.store.oldest() is not None
    failing[0] = False
    after = run_hours(world, 1)
    assert world.samples("x") == put + during + after
    assert world.store.status().error == ""


def _limit_pages(store: Store, pages: int) -> Callable[[int], None]:
    """Makes SQLite answer SQLITE_FULL, as on a full disk; returns how to change the limit."""
    assert store._database is not None
    engine = store._database._engine
    limit = [pages]

    @event.listens_for(engine, "begin")
    def apply(connection: object) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {limit[0]}")  # type: ignore[attr-defined]

    return lambda new: limit.__setitem__(0, new)


def test_a_process_that_is_killed_loses_nothing_that_append_took(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    code = f"""
import sys
from pathlib import Path
from poise.history.promql.labels import labels
from poise.history.store.store import Store
store = Store(Path({str(path)!r}), wall=lambda: {START})
count = 0
while True:
    store.append("t", {START} + count, {{labels({{"__name__": "x", "job": "j", "n": str(n)}}): float(count) for n in range(200)}})
    print(count, flush=True)
    count += 1
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 40:
                break
        process.kill()
        seen = [int(line) for line in process.stdout if line.strip()]
    last = max(seen, default=40)
    store = Store(path, wall=lambda: START + 1000)
    found = store.select(EVERYTHING, 0, 1 << 60)
    assert len(found) == 200
    for one in found:
        living = ~stale_flags(one.values)
        assert one.values[living].tolist()[: last + 1] == [float(n) for n in range(last + 1)]
    store.close()


def test_two_processes_on_one_file_are_told_apart(world: World) -> None:
    with pytest.raises(StoreError, match=r"in use by process \d+; end that one, or choose another place"):
        Store(world.path)


def test_a_file_of_a_newer_version_is_refused_and_left_alone(world: World) -> None:
    assert world.store._database is not None
    with world.store._database._engine.begin() as connection:
        connection.execute(text(f"PRAGMA user_version = {len(MIGRATIONS) + 1}"))
    world.store.close()
    with pytest.raises(StoreError, match="made by a newer Poise"):
        Database(world.path)
    with pytest.raises(StoreError, match="made by a newer Poise"):  # and the lock was given back
        Database(world.path)


def test_a_damaged_file_is_put_aside_and_a_new_one_begun(world: World, caplog: pytest.LogCaptureFixture) -> None:
    run_hours(world, 1)
    world.store.close()
    world.path.write_bytes(b"this is no database at all " * 400)
    world.store = world.open()
    assert world.samples("x") == []
    assert len(list(world.path.parent.glob("history.db.damaged-*"))) == 1
    assert "is damaged; it is kept as" in caplog.text
    assert run_hours(world, 1) == world.samples("x")


def test_a_place_that_cannot_be_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="choose another place with --history PATH"):
        Store(tmp_path / "file" / "history.db")
    with pytest.raises(StoreError, match="choose another place with --history PATH"):
        Store(tmp_path)


# -------------------------------------------------------------------------------------------------------------------- clocks
def test_a_clock_that_ran_ahead_and_is_set_right_leaves_its_samples_behind(world: World) -> None:
    right = run_hours(world, 0.5)
    world.clock.wall += 7200
    run_hours(world, 0.5, "x")
    world.clock.wall -= 7200
    more = run_hours(world, 4)
    assert world.samples("x") == right + more
    world.restart()
    assert world.samples("x") == right + more


def test_a_clock_that_falls_back_for_a_while_costs_no_history(world: World) -> None:
    before = run_hours(world, 6)
    right = world.clock.wall
    world.clock.wall = 86_400.0
    run_hours(world, 0.5)
    assert world.samples("x")[-1][0] < 0
    world.clock.wall = right
    after = run_hours(world, 2)
    assert [point for point in world.samples("x") if point[0] > 0] == before + after
    world.restart()
    assert [point for point in world.samples("x") if point[0] > 0] == before + after


def test_a_clock_that_jumps_ahead_deletes_nothing(world: World) -> None:
    put = run_hours(world, 3)
    world.clock.wall += 3 * 365 * 86_400
    run_hours(world, 2)
    world.clock.wall -= 3 * 365 * 86_400
    more = run_hours(world, 3)
    assert world.samples("x") == put + more


def test_chunks_are_found_by_their_series_not_among_those_of_all(world: World) -> None:
    run_hours(world, 3)
    assert world.store._database is not None
    engine, asked = world.store._database._engine, []

    @event.listens_for(engine, "before_cursor_execute")
    def remember(connection: object, cursor: object, statement: str, parameters: object, *more: object) -> None:
        if "FROM chunk" in statement:
            asked.append((statement, parameters))

    world.samples("x")
    world.store.series(EVERYTHING, 0, round(START + 1800) * 1000)
    event.remove(engine, "before_cursor_execute", remember)
    assert len(asked) == 2
    for statement, parameters in asked:
        with engine.connect() as connection:
            (step,) = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
        assert "(series=? AND start>? AND start<?)" in step[3]


def test_the_file_is_asked_only_for_what_chunks_can_have(world: World) -> None:
    world.store.append("t", START + 5, {own("x"): 1.0})
    assert world.store._database is not None
    engine, asked = world.store._database._engine, []

    @event.listens_for(engine, "before_cursor_execute")
    def remember(connection: object, cursor: object, statement: str, *more: object) -> None:
        asked.append("FROM chunk" in statement)

    assert world.samples("x", START - 3_600) == [(5.0, 1.0)]
    assert not any(asked), "there is no chunk yet"
    put = [(5.0, 1.0), *run_hours(world, 3)]
    asked.clear()
    assert world.samples("x", START + 3 * 3_600 - 600) == [point for point in put if point[0] >= 3 * 3_600 - 600]
    assert not any(asked), "all of that is in memory"
    assert world.samples("x") == put
    assert any(asked)
    event.remove(engine, "before_cursor_execute", remember)


def test_hours_are_what_chunks_hold(world: World) -> None:
    run_hours(world, 3)
    assert world.store._database is not None
    with world.store._database._engine.connect() as connection:
        edges = connection.execute(text('SELECT start, "end" FROM chunk ORDER BY start')).all()
    assert [start // HOUR for start, _ in edges] == [end // HOUR for _, end in edges]
