"""Keeps what the pages show up to date: scrapes the exporter, reads its checks and the progress file, and tells who waits for news.

The one place with state and time in the dashboard; everything that it knows leaves as an `Observation`. Knows no HTML and no request.
Runs in one event loop and is not locked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable

from poise.dashboard import checks_document
from poise.dashboard.checks_document import ChecksDocument, ChecksError
from poise.dashboard.observation import ExporterStatus, Observation
from poise.dashboard.progress import Progress, ProgressError, ProgressFile
from poise.dashboard.self_metrics import SelfMetrics
from poise.history.fetch import FetchError, address
from poise.history.recent import RecentWindow
from poise.history.scrape import DEFAULT_INTERVAL, Fetch, Scrape, Scraper

log = logging.getLogger(__name__)

#: Seconds between attempts while the exporter does not answer: a person who starts it looks at the page.
RETRY = 1.0
#: Seconds for the checks' answer: rendered from memory, as the metrics are.
CHECKS_TIMEOUT = 2.0
#: Seconds between looks at the progress file, whose writer refreshes it twice a second at most.
PROGRESS_INTERVAL = 0.5


class Live:
    """The present state of one node's page."""

    def __init__(
        self,
        exporter_url: str,
        *,
        fetch: Fetch,
        wall_clock: Callable[[], float],
        clock: Callable[[], float],
        interval: float = DEFAULT_INTERVAL,
        progress: ProgressFile | None = None,
        metrics: SelfMetrics | None = None,
        keep: Callable[[Scrape], None] = lambda scrape: None,
    ) -> None:
        """`keep` gets every attempt, for the history."""
        where = address(exporter_url)
        base = where.path.rstrip("/").removesuffix("/metrics")
        self.exporter_url = where.url(base)
        self.metrics = metrics or SelfMetrics()
        self._checks_url = where.url(f"{base}/checks")
        self._scraper = Scraper(
            where.url(f"{base}/metrics"), wall_clock=wall_clock, clock=clock, timeout=max(0.5, interval * 0.8), get=fetch
        )
        self._fetch = fetch
        self._keep = keep
        self._wall_clock = wall_clock
        self._clock = clock
        self._interval = interval
        self._progress_file = progress
        self._window = RecentWindow()
        self._checks: ChecksDocument | None = None
        self._checks_error = ""
        self._progress: Progress | None = None
        self._progress_error = ""
        self._exporter = ExporterStatus()
        # Drawn, not taken from a clock: two processes may start at one time, and a clock may be set back.
        self._epoch = secrets.token_hex(6)
        self._number = 0
        self._changed = asyncio.Condition()
        self._wake = asyncio.Event()
        self._closing = False
        self._fault = ""  # what was told

    # ------------------------------------------------------------------------------------------------------------- reading
    @property
    def version(self) -> str:
        """Names the present state; another process never uses the same names."""
        return f"{self._epoch}-{self._number}"

    @property
    def scraped(self) -> bool:
        """Whether the exporter has answered once."""
        return self._window.newest is not None

    def observation(self) -> Observation:
        """What is known now."""
        return Observation(
            now=self._wall_clock(),
            interval=self._interval,
            window=self._window,
            checks=self._checks,
            checks_error=self._checks_error,
            progress=self._progress,
            progress_error=self._progress_error,
            exporter=self._exporter,
        )

    async def versions(self, seen: str, heartbeat: float) -> AsyncIterator[str]:
        """Yields the version whenever it is another than the one seen, and "" after `heartbeat` seconds of silence; ends at close().

        A reader that is slow skips versions: each stands for the whole state.
        """
        while not self._closing:
            if self.version == seen:
                await self._news(seen, heartbeat)
            if self._closing:
                return
            if self.version == seen:
                yield ""
            else:
                seen = self.version
                yield seen

    async def _news(self, seen: str, heartbeat: float) -> None:
        """Returns when there is another version than `seen`, at close(), or after `heartbeat` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(heartbeat), self._changed:
                await self._changed.wait_for(lambda: self._closing or self.version != seen)

    # ------------------------------------------------------------------------------------------------------------- writing
    async def run(self) -> None:
        """Scrape and watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._scrape_forever())
            if self._progress_file is not None:
                tasks.create_task(self._watch_progress(self._progress_file))

    async def set_exporter(self, status: ExporterStatus) -> None:
        """How the exporter is run has changed; look at it again soon."""
        self._exporter = status
        self._wake.set()
        await self._publish()

    async def close(self) -> None:
        """End all waiting readers."""
        self._closing = True
        async with self._changed:
            self._changed.notify_all()

    async def scrape_once(self) -> Scrape:
        """One look at the exporter: its series and its checks."""
        scrape = await self._scraper.scrape()
        self.metrics.scrapes.labels("success" if scrape.up else "failure").inc()
        self.metrics.scrape_seconds.set(scrape.duration)
        if scrape.up:
            await self._read_checks()
        self._window.append(scrape)
        self._keep(scrape)
        await self._publish()
        return scrape

    async def _look(self) -> bool:
        """One look, whatever goes wrong with it; whether the exporter answered."""
        try:
            scrape = await self.scrape_once()
        except Exception as error:  # the next look comes as planned: a page that stands still would be the worse fault
            words = f"{type(error).__name__}: {error}"
            if words != self._fault:
                log.exception("the exporter could not be looked at")
            self._fault = words
            return False
        self._fault = ""
        return scrape.up

    async def _read_checks(self) -> None:
        """The checks beside a successful scrape. When they cannot be read there is no verdict, rather than the last one."""
        try:
            body = await self._fetch(
                self._checks_url, timeout=CHECKS_TIMEOUT, limit=checks_document.DOCUMENT_LIMIT, accept="application/json"
            )
            self._checks, self._checks_error = checks_document.read(body), ""
        except (FetchError, ChecksError) as error:
            self._checks, self._checks_error = None, str(error)

    async def _scrape_forever(self) -> None:
        due = self._clock()
        while True:
            self._wake.clear()
            up = await self._look()
            now = self._clock()
            due = max(due + self._interval, now) if up else now + RETRY
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(due - now):
                    await self._wake.wait()
                    due = self._clock()

    async def _watch_progress(self, file: ProgressFile) -> None:
        while True:
            # A file has no event that the standard library can wait for, and one stat is a microsecond.
            if file.changed():
                try:
                    self._progress, self._progress_error = file.read(), ""
                except ProgressError as error:
                    self._progress, self._progress_error = None, str(error)
                await self._publish()
            await asyncio.sleep(PROGRESS_INTERVAL)

    async def _publish(self) -> None:
        self._number += 1
        async with self._changed:
            self._changed.notify_all()
