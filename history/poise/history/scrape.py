"""Scrapes one exporter as Prometheus does: one GET at a time with a timeout and a size limit, then `up`, duration and samples.

Owns what a scrape is. Knows nothing of what the series mean or who keeps them. The way to the network and both clocks are passed in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from poise.history.fetch import FetchError, fetch
from poise.history.text_format import MAX_SERIES, Metadata, PageError, PageReader, Series

#: Seconds. Prometheus' own default is 60; one node for people to look at wants changes on the screen within 6 s.
DEFAULT_INTERVAL = 5.0
#: Seconds, below the interval as Prometheus demands. An exporter renders its newest snapshot in milliseconds.
DEFAULT_TIMEOUT = 4.0
#: Bytes. A node of 8 cards and 4 engines has a page of about 0.5 MB.
PAGE_LIMIT = 16_000_000
ACCEPT = "text/plain;version=0.0.4;q=1,*/*;q=0.1"


@dataclass(frozen=True, slots=True)
class Scrape:
    """One attempt. `at` is its start in Unix seconds, `duration` in seconds; `error` says in words why there are no samples.

    `metadata` is what the newest page that was understood says of its families, be it this one or one before.
    """

    at: float
    duration: float
    samples: Mapping[Series, float] = field(default_factory=dict)
    error: str = ""
    metadata: Mapping[str, Metadata] = field(default_factory=dict)

    @property
    def up(self) -> bool:
        """Whether the page was had and understood: Prometheus' series of this name."""
        return not self.error


class Fetch(Protocol):
    """How a page is had; `poise.history.fetch.fetch` is the real one."""

    def __call__(self, url: str, *, timeout: float, limit: int, accept: str = "*/*") -> Awaitable[bytes]: ...


class Scraper:
    """Scrapes one URL whenever asked.

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
    ) -> None:
        self.url = url
        self._wall_clock = wall_clock
        self._clock = clock
        self._timeout = timeout
        self._limit = limit
        self._empty_is_up = empty_is_up
        self._get = get
        self._reader = PageReader(max_series)

    async def scrape(self) -> Scrape:
        """One attempt; what goes wrong with the target is in the result, never raised."""
        at, began = self._wall_clock(), self._clock()
        samples: Mapping[Series, float] = {}
        error = ""
        try:
            page = await self._get(self.url, timeout=self._timeout, limit=self._limit, accept=ACCEPT)
            samples = self._reader.read(page)
            if not samples and not self._empty_is_up:
                error = "the page holds no series"
        except (FetchError, PageError) as failure:
            error = str(failure)
        return Scrape(at, self._clock() - began, samples, error, self._reader.metadata)
