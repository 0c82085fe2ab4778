"""History and alerts of this process: the store, further targets that are scraped, the evaluator, the notifier, and the door to ask them.

    the page's scrapes ┐                        ┌─► querier ─► /api/v1
    further targets    ┴─► one thread ─► store ─┤
                                                └─► evaluator (a thread) ─► notifier ─► Alertmanagers

Owns how they are opened, run together and closed. A history that cannot be used is said, and kept in memory instead: a full disk or a second process
must not blind anybody. Knows no page.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import fields, replace
from pathlib import Path

from fastapi import APIRouter
from poise.alerts.evaluation.acknowledgements import Acknowledgements
from poise.alerts.evaluation.active import Transition
from poise.alerts.evaluation.evaluator import Evaluator
from poise.alerts.evaluation.memory import Memory
from poise.alerts.evaluation.prepared import PreparedGroup
from poise.alerts.evaluation.self_metrics import EvaluatorCollector
from poise.alerts.notification.alertmanager import Alertmanager
from poise.alerts.notification.notifier import Notifier
from poise.alerts.notification.self_metrics import NotifierCollector
from poise.alerts.notification.silencing import Silencing
from poise.alerts.rule_set import rule_files
from poise.alerts.rules import RuleError
from poise.alerts.settings import AlertSettings
from poise.alerts.thresholds import ThresholdError
from poise.dashboard import alerts_api, silences_api
from poise.dashboard.alert_explained import AlertPage
from poise.dashboard.api_prometheus import router as api_prometheus
from poise.dashboard.api_prometheus.sources import NoRules, RulesSource
from poise.dashboard.changes import Gate
from poise.dashboard.rules_source import EvaluatedRules
from poise.exporter.settings import SettingsError
from poise.history.labelling import Labeller
from poise.history.page_token import PageToken
from poise.history.promql.engine import Engine
from poise.history.promql.evaluate import Settings
from poise.history.querier.embedded import EmbeddedQuerier
from poise.history.scrape import Scrape
from poise.history.scraping import ScrapePool, TargetStatus, aligned
from poise.history.self_metrics import HistoryCollector
from poise.history.settings import HistorySettings
from poise.history.settling import Settling
from poise.history.store.pruning import Retention
from poise.history.store.sqlite_file import StoreError
from poise.history.store.store import Store
from poise.history.targets import Target
from prometheus_client import CollectorRegistry

log = logging.getLogger(__name__)

#: Seconds that the evaluator's thread may take to end a round.
_THREAD_SECONDS = 1.0
_MEMORY_FILE = "alerts.db"
#: Seconds that an exporter which is started with this process may take to answer, and those after its first page in which it finds its engines: what
#: it does not show by then is not there. The exporter waits 2 s for its cards; a busy machine's imports took 10.
EXPORTER_START, EXPORTER_FINDS = 30.0, 10.0
#: What a reload takes over; all else of [alerts] is built into what runs.
_TAKEN_ALERTS = ("rules", "without", "thresholds")


class Backend:
    """What keeps and judges. `local` is the target whose scrapes the page makes itself and gives to `take`."""

    def __init__(
        self,
        history: HistorySettings,
        alerts: AlertSettings,
        *,
        local: Target,
        path: Path | None,
        page: str,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        environment: Mapping[str, str] | None = None,
        token: Callable[[], PageToken] = lambda: PageToken(None),
        starts_exporter: bool = False,
    ) -> None:
        """Opens store and memory and reads the rules; `path` None keeps everything in memory, `page` is the dashboard's address, `token` gives what
        changes need, and is asked last: a start that fails leaves no token behind. `starts_exporter`: the local target may be about to begin.

        Raises:
            SettingsError: a rule file or a threshold cannot be used.
        """
        self._wall_clock = wall_clock
        self._history, self._alerts = history, alerts
        self._reloading = asyncio.Lock()
        self._clock = clock
        self._local = TargetStatus(local, grace=EXPORTER_START if starts_exporter else 0.0)
        self._answers_since: float | None = None
        self._labeller = Labeller(local)
        self._pending: Future[None] | None = None
        self._kept_at = 0.0
        retention = Retention(history.retention, history.retention_size)
        self.store = _store(path, retention, wall_clock, clock)
        self.pool = ScrapePool(self.store, wall_clock=wall_clock, clock=clock)
        self.pool.set_targets(history.targets)
        self.querier = EmbeddedQuerier(self.store, clock=clock, metadata=lambda: [status.metadata for status in self.status()])
        self.notifier = Notifier(
            [Alertmanager(place, environment) for place in alerts.alertmanagers],
            external_labels=alerts.external_labels,
            page=alerts.page or page,
            wall=wall_clock,
        )
        self._silencing = Silencing(alerts.alertmanagers, clock=clock, environment=environment)
        self.evaluator: Evaluator | None = None
        self._memory: Memory | None = None
        if alerts.mode == "builtin":
            try:
                # By its own merits: a history that is damaged or in use says nothing of what the evaluator remembers.
                self._memory = Memory(None if path is None else path.with_name(_MEMORY_FILE))
            except StoreError as error:
                log.error("%s; the state of alerts is kept in memory only", error)
                self._memory = Memory(None)
        self._acknowledgements = Acknowledgements(None if self._memory is None else self._memory.file, wall_clock)
        if self._memory is not None:
            self.evaluator = Evaluator(
                read=lambda: rule_files(self._alerts, self._alerts.page or page),
                query=Engine(self.store, Settings()).instant,
                store=self.store,
                memory=self._memory,
                deliver=self.notifier.take,
                wall=wall_clock,
                clock=clock,
                interval=alerts.interval * alerts.time_scale,
                external=alerts.external_labels,
                heed=self._acknowledgements.heed,
                settled=Settling(self.status, clock),
            )
            try:
                self.evaluator.start()
            except (RuleError, ThresholdError, OSError) as error:
                self.close()
                raise SettingsError(str(error)) from None
        self._gate = Gate(token())

    # ------------------------------------------------------------------------------------------------------------- looking
    @property
    def rules(self) -> RulesSource:
        """For the API."""
        return NoRules() if self.evaluator is None else EvaluatedRules(self.evaluator)

    def status(self) -> list[TargetStatus]:
        """How each target does, the page's own first (a `TargetsSource`)."""
        return [self._local, *self.pool.status()]

    def register(self, registry: CollectorRegistry) -> None:
        """Adds how all of this does to a /metrics page."""
        registry.register(HistoryCollector(self.store.status, self.status))
        if self.evaluator is not None:
            registry.register(EvaluatorCollector(self.evaluator))
        registry.register(NotifierCollector(self.notifier.status))

    def routers(self) -> Sequence[APIRouter]:
        """Prometheus' API and ours about alerts and silences."""
        return (
            api_prometheus.create_router(self.querier, now=self._wall_clock, rules=self.rules, targets=self),
            alerts_api.create_router(
                self.querier, self.rules, now=self._wall_clock, history=self.changes, notifications=self.notifier.status
            ),
            silences_api.create_router(
                self.rules,
                self._acknowledgements,
                self._silencing,
                self._gate,
                mode=self._alerts.mode,
                external_labels=self._alerts.external_labels,
                now=self._wall_clock,
            ),
        )

    @property
    def alert_page(self) -> AlertPage:
        """For the page that notifications link to."""
        return AlertPage(self.querier, self.rules, self._wall_clock)

    def changes(self, start: float, end: float, name: str | None) -> Sequence[Transition]:
        """The changes of state of alerts between two moments (Unix seconds)."""
        return () if self.evaluator is None else self.evaluator.changes(round(start * 1000), round(end * 1000), name)

    # ------------------------------------------------------------------------------------------------------------- running
    def take(self, scrape: Scrape) -> None:
        """What the page scraped goes to the store, unless that is still busy with the scrape before."""
        status = self._local
        status.count(scrape)
        if scrape.ours:
            return
        if self._pending is not None and not self._pending.done():
            status.not_kept += 1
            return
        # The page scrapes when it likes to; where that is evenly, the times are made so to the millisecond, which takes least room.
        self._kept_at = aligned(scrape.at, self._kept_at + status.target.interval, status.target.interval)
        self._pending = self.pool.keep(status, self._labeller, scrape, self._kept_at)
        known = self._shows_all(scrape)
        self._pending.add_done_callback(lambda written: self._written(written, scrape.at if known else None))

    def _shows_all(self, scrape: Scrape) -> bool:
        """Whether the page of this machine's exporter says what there is, or that it is down: not while it begins."""
        if not self._local.grace:
            return True
        if self._answers_since is None and scrape.up:
            self._answers_since = self._clock()
        return self._answers_since is not None and self._clock() - self._answers_since >= EXPORTER_FINDS

    def _written(self, written: Future[None], at: float | None) -> None:
        """In the writing thread. A store tells of a disk that does not take it; what it raises is an error of ours."""
        fault = None if written.cancelled() else written.exception()
        if fault is not None:
            self._local.not_kept += 1
            log.error("a scrape of this machine's exporter could not be kept", exc_info=fault)
        elif at is not None:
            self._local.known_at = at

    async def reload(self, history: HistorySettings, alerts: AlertSettings) -> tuple[str, ...]:
        """Takes targets, rules and thresholds from settings that were read anew, one reload at a time; what else is new, by name: that needs a restart.

        Rules are read in a thread, for thousands take seconds.

        Raises:
            SettingsError: a rule file or a threshold cannot be used; everything is as it was then.
        """
        async with self._reloading:
            before = self._alerts
            self._alerts = replace(before, **{name: getattr(alerts, name) for name in _TAKEN_ALERTS})
            groups: Sequence[PreparedGroup] = ()
            if self.evaluator is not None:
                try:
                    groups = await asyncio.to_thread(self.evaluator.read_anew)
                except BaseException as error:
                    self._alerts = before
                    if isinstance(error, RuleError | ThresholdError | OSError):
                        raise SettingsError(str(error)) from None
                    raise
            # First the targets: no new rule is evaluated before a new target has been asked.
            self._history = replace(self._history, targets=history.targets)
            self.pool.set_targets(history.targets)
            if self.evaluator is not None:
                await asyncio.to_thread(self.evaluator.take, groups)
            return (*_differing("alerts", self._alerts, alerts), *_differing("history", self._history, history))

    async def run(self) -> None:
        """Scrapes, evaluates and tells until cancelled."""
        # Each step of the end is taken whatever becomes of those before it, and none needs a thread: there may be none left.
        async with contextlib.AsyncExitStack() as closing:
            closing.callback(self.close)
            closing.push_async_callback(self.querier.close)
            if self.evaluator is not None:
                closing.push_async_callback(_running(self.evaluator))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.pool.run())
                tasks.create_task(self.notifier.run())

    def close(self) -> None:
        """Gives the files free."""
        with contextlib.ExitStack() as closing:
            if self._memory is not None:
                closing.callback(self._memory.close)
            closing.callback(self.store.close)
            with contextlib.suppress(Exception):  # what could not be appended at the end was told by the store
                if self._pending is not None:
                    self._pending.result(_THREAD_SECONDS)


def _running(evaluator: Evaluator) -> Callable[[], Awaitable[None]]:
    """Runs the evaluator in a thread; gives what ends it. Raises RuntimeError when there is no thread for it."""
    stop, ended, loop = threading.Event(), asyncio.Event(), asyncio.get_running_loop()

    def evaluate() -> None:
        try:
            evaluator.run_until(stop)
        finally:
            with contextlib.suppress(RuntimeError):  # the loop did not wait for so long
                loop.call_soon_threadsafe(ended.set)

    async def end() -> None:
        stop.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_THREAD_SECONDS):
                await ended.wait()

    threading.Thread(target=evaluate, name="poise-evaluator", daemon=True).start()
    return end


def _differing(table: str, before: AlertSettings | HistorySettings, wanted: AlertSettings | HistorySettings) -> list[str]:
    """The settings that are not as wanted, as the configuration file calls them."""
    names = [one.name for one in fields(before) if getattr(before, one.name) != getattr(wanted, one.name)]
    return ["[[alertmanager]]" if name == "alertmanagers" else f"[{table}] {name}" for name in names]


def _store(path: Path | None, retention: Retention, wall: Callable[[], float], clock: Callable[[], float]) -> Store:
    """The store, on disk if that can be."""
    if path is not None:
        try:
            return Store(path, retention, wall=wall, monotonic=clock)
        except StoreError as error:
            log.error("%s; the history of this process is kept in memory only", error)
    return Store(None, retention, wall=wall, monotonic=clock)
