"""Answers from this process's own store, with our engine. The engine computes in threads of its own, so that the event loop goes on.

Owns how many questions are answered at once, what they hold together, and how they end with the process. Knows no disk and no network.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from poise.history.promql.engine import Engine, Matrix, Result
from poise.history.promql.errors import BadQuery, QueryTimeout, Unavailable
from poise.history.promql.evaluate import Settings
from poise.history.promql.labels import Labels
from poise.history.promql.limits import TIMEOUT, Cells
from poise.history.promql.nodes import Matcher
from poise.history.promql.series import Storage
from poise.history.querier.door import TRUNCATED, Answer, matchers
from poise.history.text_format import Metadata
from poise.history.threads import started

#: Queries that are computed at the same time. They share one interpreter: more would not be faster, but a short one need not wait for a long one.
THREADS = 2
#: Queries that may wait for those; a page asks ten at once. Prometheus refuses nothing and lets them wait for two minutes.
MOST_WAITING = 64
#: The times that a storage can be asked for, in milliseconds.
_EARLIEST, _LATEST = -(1 << 60), 1 << 60

Found = TypeVar("Found")


class SeriesStorage(Storage, Protocol):
    """A storage that can also name its series; `poise.history.store.store.Store` does."""

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[Labels]:
        """The labels of the series that fit all matchers and have samples of start ≤ time ≤ end (milliseconds)."""
        ...


class EmbeddedQuerier:
    """A `Querier` over a storage. `metadata` gives what the targets' pages say of their families; `clock` is monotonic seconds."""

    def __init__(
        self,
        storage: SeriesStorage,
        *,
        clock: Callable[[], float],
        settings: Settings | None = None,
        timeout: float = TIMEOUT,
        metadata: Callable[[], Iterable[Mapping[str, Metadata]]] = lambda: (),
    ) -> None:
        self._storage = storage
        self._settings = settings or Settings()
        self._clock = clock
        self._timeout = timeout
        self._metadata = metadata
        self._cells = Cells()
        self._threads = started(THREADS, "poise-query")
        self._waiting = 0
        self._closed = False

    async def instant(self, query: str, at: float, *, timeout: float | None = None) -> Answer[Result]:
        """As Querier says."""
        return Answer(await self._engine(lambda engine: engine.instant(query, at), timeout))

    async def range(self, query: str, start: float, end: float, step: float, *, timeout: float | None = None) -> Answer[Matrix]:
        """As Querier says."""
        return Answer(await self._engine(lambda engine: engine.range(query, start, end, step), timeout))

    async def series(self, matches: Sequence[str], start: float, end: float, *, limit: int = 0) -> Answer[list[Labels]]:
        """As Querier says."""
        if not matches:
            raise BadQuery("no match[] parameter provided")
        return _cut(sorted(await self._series(matches, start, end)), limit)

    async def label_names(self, matches: Sequence[str], start: float, end: float, *, limit: int = 0) -> Answer[list[str]]:
        """As Querier says."""
        return _cut(sorted({name for own in await self._series(matches, start, end) for name, _ in own}), limit)

    async def label_values(self, name: str, matches: Sequence[str], start: float, end: float, *, limit: int = 0) -> Answer[list[str]]:
        """As Querier says."""
        found = await self._series(matches, start, end)
        return _cut(sorted({value for own in found for label, value in own if label == name}), limit)

    async def metadata(self, metric: str = "", *, limit: int = 0) -> Answer[Mapping[str, tuple[Metadata, ...]]]:
        """As Querier says."""
        together: dict[str, dict[Metadata, None]] = {}
        for families in self._metadata():
            for name, own in families.items():
                if metric in ("", name):
                    together.setdefault(name, {})[own] = None
        names = _cut(sorted(together), limit)
        return Answer({name: tuple(together[name]) for name in names.data}, names.warnings)

    async def close(self) -> None:
        """As Querier says; a computation ends at its next look at the clock."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------------------------------------------------------ threads
    async def _engine(self, ask: Callable[[Engine], Found], timeout: float | None) -> Found:
        deadline = self._clock() + min(self._timeout, timeout or math.inf)

        def compute() -> Found:
            left = deadline - self._now()
            if left <= 0:
                raise QueryTimeout("the query waited too long for its turn; ask less at once")
            return ask(Engine(self._storage, self._settings, left, self._now, self._cells))

        return await self._in_thread(compute)

    async def _series(self, matches: Sequence[str], start: float, end: float) -> set[Labels]:
        first, last = (round(min(max(at * 1000, _EARLIEST), _LATEST)) for at in (start, end))
        wanted = [matchers(match) for match in matches] or [()]
        return await self._in_thread(lambda: {own for one in wanted for own in self._storage.series(one, first, last)})

    async def _in_thread(self, compute: Callable[[], Found]) -> Found:
        if self._closed:
            raise Unavailable("the history is being closed")
        if self._waiting >= MOST_WAITING:
            raise Unavailable(f"{self._waiting} queries are waiting already; ask again later")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, compute)
        finally:
            self._waiting -= 1

    def _now(self) -> float:
        """The clock, which has run out once the querier is closed: what is computed then ends."""
        return math.inf if self._closed else self._clock()


def _cut(found: list[Found], limit: int) -> Answer[list[Found]]:
    return Answer(found[:limit], (TRUNCATED,)) if 0 < limit < len(found) else Answer(found)
