"""Several targets, each at its own moments: what reaches the store, what is observed, who comes and who goes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from poise.history.fetch import Exhausted, FetchError
from poise.history.promql.compile import compile_query
from poise.history.promql.labels import Labels, get
from poise.history.promql.nodes import Selector
from poise.history.promql.series import stale_flags
from poise.history.scrape import Scrape
from poise.history.scraping import ScrapePool, aligned, next_slot, offset
from poise.history.store.store import Store
from poise.history.targets import Target, parse_target

FAST = 0.1
PATIENCE = 20.0


def target(name: str, **changes: object) -> Target:
    return replace(parse_target(f"{name}=http://{name}:9747"), interval=FAST, timeout=FAST, **changes)  # type: ignore[arg-type]


class Kept:
    """A store that remembers what came, and can be made to wait."""

    def __init__(self) -> None:
        self.appended: list[tuple[str, float, Mapping[Labels, float]]] = []
        self.forgotten: list[str] = []
        self.open = threading.Event()
        self.open.set()

    def append(self, target: str, at: float, samples: Mapping[Labels, float]) -> None:
        assert self.open.wait(PATIENCE)
        self.appended.append((target, at, samples))

    def forget_target(self, target: str, at: float) -> None:
        self.forgotten.append(target)

    def up(self, one: Target) -> list[float]:
        return [
            value for key, _, samples in self.appended if key == one.key for own, value in samples.items() if get(own, "__name__") == "up"
        ]


class World:
    """A pool whose targets answer from a table; `wait` returns after a scrape that makes a condition true."""

    def __init__(self, store: object = None) -> None:
        self.kept = Kept()
        self.pages: dict[str, bytes | Exception] = {}
        self.observed: list[tuple[str, Scrape]] = []
        loop = asyncio.get_running_loop()
        self.pool = ScrapePool(
            store or self.kept,  # type: ignore[arg-type]
            wall_clock=lambda: 1_700_000_000.0 + loop.time(),
            clock=loop.time,
            observe=self._observe,
            get=lambda one: self._get,
        )

    async def _get(self, url: str, *, timeout: float, limit: int, accept: str = "*/*") -> bytes:
        page = self.pages[url.split("/")[2].split(":")[0]]
        if isinstance(page, Exception):
            raise page
        return page

    def _observe(self, one: Target, scrape: Scrape) -> None:
        self.observed.append((one.name, scrape))

    async def wait(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.005)  # what is waited for happens in another thread


def run(scenario: Callable[[World], Awaitable[None]], store: object = None) -> World:
    async def main() -> World:
        world = World(store)
        running = asyncio.create_task(world.pool.run())
        await scenario(world)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return world

    return asyncio.run(main())


def test_each_target_is_scraped_again_and_again_and_kept_under_its_own_labels() -> None:
    a, b = target("a"), target("b")

    async def scenario(world: World) -> None:
        world.pages = {"a": b"x 1\n", "b": FetchError("refused")}
        world.pool.set_targets([a, b])
        await world.wait(lambda: len(world.kept.up(a)) >= 3 and len(world.kept.up(b)) >= 3)
        assert [(status.target.name, status.health) for status in world.pool.status()] == [("a", "up"), ("b", "down")]
        assert world.pool.status()[1].last is not None
        assert world.pool.status()[1].last.error == "refused"  # type: ignore[union-attr]  # asserted above

    world = run(scenario)
    assert set(world.kept.up(a)) == {1.0}
    assert set(world.kept.up(b)) == {0.0}
    times = [at for key, at, _ in world.kept.appended if key == a.key]
    assert all(later - earlier > FAST / 2 for earlier, later in pairwise(times[1:]))  # the first waits for no slot
    (x,) = {own for key, _, samples in world.kept.appended for own in samples if get(own, "__name__") == "x"}
    assert dict(x) == {"__name__": "x", "instance": "a", "job": "poise"}


def test_targets_come_go_and_change_while_it_runs() -> None:
    a, b = target("a"), target("b")
    slower = replace(a, interval=FAST * 2)

    async def scenario(world: World) -> None:
        world.pages = {"a": b"x 1\n", "b": b"y 1\n"}
        world.pool.set_targets([a])
        await world.wait(lambda: world.kept.up(a))
        world.pool.set_targets([slower, b])
        await world.wait(lambda: world.kept.up(b))
        assert world.kept.forgotten == []
        world.pool.set_targets([b])
        await world.wait(lambda: world.kept.forgotten)
        assert world.kept.forgotten == [a.key]
        seen = len(world.kept.up(b))
        had = len(world.kept.up(a))
        await world.wait(lambda: len(world.kept.up(b)) > seen + 2)
        assert len(world.kept.up(a)) == had
        assert [status.target for status in world.pool.status()] == [b]

    run(scenario)


def test_a_store_that_hangs_stops_neither_scrapes_nor_the_page_and_what_it_misses_is_counted() -> None:
    a = target("a")

    async def scenario(world: World) -> None:
        world.pages = {"a": b"x 1\n"}
        world.kept.open.clear()
        world.pool.set_targets([a])
        await world.wait(lambda: len(world.observed) >= 4)
        assert world.pool.status()[0].not_kept >= 2
        assert world.kept.appended == []
        world.kept.open.set()
        await world.wait(lambda: len(world.kept.up(a)) >= 2)

    run(scenario)


def test_the_first_scrape_of_a_target_waits_for_no_slot() -> None:
    slow = [replace(target(name), interval=3600.0, timeout=1.0) for name in "abc"]

    async def scenario(world: World) -> None:
        world.pages = {"a": b"x 1\n", "b": b"x 1\n", "c": FetchError("down")}
        world.pool.set_targets(slow[:2])
        await world.wait(lambda: all(status.known_at is not None for status in world.pool.status()))
        world.pool.set_targets(slow)
        await world.wait(lambda: world.pool.status()[2].known_at is not None)
        assert [status.health for status in world.pool.status()] == ["up", "up", "down"]

    run(scenario)


def test_what_this_process_lacks_is_no_scrape_so_that_nothing_is_marked_stale() -> None:
    a = target("a")
    store = Store(None)

    async def scenario(world: World) -> None:
        world.pages = {"a": b"x 1\n"}
        world.pool.set_targets([a])
        await world.wait(lambda: _values(store, "x"))
        world.pages = {"a": Exhausted("no descriptors")}
        await world.wait(lambda: world.pool.status()[0].not_kept >= 3)
        (status,) = world.pool.status()
        assert (status.health, status.failures) == ("unknown", 0)
        assert set(_values(store, "x")) == {"1.0"}
        assert set(_values(store, "up")) == {"1.0"}

    run(scenario, store)


def test_a_target_whose_scrapes_cannot_be_kept_goes_on_and_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    a, b = target("a"), target("b")

    class Broken(Kept):
        def append(self, target: str, at: float, samples: Mapping[Labels, float]) -> None:
            if target == a.key and len(self.up(b)) < 5:
                raise KeyError("a fault of the store")
            super().append(target, at, samples)

    broken = Broken()

    async def scenario(world: World) -> None:
        world.pages = {"a": b"x 1\n", "b": b"x 1\n"}
        world.pool.set_targets([a, b])
        await world.wait(lambda: len(broken.up(a)) >= 2)
        assert world.pool.status()[0].not_kept >= 3

    run(scenario, broken)
    assert caplog.text.count("could not be kept") == 1, "one line however often"


def test_whatever_is_raised_around_a_scrape_ends_no_loop() -> None:
    a = target("a")

    async def scenario(world: World) -> None:
        def refuse(one: Target, scrape: Scrape) -> None:
            world.observed.append((one.name, scrape))
            if len(world.observed) < 4:
                raise RuntimeError("can't start new thread")

        world.pool._observe = refuse
        world.pages = {"a": b"x 1\n"}
        world.pool.set_targets([a])
        await world.wait(lambda: len(world.kept.up(a)) >= 2)

    run(scenario)


def test_the_real_store_marks_what_a_failed_scrape_and_a_removed_target_end() -> None:
    a = target("a")
    store = Store(None)

    async def scenario(world: World) -> None:
        world.pages = {"a": b"x 1\n"}
        world.pool.set_targets([a])
        await world.wait(lambda: _values(store, "x"))
        world.pages = {"a": FetchError("gone")}
        await world.wait(lambda: _values(store, "up")[-1:] == ["0.0"])
        assert _values(store, "x")[-1] == "stale"
        assert _values(store, "scrape_samples_scraped")[-1] == "0.0"
        world.pool.set_targets([])
        await world.wait(lambda: _values(store, "up")[-1] == "stale")

    run(scenario, store)


def _values(store: Store, name: str) -> list[str]:
    selector = compile_query(name)
    assert isinstance(selector, Selector)
    return [
        "stale" if stale else str(value)
        for one in store.select(selector.matchers, 0, 1 << 60)
        for value, stale in zip(one.values.tolist(), stale_flags(one.values), strict=True)
    ]


def test_slots_are_multiples_of_the_interval_at_an_offset_of_the_targets_own() -> None:
    a, b = target("a"), target("b")
    assert 0 <= offset(a) < FAST
    assert offset(a) != offset(b)
    one = replace(a, interval=5.0)
    number, due = next_slot(one, 1_000_000.0, None)
    assert 1_000_000.0 < due <= 1_000_005.0
    assert next_slot(one, due - 0.0004, number) == (number + 1, due + 5.0)  # woken early: not twice
    assert next_slot(one, due + 0.01, number) == (number + 1, due + 5.0)
    assert next_slot(one, due + 12.0, number) == (number + 3, due + 15.0)  # missed ones are left out
    assert next_slot(one, due - 3600.0, number)[1] <= due - 3595.0  # the clock was set back


def test_a_scrape_that_begins_near_its_slot_has_the_slots_time() -> None:
    assert aligned(100.008, 100.0, 5.0) == 100.0
    assert aligned(99.995, 100.0, 5.0) == 100.0
    assert aligned(100.02, 100.0, 5.0) == 100.02
    assert aligned(100.008, 100.0, 0.5) == 100.008


def test_a_page_without_series_is_up_and_metadata_is_kept() -> None:
    a = target("a")

    async def scenario(world: World) -> None:
        world.pages = {"a": b"# TYPE x counter\n# HELP x What\\nit is.\n"}
        world.pool.set_targets([a])
        await world.wait(lambda: world.kept.up(a))
        (status,) = world.pool.status()
        metadata = status.metadata
        assert (metadata["x"].type, metadata["x"].help) == ("counter", "What\nit is.")

    assert run(scenario).kept.up(a)[0] == 1.0
