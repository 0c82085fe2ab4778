"""Large pages: in which thread they are read and labelled, and what goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from poise.history import text_format
from poise.history.labelling import Labeller
from poise.history.promql.labels import NAME, Labels, get
from poise.history.scrape import IN_LOOP_BYTES, Fetch, Scrape, Scraper
from poise.history.scraping import READERS, ScrapePool
from poise.history.targets import Target, parse_target
from poise.history.text_format import PageReader, Series

PATIENCE = 20.0
SMALL = b"x 1\n"
LARGE = b"# TYPE y counter\n# HELP y What it is.\n" + b"".join(b'y{n="%d"} 1\n' % n for n in range(IN_LOOP_BYTES // 10))


@pytest.fixture
def where(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """In which threads pages are read, their metadata made, and labels given."""
    found: dict[str, set[str]] = {}

    def noted(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            found.setdefault(kind, set()).add(threading.current_thread().name.split("_")[0])
            return function(*given)

        return call

    monkeypatch.setattr(PageReader, "read", noted("read", PageReader.read))
    monkeypatch.setattr(text_format, "_metadata", noted("metadata", text_format._metadata))
    monkeypatch.setattr(Labeller, "samples", noted("label", Labeller.samples))
    return found


def returning(page: bytes) -> Fetch:
    async def get(url: str, *, timeout: float, limit: int, accept: str = "*/*") -> bytes:
        return page

    return get


def scraped(page: bytes, threads: ThreadPoolExecutor | None, clock: Callable[[], float] = lambda: 0.0) -> Scrape:
    scraper = Scraper("http://x/metrics", wall_clock=lambda: 0.0, clock=clock, get=returning(page), threads=threads)
    return asyncio.run(scraper.scrape())


# ---------------------------------------------------------------------------------------------------------------- one scrape
def test_a_small_page_is_read_in_the_event_loop_and_a_large_one_beside_it(where: dict[str, set[str]]) -> None:
    assert len(LARGE) > IN_LOOP_BYTES
    with ThreadPoolExecutor(1, thread_name_prefix="aside") as threads:
        assert scraped(SMALL, threads).samples
        assert where.pop("read") == {"MainThread"}
        where.clear()
        scrape = scraped(LARGE, threads)
    assert where == {"read": {"aside"}, "metadata": {"aside"}}
    assert len(scrape.samples) == IN_LOOP_BYTES // 10
    assert scrape.metadata["y"].help == "What it is."


def test_without_threads_of_its_own_a_scraper_takes_those_of_the_event_loop(where: dict[str, set[str]]) -> None:
    assert scraped(LARGE, None).up
    assert where["read"] == {"asyncio"}


def test_what_is_wrong_with_a_large_page_is_said_as_with_a_small_one() -> None:
    with ThreadPoolExecutor(1) as threads:
        scrape = scraped(LARGE + b"<html>\n", threads)
    assert (scrape.up, scrape.samples) == (False, {})
    assert f"line {len(LARGE.splitlines()) + 1}" in scrape.error


def test_the_duration_is_that_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    read = PageReader.read

    def slow(reader: PageReader, page: bytes) -> dict[Series, float]:
        now[0] += 60.0
        return read(reader, page)

    monkeypatch.setattr(PageReader, "read", slow)
    with ThreadPoolExecutor(1) as threads:
        assert scraped(LARGE, threads, lambda: now[0]).duration == 0.0
    assert now == [160.0]


def test_where_no_thread_can_be_started_a_large_page_is_read_all_the_same(where: dict[str, set[str]]) -> None:
    class Exhausted(ThreadPoolExecutor):
        def submit(self, *given: Any, **more: Any) -> Future[Any]:
            raise RuntimeError("can't start new thread")

    scrape = scraped(LARGE, Exhausted(1))
    assert scrape.up
    assert where["read"] == {"MainThread"}


# ------------------------------------------------------------------------------------------------------------- several targets
class World:
    """A pool whose targets answer from a table, over a store that remembers how often each was kept."""

    def __init__(self, pages: Mapping[str, bytes]) -> None:
        self.kept: dict[str, int] = {}
        self.samples: dict[str, Mapping[Labels, float]] = {}
        self.pages = pages
        loop = asyncio.get_running_loop()
        self.pool = ScrapePool(self, wall_clock=lambda: 1_700_000_000.0 + loop.time(), clock=loop.time, get=lambda one: self._get)

    async def _get(self, url: str, *, timeout: float, limit: int, accept: str = "*/*") -> bytes:
        return self.pages[url.split("/")[2].split(":")[0]]

    def append(self, target: str, at: float, samples: Mapping[Labels, float]) -> None:
        name = next(get(own, "instance") for own in samples)
        self.kept[name] = self.kept.get(name, 0) + 1
        self.samples[name] = samples

    def forget_target(self, target: str, at: float) -> None:
        """Nothing to forget."""

    async def wait(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.005)  # what is waited for happens in another thread


def target(name: str) -> Target:
    return replace(parse_target(f"{name}=http://{name}:9747"), interval=0.1, timeout=0.1)


def run(pages: Mapping[str, bytes], scenario: Callable[[World], Awaitable[None]]) -> World:
    async def main() -> World:
        world = World(pages)
        world.pool.set_targets([target(name) for name in pages])
        running = asyncio.create_task(world.pool.run())
        await scenario(world)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return world

    return asyncio.run(main())


def test_the_event_loop_only_waits_and_the_writing_thread_labels(where: dict[str, set[str]]) -> None:
    async def scenario(world: World) -> None:
        await world.wait(lambda: world.kept.get("a", 0) >= 2)
        (status,) = world.pool.status()
        assert status.samples >= 2 * len(world.samples["a"])

    world = run({"a": LARGE}, scenario)
    assert where == {"read": {"poise-page"}, "metadata": {"poise-page"}, "label": {"poise-history"}}
    assert {value for own, value in world.samples["a"].items() if get(own, NAME) == "scrape_samples_scraped"} == {IN_LOOP_BYTES // 10}


def test_while_one_page_is_read_all_others_are_scraped_and_kept_large_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    stands, go_on = threading.Event(), threading.Event()
    read = PageReader.read
    bad = LARGE + b"z 1\n"

    def held(reader: PageReader, page: bytes) -> dict[Series, float]:
        if page == bad:
            stands.set()
            assert go_on.wait(PATIENCE)
        return read(reader, page)

    monkeypatch.setattr(PageReader, "read", held)

    async def scenario(world: World) -> None:
        try:
            await world.wait(stands.is_set)
            before = dict(world.kept)
            await world.wait(lambda: all(world.kept.get(name, 0) >= before.get(name, 0) + 3 for name in ("small", "large")))
            assert "bad" not in world.kept
            assert all(one.failures == 0 for one in world.pool.status())
        finally:
            go_on.set()
        await world.wait(lambda: world.kept.get("bad"))

    assert READERS == 2
    run({"bad": bad, "small": SMALL, "large": LARGE}, scenario)
