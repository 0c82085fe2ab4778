"""The embedded querier: computes beside the event loop, bounds what waits, and ends at once when it is closed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest
from poise.history.promql.errors import QueryTimeout, Unavailable
from poise.history.promql.labels import Labels, labels
from poise.history.promql.nodes import Matcher
from poise.history.promql.series import StoredSeries
from poise.history.querier.door import TRUNCATED
from poise.history.querier.embedded import MOST_WAITING, EmbeddedQuerier
from poise.history.text_format import Metadata

PATIENCE = 20.0


class Slow:
    """A storage whose answers wait until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.asked = threading.Event()

    def select(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[StoredSeries]:
        self.asked.set()
        assert self.open.wait(PATIENCE)
        return []

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[Labels]:
        return [labels({"__name__": "x", "n": str(n)}) for n in range(3)]


def test_the_event_loop_goes_on_while_a_query_is_computed_and_too_many_are_refused() -> None:
    async def run() -> None:
        storage = Slow()
        querier = EmbeddedQuerier(storage, clock=time.monotonic)
        waiting = [asyncio.create_task(querier.instant("x", 0)) for _ in range(MOST_WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match=f"{MOST_WAITING} queries are waiting already"):
            await querier.instant("x", 0)
        storage.open.set()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*waiting)
        await querier.close()
        with pytest.raises(Unavailable, match="is being closed"):
            await querier.instant("x", 0)

    asyncio.run(run())


def test_closing_ends_what_is_computed_at_its_next_look_at_the_clock() -> None:
    async def run() -> None:
        storage = Slow()
        querier = EmbeddedQuerier(storage, clock=time.monotonic)
        task = asyncio.create_task(querier.range("sum(x) + sum(x)", 0, 100, 1))
        await asyncio.to_thread(storage.asked.wait, PATIENCE)
        await querier.close()
        storage.open.set()
        with pytest.raises(QueryTimeout):
            await task

    asyncio.run(run())


def test_a_query_that_waited_its_time_away_is_not_begun() -> None:
    now = [0.0]

    async def run() -> None:
        storage = Slow()
        querier = EmbeddedQuerier(storage, clock=lambda: now[0])
        busy = [asyncio.create_task(querier.instant("x", 0)) for _ in range(2)]
        late = asyncio.create_task(querier.instant("x", 0, timeout=1))
        await asyncio.to_thread(storage.asked.wait, PATIENCE)
        now[0] = 2.0
        storage.open.set()
        await asyncio.gather(*busy)
        with pytest.raises(QueryTimeout, match="waited too long"):
            await late
        await querier.close()

    asyncio.run(run())


def test_metadata_of_several_targets_is_put_together() -> None:
    up, other = Metadata("gauge", "Up."), Metadata("counter", "Other.")

    async def run() -> None:
        querier = EmbeddedQuerier(Slow(), clock=time.monotonic, metadata=lambda: [{"b": up, "a": up}, {"b": up}, {"b": other}])
        assert (await querier.metadata()).data == {"a": (up,), "b": (up, other)}
        assert (await querier.metadata("b")).data == {"b": (up, other)}
        assert (await querier.metadata("c")).data == {}
        cut = await querier.metadata(limit=1)
        assert (cut.data, cut.warnings) == ({"a": (up,)}, (TRUNCATED,))
        await querier.close()

    asyncio.run(run())
