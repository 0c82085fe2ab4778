"""Watches the engines of this node: scans /proc, polls each engine, and gives the newest of both at any time.

The one edge of this package with threads: one scans, and each engine has a poller of its own. `latest` never waits for either.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from poise.exporter.access import Access
from poise.exporter.engine_specs import EngineSpec
from poise.exporter.engines.credentials import DISCOVERED
from poise.exporter.engines.discovery import MOST_ENGINES, find_engines
from poise.exporter.engines.identity import Located, Member, Roster
from poise.exporter.engines.insides import Inside, Insides
from poise.exporter.engines.locate import Locator
from poise.exporter.engines.observation import observed, tell
from poise.exporter.engines.page import Limits
from poise.exporter.engines.poll import Poll, Poller
from poise.exporter.engines.table import ProcessKey, ProcessTable
from poise.exporter.engines.urls import url_host
from poise.exporter.observed_role import shown_role
from poise.exporter.procfs import ProcFs
from poise.exporter.router_specs import RouterSpec
from poise.exporter.routers.addresses import KnownEngine
from poise.exporter.routers.roster import ROUTER_GRACE
from poise.exporter.routers.watch import RouterWatch
from poise.exporter.setting_values import is_loopback
from poise.exporter.snapshot import CollectorStatus, ObservedEngine, Role, Router
from poise.exporter.standing import view_limits, why_unreadable
from poise.exporter.this_node import is_this_node

#: How often /proc is scanned, in seconds.
SCAN_INTERVAL = 2.0
#: How long `stop` waits for all threads together, in seconds; they are daemons, so none holds the process.
STOP_TIMEOUT = 0.5
#: How long a port may take to show that vLLM answers there, in seconds.
PROBE_TIMEOUT = 1.0

DISCOVERY, PAGES = "engine_discovery", "engine_pages"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EnginesObserved:
    """All engines and routers at `taken_at` (Unix seconds), in order of their names, and how the source's collectors do."""

    taken_at: float
    engines: tuple[ObservedEngine, ...] = ()
    collectors: tuple[CollectorStatus, ...] = ()
    routers: tuple[Router, ...] = ()


@dataclass(frozen=True, slots=True)
class _Scan:
    """The result of one scan, replaced as a whole. `pages_success`: when no page last failed, Unix seconds."""

    members: tuple[Member, ...] = ()
    connections: Mapping[str, int] = field(default_factory=dict)
    insides: Mapping[str, Inside] = field(default_factory=dict)
    routers: tuple[Router, ...] = ()
    duration: float | None = None
    failures: int = 0
    last_success: float | None = None
    pages_success: float | None = None
    error: str = ""


class EngineSource:
    """The engines of this node and the routers before them. `node` is its name in labels; `specs` and `router_specs` are the configured ones;
    intervals in seconds.
    """

    def __init__(
        self,
        node: str,
        specs: Sequence[EngineSpec] = (),
        *,
        router_specs: Sequence[RouterSpec] = (),
        discover: bool = True,
        interval: float = 5.0,
        scan_interval: float = SCAN_INTERVAL,
        proc_root: Path = Path("/proc"),
        limits: Limits | None = None,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._discover = discover
        self._interval = interval
        self._scan_interval = scan_interval
        self._limits = limits
        self._now = now
        self._clock = clock
        self._proc = ProcFs(proc_root)
        self._table = ProcessTable(self._proc)
        self._insides = Insides(self._proc, clock)
        self.view_limits = view_limits(self._proc) if discover else None
        self._locator = Locator(self._proc, self._answers_as_vllm, why_unreadable(self.view_limits or ()), self._is_local)
        self._roster = Roster(node, tuple(specs), self._is_local)
        self._routers = RouterWatch(node, router_specs, self._proc, self._is_local, interval=interval, limits=limits, clock=clock)
        self._specs_to_come: tuple[tuple[EngineSpec, ...], tuple[RouterSpec, ...]] | None = None
        self._watched: frozenset[int] = frozenset()
        self._waiting: set[ProcessKey] = set()
        self._lock = (
            threading.Lock()
        )  # guards what other threads hand over: the specs to come, and the pollers between scanning, stopping and reading
        self._pollers: dict[str, tuple[_Target, Poller]] = {}
        self._failures_before = 0  # of pollers that have ended: a counter must not fall
        self._stopping = False
        self._scan = _Scan()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="poise-engines", daemon=True)

    def start(self) -> None:
        """Starts scanning and polling."""
        self._insides.start()
        self._thread.start()

    def stop(self) -> None:
        """Ends everything at once; waits for the threads at most `STOP_TIMEOUT` seconds."""
        self._stopped.set()
        self._insides.stop()
        with self._lock:
            self._stopping = True
            pollers = [poller for _, poller in self._pollers.values()]
        for poller in pollers:
            poller.stop()
        self._routers.stop()
        deadline = self._clock() + STOP_TIMEOUT
        for poller in pollers:
            poller.join(max(deadline - self._clock(), 0.0))
        self._routers.join(deadline)
        if self._thread.is_alive():
            self._thread.join(max(deadline - self._clock(), 0.0))

    def latest(self) -> EnginesObserved:
        """What is known now: the newest scan with each engine's newest page."""
        scan = self._scan
        polls = self._polls()
        engines = tuple(
            observed(
                member,
                polls.get(member.identity.engine),
                scan.insides.get(member.identity.engine),
                scan.connections.get(member.identity.engine),
            )
            for member in scan.members
        )
        collectors = (self._discovery_status(scan), self._pages_status(scan, polls), self._routers.status())
        return EnginesObserved(self._now(), engines, collectors, scan.routers)

    def title_of(self, pid: int) -> str:
        """The vLLM title of a process, else its program's name; never a command line."""
        return self._table.title_of(pid) or self._proc.program(pid)

    def replace_specs(self, specs: Sequence[EngineSpec], router_specs: Sequence[RouterSpec]) -> None:
        """Watches these configured engines and routers instead of those from before, from the next scan on."""
        with self._lock:
            self._specs_to_come = tuple(specs), tuple(router_specs)

    # ---------------------------------------------------------------------------------------------------------- scanning
    def _run(self) -> None:
        while not self._stopped.is_set():
            started = self._clock()
            try:
                self.scan_once()
            except Exception as problem:
                # A scan that breaks must not end discovery: it is told, counted, and its engines and routers are unknown until the next.
                _log.exception("scanning for engines failed")
                self._scan = replace(self._scan, members=(), routers=(), failures=self._scan.failures + 1, error=type(problem).__name__)
            self._stopped.wait(max(self._scan_interval - (self._clock() - started), 0.0))

    def scan_once(self) -> None:
        """Scans once and starts, keeps or stops pollers accordingly."""
        started, now = self._clock(), self._now()
        with self._lock:
            specs, self._specs_to_come = self._specs_to_come, None
        if specs is not None:
            kept = {"engine": self._roster.replace_specs(specs[0]), "router": self._routers.replace_specs(specs[1])}
            for what, name in ((what, name) for what, names in kept.items() for name in names):
                _log.warning("%s %s: what the settings say of it now holds once its process has ended", what, name)
        processes = self._table.scan(self._watched) if self._discover else {}
        running = find_engines(processes)
        found = running[:MOST_ENGINES]
        error = f"{len(running)} vLLM servers run here; only the oldest {MOST_ENGINES} are watched" if len(running) > len(found) else ""
        if error and error.partition(" ")[2] != self._scan.error.partition(" ")[2]:
            _log.warning("%s", error)
        self._watched = frozenset(pid for engine in found for pid in engine.pids) | self._routers.update(processes, now)
        located = self._locator.locate(found, started)
        hold = ROUTER_GRACE if self._routers.is_undecided(now) else 0.0
        members = self._completed(self._roster.update(located, now, hold=hold), now)
        tell(self._scan.members, members)
        if not hold:
            self._tell_waiting(located, {member.found.key for member in members if member.found is not None})
        self._keep_pollers(members)
        connections = {
            member.identity.engine: self._locator.connections(member.found.key, port)
            for member in members
            if member.found is not None and member.url is not None and (port := url_host(member.url)[1]) is not None
        }
        self._insides.want(found)
        before = self._scan
        insides = {
            member.identity.engine: self._insides.of(member.found.key)
            if member.found is not None
            else before.insides.get(member.identity.engine, Inside())
            for member in members
        }
        pages_success = before.pages_success if any(poll.failed for poll in self._polls().values()) else now
        routers = self._routers.latest()
        self._scan = _Scan(members, connections, insides, routers, self._clock() - started, before.failures, now, pages_success, error)

    def _completed(self, members: Sequence[Member], now: float) -> tuple[Member, ...]:
        """The members, with what nobody said of them filled in by routers and by their own counters."""
        polls = self._polls()
        known = [engine for member in members if (engine := self._known(member, polls.get(member.identity.engine))) is not None]
        told = {member.identity.engine: member.identity.deployment for member in members if member.deployment_settled}
        shown: dict[str, Role] = {}
        for member in members:
            poll = polls.get(member.identity.engine)
            if member.identity.role is Role.UNKNOWN and poll is not None and poll.page is not None:
                role = shown_role(poll.page, member.config)
                if role is not None:
                    shown[member.identity.engine] = role
        return self._roster.fill(self._routers.group(known, told, now), shown)

    def _known(self, member: Member, poll: Poll | None) -> KnownEngine | None:
        """Where a router that sends to this engine would say that it is."""
        if member.url is None:
            return None
        host, port = url_host(member.url)
        if port is None:
            return None
        work = poll.page.work if poll is not None and poll.page is not None else ()
        model = member.config.model or (work[0].model if work else "")
        return KnownEngine(member.identity.engine, host, port, self._is_local(host), member.forwarded, model)

    def _is_local(self, host: str) -> bool:
        return is_this_node(host, self._node)

    def _tell_waiting(self, located: Sequence[Located], published: Collection[ProcessKey]) -> None:
        """Logs once of each engine that cannot be published yet why that is so."""
        waiting = {item.found.key for item in located} - set(published)
        for key in waiting - self._waiting:
            _log.warning("process %d is a vLLM server that is not shown yet: its port is not known, or another server has it", key.pid)
        self._waiting = waiting

    def _answers_as_vllm(self, url: str) -> bool:
        poller = Poller(
            url, PROBE_TIMEOUT, access=DISCOVERED, is_ours=self._is_local, limits=self._limits, now=self._now, clock=self._clock
        )
        return poller.poll_once().page is not None

    def _keep_pollers(self, members: Sequence[Member]) -> None:
        wanted = {
            member.identity.engine: _Target(
                member.url,
                member.found.key if member.found is not None else None,
                member.spec.access if member.spec is not None else DISCOVERED,
                member.spec is not None,
            )
            for member in members
            if member.url is not None and (member.found is not None or member.spec is not None)
        }
        with self._lock:
            if self._stopping:
                return
            for name in [name for name, (target, _) in self._pollers.items() if wanted.get(name) != target]:
                poller = self._pollers.pop(name)[1]
                poller.stop()
                self._failures_before += poller.latest.failures
            for name, target in wanted.items():
                if name not in self._pollers:
                    poller = Poller(
                        target.url,
                        self._interval,
                        access=target.access,
                        is_ours=None if target.configured else self._is_local,
                        limits=self._limits,
                        now=self._now,
                        clock=self._clock,
                    )
                    if target.access.has_secret and target.url.startswith("http:") and not is_loopback(url_host(target.url)[0]):
                        _log.warning("engine %s: its token or password goes to %s unencrypted; ask it by https", name, target.url)
                    try:
                        poller.start()
                    except RuntimeError as problem:  # no thread is left; the engine stays known, and the next scan tries again
                        _log.warning("engine %s is not asked: %s", name, problem)
                        continue
                    self._pollers[name] = (target, poller)

    # --------------------------------------------------------------------------------------------------------- observing
    def _polls(self) -> dict[str, Poll]:
        with self._lock:
            return {name: poller.latest for name, (_, poller) in self._pollers.items()}

    def _discovery_status(self, scan: _Scan) -> CollectorStatus:
        success = scan.last_success is not None and not scan.error
        return CollectorStatus(DISCOVERY, self._scan_interval, scan.duration, success, scan.last_success, scan.failures, scan.error)

    def _pages_status(self, scan: _Scan, polls: Mapping[str, Poll]) -> CollectorStatus:
        """An engine where nothing listens yet is no failure; one that answers badly, or not in time, is."""
        failed = {name: poll for name, poll in sorted(polls.items()) if poll.failed}
        return CollectorStatus(
            PAGES,
            self._interval,
            max((poll.duration for poll in polls.values() if poll.duration is not None), default=None),
            not failed,
            scan.pages_success,
            self._failures_before + sum(poll.failures for poll in polls.values()),
            "; ".join(f"{name}: {poll.error}" for name, poll in failed.items()),
        )


@dataclass(frozen=True, slots=True)
class _Target:
    """What a poller asks: another process behind the same address is another target."""

    url: str
    key: ProcessKey | None
    access: Access
    configured: bool
