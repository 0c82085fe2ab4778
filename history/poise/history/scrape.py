"""Scrapes one exporter as Prometheus does: one GET at a time with a timeout and a size limit, then `up`, duration and samples.

Owns what a scrape is. Knows nothing of what the series mean or who keeps them. The way to the network and both clocks are passed in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol

from poise.history.fetch import Exhausted, FetchError, fetch
from poise.history.own_limits import own_limit
from poise.history.text_format import MAX_SERIES, Metadata, PageError, PageReader, Series

logger = logging.getLogger(__name__)

#: Seconds. Prometheus' own default is 60; one node for people to look at wants changes on the screen within 6 s.
DEFAULT_INTERVAL = 5.0
#: Seconds, below the interval as Prometheus demands. An exporter renders its newest snapshot in milliseconds.
DEFAULT_TIMEOUT = 4.0
#: Bytes. A node of 8 cards and 4 engines has a page of about 0.5 MB.
PAGE_LIMIT = 16_000_000
#: Bytes of a page that is read in the event loop: 150 series, 4 ms when all are new. A larger one is read in another thread, or the timeouts of all
#: other targets would run meanwhile.
IN_LOOP_BYTES = 16_000
ACCEPT = "text/plain;version=0.0.4;q=1,*/*;q=0.1"


@dataclass(frozen=True, slots=True)
class Scrape:
    """One attempt. `at` is its start in Unix seconds, `duration` the seconds until the page was there; `error` says in words why there are no samples.

    `metadata` is what the newest page that was understood says of its families, be it this one or one before. `ours`: this process lacked
    descriptors, threads or memory, so that nothing is known of the target; it is no scrape, and nobody may take it for one that failed.
    """

    at: float
    duration: float
    samples: Mapping[Series, float] = field(default_factory=dict)
    error: str = ""
    metadata: Mapping[str, Metadata] = field(default_factory=dict)
    ours: bool = False

    @property
    def up(self) -> bool:
        """Whether the page was had and understood: Prometheus' series of this name."""
        return not self.error


class Fetch(Protocol):
    """How a page is had; `poise.history.fetch.fetch` is the real one."""

    def __call__(self, url: str, *, timeout: float, limit: int, accept: str = "*/*") -> Awaitable[bytes]: ...


class Scraper:
    """Scrapes one URL whenever asked, once at a time. `threads` is where large pages are read; None: where the event loop has its own.

    `empty_is_up`: a page without series is an answer like any other, as it is to Prometheus; an exporter of ours always has some.
    """

    def __init__(
        self,
        url: str,
        *,
        wall_clock: Callable[[], float],
        clock: Callable[[], float],
        timeout: float = DEFAULT_TIMEOUT,
        limit: int = PAGE_LIMIT,
        max_series: int = MAX_SERIES,
        empty_is_up: bool = False,
        get: Fetch = fetch,
        threads: Executor | None = None,
    ) -> None:
        self.url = url
        self._threads = threads
        self._wall_clock = wall_clock
        self._clock = clock
        self._timeout = timeout
        self._limit = limit
        self._empty_is_up = empty_is_up
        self._get = get
        self._reader = PageReader(max_series)
        self._fault = ""  # what was told

    async def scrape(self) -> Scrape:
        """One attempt; what goes wrong is in the result, never raised: whatever it is, it must end neither this target's loop nor those of others."""
        at, began = self._wall_clock(), self._clock()
        samples: Mapping[Series, float] = {}
        error, ours, arrived = "", False, None
        try:
            page = await self._get(self.url, timeout=self._timeout, limit=self._limit, accept=ACCEPT)
            arrived = self._clock()
            samples = await self._understood(page)
            if not samples and not self._empty_is_up:
                error = "the page holds no series"
        except (FetchError, PageError) as failure:
            error, ours = str(failure), isinstance(failure, Exhausted)
        except Exception as fault:
            samples, lacking = {}, own_limit(fault)
            error, ours = lacking or f"a fault of Poise: {type(fault).__name__}: {fault}", bool(lacking)
            if not lacking and error != self._fault:
                logger.exception("%s could not be scraped, for a reason that is a fault of Poise", self.url)
                self._fault = error
        duration = (self._clock() if arrived is None else arrived) - began
        return Scrape(at, duration, samples, error, self._reader.metadata, ours)

    async def _understood(self, page: bytes) -> Mapping[Series, float]:
        """The samples of a page. Raises PageError."""
        if len(page) <= IN_LOOP_BYTES:
            return self._read(page)
        try:
            reading = asyncio.get_running_loop().run_in_executor(self._threads, self._read, page)
        except RuntimeError:
            return self._read(page)  # no thread can be started: what comes late is better than nothing
        return await reading

    def _read(self, page: bytes) -> Mapping[Series, float]:
        samples = self._reader.read(page)
        _ = self._reader.metadata  # made here and remembered: a page may have as much of it as of series
        return samples
