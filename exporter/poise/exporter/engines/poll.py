"""Polls one engine's page in a thread of its own and keeps the newest result.

An engine that is slow, hostile or gone costs its own thread's time and its own series, nothing else. No result outlives the next poll:
when a poll fails there is no page. This file knows no process and no card.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from poise.exporter.access import PLAIN, Access
from poise.exporter.engines import dialects
from poise.exporter.engines.credentials import Credentials
from poise.exporter.engines.fetch import Fetcher, FetchError
from poise.exporter.engines.page import Limits, PageError, PageParser
from poise.exporter.engines.repeat import Repeater
from poise.exporter.snapshot import EnginePage

#: One poll takes at most this share of the interval, and at most `LONGEST_POLL` seconds: polls of one engine must not run into each other.
SHARE_OF_INTERVAL = 0.8
LONGEST_POLL = 10.0
#: Where nothing listens yet, a refused connect costs next to nothing: look this often, in seconds, so that "ready" shows soon.
LOADING_INTERVAL = 2.0
#: The version does not change while a process lives, but not every server tells one: ask again this often, in seconds.
VERSION_RETRY = 60.0
VERSION_SIZE_LIMIT = 64 * 1024

#: What to do about an HTTP status, where it says something.
WAYS_OUT = {
    401: "it wants a login; give bearer_token_file=FILE, or username=NAME,password_file=FILE",
    403: "it does not let us in; check the token or the user",
    404: "the URL has to be what stands before /metrics",
}

_log = logging.getLogger(__name__)

HEADERS = {"Accept": "text/plain; version=0.0.4", "User-Agent": "poise-exporter"}


@dataclass(frozen=True, slots=True)
class Poll:
    """The result of the newest poll. `page` is None when it failed; `error` then says why. Times in Unix seconds, durations in seconds.

    `failed` tells a failure worth counting from an engine that merely does not listen yet.
    """

    page: EnginePage | None = None
    error: str = "not asked yet"
    failed: bool = False
    polled_at: float | None = None
    duration: float | None = None
    last_page_at: float | None = None
    rtt: float | None = None
    failures: int = 0


class Poller:
    """Asks one engine at `url` every `interval` seconds, as its `access` says. `latest` is safe from any thread and never waits.

    `is_ours`: see Fetcher; for an engine whose address is a process's word and no person's.
    """

    def __init__(
        self,
        url: str,
        interval: float,
        *,
        access: Access = PLAIN,
        is_ours: Callable[[str], bool] | None = None,
        limits: Limits | None = None,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = url
        self.interval = interval
        self._timeout = min(interval * SHARE_OF_INTERVAL, LONGEST_POLL)
        self._limits = limits or Limits()
        self._now = now
        self._clock = clock
        self._fetcher = Fetcher(url, clock, Credentials(access), is_ours)
        self._parser = PageParser(dialects.wanted, self._limits)
        self._latest = Poll()
        self._latest_at = clock()
        self._version = ""
        self._version_asked: float | None = None
        self._repeater = Repeater(f"poise-poll-{url}", self._turn, clock)

    def start(self) -> None:
        """Starts polling."""
        self._repeater.start()

    def stop(self) -> None:
        """Ends a poll in flight and the thread; does not wait for it."""
        self._repeater.stop()
        self._fetcher.abort()

    def join(self, timeout: float) -> None:
        """Waits at most `timeout` seconds for the thread to end."""
        self._repeater.join(timeout)

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._repeater.alive

    @property
    def latest(self) -> Poll:
        """The newest result; without a page when that is older than three intervals (a name lookup hangs, the machine slept)."""
        poll = self._latest
        if poll.page is not None and self._clock() - self._latest_at > 3 * self.interval + self._timeout:
            return replace(poll, page=None, error="the page is stale: the last poll does not end", failed=True)
        return poll

    def _turn(self) -> float:
        try:
            self.poll_once()
        except Exception as problem:
            # A page that breaks the reader itself must not end the polling; what it broke is told and counted.
            _log.exception("reading the page of %s failed", self.url)
            failures = self._latest.failures + 1
            self._latest = replace(
                self._latest, page=None, error=f"internal error: {type(problem).__name__}", failed=True, failures=failures
            )
        loading = self._latest.page is None and not self._latest.failed
        return min(self.interval, LOADING_INTERVAL) if loading else self.interval

    def poll_once(self) -> Poll:
        """Fetches, parses and translates the page now; the result is also what `latest` gives."""
        before, started = self._latest, self._clock()
        polled_at = self._now()
        deadline = started + self._timeout
        rtt: float | None = None
        page: EnginePage | None = None
        error, failed = "", False
        try:
            answer = self._fetcher.get("/metrics", HEADERS, self._timeout, self._limits.size)
            rtt = answer.connect_seconds
            if "html" in answer.content_type.lower():
                raise PageError("the answer is HTML, no metrics page")
            samples = self._parser.parse(answer.body, expired=lambda: self._clock() > deadline or self._repeater.stopped)
            version = self._engine_version(deadline)
            page = dialects.read_page(samples, version, polled_at, self._clock() - started)
        except FetchError as problem:
            way_out = problem.way_out or WAYS_OUT.get(problem.status or 0, "")
            error, failed = f"{problem}; {way_out}" if way_out else str(problem), not problem.refused
        except PageError as problem:
            error, failed = str(problem), True
        if page is None:
            self._version, self._version_asked = "", None  # another version may answer next
        self._latest = Poll(
            page,
            error,
            failed,
            polled_at,
            self._clock() - started,
            polled_at if page is not None else before.last_page_at,
            rtt,
            before.failures + failed,
        )
        self._latest_at = self._clock()
        return self._latest

    def _engine_version(self, deadline: float) -> str:
        """The version as GET /version tells it; "" when it does not. Asked once, and again now and then while unknown."""
        now = self._clock()
        if self._version or (self._version_asked is not None and now - self._version_asked < VERSION_RETRY):
            return self._version
        self._version_asked = now
        try:
            answer = self._fetcher.get("/version", {"User-Agent": HEADERS["User-Agent"]}, max(deadline - now, 0.1), VERSION_SIZE_LIMIT)
            document = json.loads(answer.body)
        except (FetchError, ValueError, RecursionError):
            return ""
        version = document.get("version") if isinstance(document, dict) else None
        if isinstance(version, str) and version.isprintable() and len(version) <= dialects.LABEL_LIMIT:
            self._version = version
        return self._version
