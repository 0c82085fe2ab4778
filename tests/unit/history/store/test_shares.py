"""Labels that change all the time: they cost their own target its new series, and nobody else anything, neither room nor history."""

from __future__ import annotations

from pathlib import Path

from poise.history.store.pruning import Retention
from poise.history.store.shares import MOST_LABEL_BYTES, Shares, label_bytes_for
from poise.history.store.store import Store

from tests.kept_history import START, World, own, run_hours


def names(store: Store, at: float) -> list[str]:
    return [one.labels[0][1] for one in store.select((), round(at * 1000), round(at * 1000))]


def test_one_target_takes_neither_the_room_of_others_nor_that_of_rule_results() -> None:
    store = Store(None, most_series=100)
    store.append("good", START, {own(f"g{n}"): 1.0 for n in range(10)})
    for tick in range(1, 30):
        store.append("bad", START + tick, {own("b", i=f"{tick}-{n}"): 1.0 for n in range(20)})
    assert store.status().series == 10 + 50
    store.append("rule", START + 30, {own("ALERTS"): 1.0})
    store.append("good", START + 30, {own(f"g{n}"): 1.0 for n in range(20)})
    store.append("late", START + 30, {own("l"): 1.0})
    assert len(names(store, START + 30)) == 22


def test_even_with_no_room_left_each_target_has_its_fair_part() -> None:
    store = Store(None, most_series=100)
    for target in ("b1", "b2"):
        for tick in range(30):
            store.append(target, START + tick, {own("b", i=f"{target}-{tick}-{n}"): 1.0 for n in range(20)})
    store.append("good", START + 30, {own(f"g{n}"): 1.0 for n in range(40)})
    assert len(names(store, START + 30)) == 33  # 100 ÷ 3 targets


def test_a_target_that_has_gone_blocks_nobody_once_its_samples_have_left_memory(tmp_path: Path) -> None:
    with World(tmp_path / "history.db", most_series=50) as world:
        for _ in range(30):
            world.store.append("bad", world.clock.go_on(5), {own("b", i=f"{world.clock.wall}-{n}"): 1.0 for n in range(10)})
        world.store.forget_target("bad", world.clock.go_on(5))
        run_hours(world, 3)
        dropped = world.store.status().dropped_series
        world.store.append("t", world.clock.go_on(5), {own(f"new{n}"): 1.0 for n in range(45)})
        assert world.store.status().dropped_series == dropped


def test_room_is_counted_in_bytes_of_labels_too() -> None:
    shares = Shares(1_000_000, MOST_LABEL_BYTES)
    assert shares.admits("t", MOST_LABEL_BYTES // 2, 2)
    assert not shares.admits("t", MOST_LABEL_BYTES // 2 + 1, 2)
    assert label_bytes_for(2_000_000_000) == MOST_LABEL_BYTES
    assert label_bytes_for(10_000_000) < 10_000_000


def test_long_labels_that_change_cost_no_good_chunk_and_their_room_comes_back(tmp_path: Path) -> None:
    limit = 5_000_000
    with World(tmp_path / "history.db", retention=Retention(bytes=limit)) as world:
        put = run_hours(world, 5)
        for tick in range(40):
            at = world.clock.go_on(60)
            long = {own("b", **{f"l{i}": f"{tick}-{n}-{i}" + "x" * 3_000 for i in range(40)}): 1.0 for n in range(3)}
            world.store.append("bad", at, long)
        assert world.store.status().dropped_series > 0
        run_hours(world, 4, "y")
        assert world.samples("x") == put
        assert world.store.status().used_bytes <= limit


def test_of_dead_series_with_long_labels_those_that_lived_shortest_go_first(tmp_path: Path) -> None:
    limit = 4_000_000
    with World(tmp_path / "history.db", retention=Retention(bytes=limit)) as world:
        put = run_hours(world, 5, "gone_but_long_lived")
        for tick in range(6):
            long = {own("b", i=f"{tick}-{n}" + "x" * 3_000): 1.0 for n in range(200)}
            world.store.append("bad", world.clock.go_on(3_600), long)
            world.store.append("t", world.clock.go_on(10), {own("now"): 1.0})
        run_hours(world, 3)
        assert world.samples("gone_but_long_lived") == put
        assert world.store.status().series < 400
        assert world.store.status().used_bytes < limit


def test_a_file_that_grows_fast_is_looked_at_before_the_hour_is_over(tmp_path: Path) -> None:
    with World(tmp_path / "history.db") as world:
        run_hours(world, 3, beside=60)
        world.clock.go_on(-world.clock.wall % 3_600 + 120)
        world.store.append("t", world.clock.wall, {own("x"): 1.0})
        before = world.store.status()
        world.retention = Retention(bytes=before.used_bytes + 8_000)
        world.restart()
        for tick in range(12):
            values = {own(f"f{n}"): float(tick * 1_000 + n) ** 0.5 for n in range(200)}
            world.store.append("fast", world.clock.go_on(60), values)
        assert world.store.status().chunks < before.chunks
