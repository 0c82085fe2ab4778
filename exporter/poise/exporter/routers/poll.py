"""Asks one router in a thread of its own whom it sends to and how often, and keeps the newest answer.

A router that is slow, hostile or gone costs its own thread's time and its own series, nothing else; no answer outlives the next. This file
knows no process and no engine of ours.

vllm-router passes on what it does not know itself to an engine, and counts that as a request: its API is asked for ``/workers`` only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from poise.exporter.engines.fetch import Fetcher, FetchError
from poise.exporter.engines.page import Limits, PageError, PageParser, Samples
from poise.exporter.engines.poll import HEADERS, LOADING_INTERVAL, LONGEST_POLL, SHARE_OF_INTERVAL
from poise.exporter.engines.repeat import Repeater
from poise.exporter.engines.urls import host_to_ask
from poise.exporter.metrics import Metric
from poise.exporter.routers import pages
from poise.exporter.routers.command_line import RouterCommand
from poise.exporter.routers.counters import HeldSums
from poise.exporter.setting_values import is_loopback
from poise.exporter.snapshot import Role, RouterBackend, RouterKind

#: Bytes of a list of workers: 256 of them have 60 kB.
WORKERS_SIZE_LIMIT = 1024 * 1024
#: A router's page has 100 lines for two engines; what a page may cost otherwise is the engines' limit.
PAGE_SIZE_LIMIT = 4 * 1024 * 1024
#: A router whose ports are tried has two; so many are tried.
PORTS_LIMIT = 8

_JSON = {"Accept": "application/json", "User-Agent": HEADERS["User-Agent"]}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RouterTarget:
    """What to ask. `url`: None where only the ports are known on which its process listens. `kind`: None where it has to tell itself. `host`: its
    address in a network namespace of its own, None in ours. `configured`: a person named it, so that its host may be any.
    """

    url: str | None
    metrics: str | None = None
    kind: RouterKind | None = None
    command: RouterCommand | None = None
    host: str | None = None
    configured: bool = False


@dataclass(frozen=True, slots=True)
class RouterPoll:
    """The newest answer. `up`: it answered; `error` says why not, or what of its answer could not be used. Durations in seconds.

    `url` is where it was found to listen. `backends` is None while nothing tells them. `failed` tells a failure worth counting from a router
    that merely does not listen yet.
    """

    up: bool = False
    error: str = "not asked yet"
    failed: bool = False
    url: str | None = None
    kind: RouterKind | None = None
    backends: tuple[RouterBackend, ...] | None = None
    disaggregated: bool = False
    counts: Mapping[tuple[Metric, Role], float] = field(default_factory=dict)
    duration: float | None = None
    asked: bool = False
    failures: int = 0


class RouterPoller:
    """Asks one router every `interval` seconds. `latest` is safe from any thread and never waits."""

    def __init__(
        self,
        name: str,
        target: RouterTarget,
        interval: float,
        *,
        is_ours: Callable[[str], bool] = is_loopback,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.target = target
        self._is_ours = None if target.configured else is_ours
        self.interval = interval
        self._name = name
        self._timeout = min(interval * SHARE_OF_INTERVAL, LONGEST_POLL)
        self._limits = limits or Limits(size=PAGE_SIZE_LIMIT)
        self._clock = clock
        self._parser = PageParser(pages.wanted, self._limits)
        self._sums: HeldSums[tuple[Metric, Role]] = HeldSums()
        self._url, self._metrics, self._kind = target.url, target.metrics, target.kind
        self._fetcher: Fetcher | None = None
        self._ports: tuple[int, ...] = ()
        self._latest = RouterPoll()
        self._latest_at = clock()
        self._repeater = Repeater(f"poise-router-{name}", self._turn, clock)

    def start(self) -> None:
        """Starts asking. Raises RuntimeError when the system has no thread left."""
        self._repeater.start()

    def stop(self) -> None:
        """Ends a request in flight and the thread; does not wait for it."""
        self._repeater.stop()
        fetcher = self._fetcher
        if fetcher is not None:
            fetcher.abort()

    def join(self, timeout: float) -> None:
        """Waits at most `timeout` seconds for the thread to end."""
        self._repeater.join(timeout)

    def offer(self, ports: tuple[int, ...]) -> None:
        """The ports among which it is, for a target without a URL."""
        self._ports = ports[:PORTS_LIMIT]

    @property
    def latest(self) -> RouterPoll:
        """The newest answer; down when that is older than three intervals (a name lookup hangs, the machine slept)."""
        poll = self._latest
        if poll.up and self._clock() - self._latest_at > 3 * self.interval + self._timeout:
            return replace(poll, up=False, counts={}, error="the answer is stale: the last poll does not end", failed=True)
        return poll

    def _turn(self) -> float:
        try:
            self.poll_once()
        except Exception as problem:
            # An answer that breaks the reader itself must not end the polling; what it broke is told and counted.
            _log.exception("reading the answer of router %s failed", self._name)
            error = f"internal error: {type(problem).__name__}"
            self._latest = RouterPoll(
                error=error, failed=True, url=self._url, kind=self._kind, asked=True, failures=self._latest.failures + 1
            )
        loading = not self._latest.up and not self._latest.failed
        return min(self.interval, LOADING_INTERVAL) if loading else self.interval

    # ------------------------------------------------------------------------------------------------------------- asking
    def poll_once(self) -> RouterPoll:
        """Asks now; the result is also what `latest` gives."""
        before, started = self._latest, self._clock()
        deadline = started + self._timeout
        try:
            if self._url is None:
                self._look(deadline)
            answer = self._ask(deadline)
        except FetchError as problem:
            answer = RouterPoll(error=str(problem), failed=not problem.refused)
        except PageError as problem:
            answer = RouterPoll(error=str(problem), failed=True)
        self._latest = replace(
            answer,
            url=self._url,
            kind=self._kind,
            duration=self._clock() - started,
            asked=True,
            failures=before.failures + answer.failed,
        )
        self._latest_at = self._clock()
        return self._latest

    def _look(self, deadline: float) -> None:
        """Finds out on which of its ports the API is, and on which the metrics are. The metrics listener gives its page under every path."""
        urls = [f"http://{host_to_ask(self.target.host)}:{port}" for port in self._ports]
        for url in urls:
            try:
                pages.read_workers(self._get(url, "/workers", deadline, WORKERS_SIZE_LIMIT))
                self._url = url
                break
            except (FetchError, PageError):
                continue
        if self._url is None:
            raise FetchError("none of its ports answers as a router's API: it waits for its engines, or starts", refused=True)
        for url in urls:
            if url != self._url:
                try:
                    self._samples(url, deadline)
                except (FetchError, PageError):
                    continue
                self._metrics = url
                break

    def _ask(self, deadline: float) -> RouterPoll:
        assert self._url is not None
        if self._kind is RouterKind.VLLM_ROUTER:
            return self._ask_vllm_router(deadline)
        if self._kind is RouterKind.PRODUCTION_STACK:
            return self._ask_production_stack(deadline)
        if self._kind is RouterKind.TOY_PROXY:
            return self._ask_proxy(deadline)
        return self._ask_whoever(deadline)

    def _ask_whoever(self, deadline: float) -> RouterPoll:
        """A router that was named without its kind."""
        assert self._url is not None
        try:
            pages.read_workers(self._get(self._url, "/workers", deadline, WORKERS_SIZE_LIMIT))
            self._kind = RouterKind.VLLM_ROUTER
            return self._ask_vllm_router(deadline)
        except (FetchError, PageError) as problem:
            if isinstance(problem, FetchError) and problem.status is None:
                raise
        try:
            if pages.is_production_stack(self._samples(self._url, deadline)):
                self._kind = RouterKind.PRODUCTION_STACK
                return self._ask_production_stack(deadline)
        except FetchError as problem:
            if problem.status is None:
                raise
        except PageError:
            pass  # it has another page there, so it is none of those that are known
        raise PageError("it answers, but as no router that Poise knows; say which it is with kind=")

    def _ask_vllm_router(self, deadline: float) -> RouterPoll:
        assert self._url is not None
        problems: list[str] = []
        backends: tuple[RouterBackend, ...] | None = None
        try:
            backends = pages.read_workers(self._get(self._url, "/workers", deadline, WORKERS_SIZE_LIMIT))
        except FetchError as problem:
            if problem.status is None:
                raise
            problems.append(f"/workers: {problem}")  # it lives, and does not tell its engines
        samples: Samples | None = None
        if self._metrics is not None:
            try:
                samples = self._samples(self._metrics, deadline)
            except (FetchError, PageError) as problem:
                problems.append(f"its metrics page: {problem}")
        backends = self._known(backends)
        disaggregated = self._is_disaggregated(backends) or (samples is not None and pages.tells_disaggregated(samples))
        counts: Mapping[tuple[Metric, Role], float] = {}
        if samples is not None:
            try:
                counts = self._sums.update(pages.read_vllm_router(samples, disaggregated=disaggregated))
            except PageError as problem:
                problems.append(f"its metrics page: {problem}")
        return RouterPoll(True, "; ".join(problems), bool(problems), backends=backends, disaggregated=disaggregated, counts=counts)

    def _ask_production_stack(self, deadline: float) -> RouterPoll:
        assert self._url is not None
        command = self.target.command
        told, other = (command.backends, command.other_role) if command is not None else ((), Role.UNKNOWN)
        page = pages.read_production_stack(self._samples(self._metrics or self._url, deadline), told, other)
        return RouterPoll(
            True,
            "",
            backends=self._known(page.backends or None),
            disaggregated=self._is_disaggregated(page.backends),
            counts=self._sums.update(page.counts),
        )

    def _ask_proxy(self, deadline: float) -> RouterPoll:
        """A proxy has no page: that it takes a connection is all that it tells."""
        fetcher = self._fetcher_for(self._url or "")
        fetcher.connect(max(deadline - self._clock(), 0.1))
        backends = self._known(None)
        return RouterPoll(True, "", backends=backends, disaggregated=self._is_disaggregated(backends))

    # ---------------------------------------------------------------------------------------------------------------- parts
    def _known(self, told: tuple[RouterBackend, ...] | None) -> tuple[RouterBackend, ...] | None:
        """The backends that it tells, else those of its command line."""
        command = self.target.command
        return told if told is not None else command.backends if command is not None and command.backends else None

    def _is_disaggregated(self, backends: tuple[RouterBackend, ...] | None) -> bool:
        command = self.target.command
        roles = {backend.role for backend in backends or ()}
        return (command is not None and command.disaggregated) or not roles.isdisjoint({Role.PREFILL, Role.DECODE})

    def _samples(self, url: str, deadline: float) -> Samples:
        body = self._get(url, "/metrics", deadline, self._limits.size, text=True)
        return self._parser.parse(body, expired=lambda: self._clock() > deadline or self._repeater.stopped)

    def _get(self, url: str, path: str, deadline: float, size_limit: int, *, text: bool = False) -> bytearray:
        fetcher = self._fetcher_for(url)
        answer = fetcher.get(path, HEADERS if text else _JSON, max(deadline - self._clock(), 0.1), size_limit)
        if text and ("html" in answer.content_type.lower() or "json" in answer.content_type.lower()):
            raise PageError("the answer is no metrics page")
        return answer.body

    def _fetcher_for(self, url: str) -> Fetcher:
        fetcher = self._fetcher = Fetcher(url, self._clock, is_ours=self._is_ours)
        if self._repeater.stopped:
            fetcher.abort()  # told to stop before it was there to be aborted
        return fetcher
