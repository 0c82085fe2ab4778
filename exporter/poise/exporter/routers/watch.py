"""Watches routers: those of the process table and those that a person named. Keeps a poller for each and the roster up to date.

The scan of the process table is another's; `update` is called with its result, never waits for a router, and never raises: what breaks here costs no
engine its series.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from poise.exporter.engines.page import Limits
from poise.exporter.engines.table import Process, ProcessKey
from poise.exporter.engines.urls import host_to_ask, why_not_asked
from poise.exporter.procfs import ProcFs
from poise.exporter.router_specs import RouterSpec
from poise.exporter.routers.addresses import Assignment, KnownEngine
from poise.exporter.routers.command_line import RouterCommand
from poise.exporter.routers.outside import Outside
from poise.exporter.routers.poll import RouterPoll, RouterPoller, RouterTarget
from poise.exporter.routers.roster import RouterRoster, SeenRouter
from poise.exporter.setting_values import is_loopback
from poise.exporter.snapshot import CollectorStatus, Router

ROUTERS = "router_pages"
#: How often the ports of a router that hides its command line are looked for until one answers, in seconds: /proc/net/tcp is long.
PORTS_INTERVAL = 5.0

#: So many routers of one node are watched, the longest running first; any user can start processes that are called so.
MOST_ROUTERS = 64

_log = logging.getLogger(__name__)


def find_routers(processes: Mapping[int, Process]) -> tuple[Process, ...]:
    """The routers among processes, in order of their start; one below another (a server's worker process) is a part of that."""
    routers = {pid: process for pid, process in processes.items() if process.router is not None}
    found = []
    for process in routers.values():
        seen: set[int] = set()
        above = process.ppid
        while above in processes and above not in routers and above not in seen:  # a table read while it changes may hold circles
            seen.add(above)
            above = processes[above].ppid
        if above not in routers or above == process.pid:
            found.append(process)
    return tuple(sorted(found, key=lambda process: (process.start_time, process.pid)))


class RouterWatch:
    """The routers of this node and the configured ones. `update` and `group` are for one thread; the rest is for any."""

    def __init__(
        self,
        node: str,
        specs: Sequence[RouterSpec],
        proc: ProcFs,
        is_local: Callable[[str], bool],
        *,
        interval: float,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proc = proc
        self._outside = Outside(proc)
        self._interval = interval
        self._limits = limits
        self._clock = clock
        self._is_local = is_local
        self._roster = RouterRoster(node, tuple(specs), is_local)
        self._pollers: Mapping[ProcessKey | str, RouterPoller] = {}  # by process, or by name for one that is only a URL
        self._failures_before = 0  # of pollers that have ended: a counter must not fall
        self._success_at: float | None = None
        self._ports_at: float | None = None
        self._told: frozenset[ProcessKey] = frozenset()
        self._closed: set[ProcessKey] = set()  # processes whose open sockets we may not know
        self._published: tuple[Router, ...] = ()
        self._broken = ""  # what broke in the last scan
        self._left_out = 0  # how many routers are too many
        self._stopped = False

    def update(self, processes: Mapping[int, Process], now: float) -> frozenset[int]:
        """Takes over a scan at `now` (Unix seconds); returns the pids of its routers."""
        try:
            pids = self._update(processes, now)
        except Exception as problem:
            self._break(problem)
            return frozenset()
        self._broken = ""
        return pids

    def _update(self, processes: Mapping[int, Process], now: float) -> frozenset[int]:
        running = find_routers(processes)
        found = running[:MOST_ROUTERS]
        self._left_out = len(running) - len(found)
        keys = {process.key for process in found}
        self._outside.keep(keys)
        self._closed &= keys
        targets: dict[ProcessKey | str, tuple[str, RouterTarget]] = {}
        unreachable: dict[ProcessKey, str] = {}
        for process in found:
            target = self._target_of(process)
            if isinstance(target, str):
                unreachable[process.key] = target
            else:
                targets[process.key] = (f"process {process.pid}", target)
        for name, spec in self._roster.only_by_url().items():
            if not any(self._is_at(spec, target) for _, target in targets.values()):
                targets[name] = (name, RouterTarget(spec.url, _metrics_of(spec), spec.kind, configured=True))
        new = self._keep_pollers(targets)
        self._offer_ports(found, new)
        self._start(new)
        polls = {key: poller.latest for key, poller in self._pollers.items()}
        seen = [_seen(process, targets.get(process.key), polls.get(process.key), unreachable.get(process.key, "")) for process in found]
        self._roster.update(seen, {name: poll for name, poll in polls.items() if isinstance(name, str)}, now)
        self._tell_overdue(unreachable, now)
        if not any(poll.failed for poll in polls.values()):
            self._success_at = now
        return frozenset(process.pid for process in found)

    def replace_specs(self, specs: Sequence[RouterSpec]) -> tuple[str, ...]:
        """Watches these configured routers instead of those from before; see RouterRoster.replace_specs. For the thread of `update`."""
        return self._roster.replace_specs(specs)

    def is_undecided(self, now: float) -> bool:
        """Whether engines that were just found had better wait for a router's answer."""
        return self._roster.is_undecided(now)

    def group(self, engines: Sequence[KnownEngine], told: Mapping[str, str], now: float) -> Mapping[str, Assignment]:
        """What routers say of the engines; see RouterRoster.group."""
        if self._broken:
            return {}
        try:
            assigned = self._roster.group(engines, told, now)
            published = self._roster.published()
        except Exception as problem:
            self._break(problem)
            return {}
        _tell(self._published, published)
        self._published = published
        return assigned

    def latest(self) -> tuple[Router, ...]:
        """The routers as of the last scan."""
        return self._published

    def status(self) -> CollectorStatus:
        """How asking them goes. One that does not listen yet is no failure; one that answers badly, or not in time, is."""
        polls = [poller.latest for poller in self._pollers.values()]
        problems = [f"{poll.url or 'a router'}: {poll.error}" for poll in polls if poll.failed]
        problems += [f"internal error: {self._broken}"] if self._broken else []
        problems += [f"{self._left_out} more routers run here; only the oldest {MOST_ROUTERS} are watched"] if self._left_out else []
        return CollectorStatus(
            ROUTERS,
            self._interval,
            max((poll.duration for poll in polls if poll.duration is not None), default=None),
            not problems,
            self._success_at,
            self._failures_before + sum(poll.failures for poll in polls),
            "; ".join(problems),
        )

    def stop(self) -> None:
        """Ends all requests and threads; does not wait."""
        self._stopped = True
        for poller in self._pollers.values():
            poller.stop()

    def join(self, deadline: float) -> None:
        """Waits for the threads until `deadline` (monotonic seconds)."""
        for poller in self._pollers.values():
            poller.join(max(deadline - self._clock(), 0.0))

    # --------------------------------------------------------------------------------------------------------------- parts
    def _break(self, problem: Exception) -> None:
        """Tells and counts a failure of our own; what was published last is not known to hold."""
        _log.exception("watching routers failed")
        self._failures_before += 1
        self._broken = type(problem).__name__
        self._published = ()

    def _target_of(self, process: Process) -> RouterTarget | str:
        """What to ask for a router's process, or in words why nobody can."""
        command = process.router
        assert command is not None
        if command.told and command.port is None:
            return "its --port is no port"
        if not self._proc.same_namespace(process.pid, "net"):
            return self._target_outside(process, command)
        if command.port is None:
            return RouterTarget(None, None, command.kind, command)
        url = _url(command.host, command.port)
        spec = self._roster.spec_of(url)
        if spec is None and (why := why_not_asked(command.host, self._is_local)):
            return why
        metrics = _metrics_of(spec) if spec is not None else None
        if metrics is None and command.metrics is not None and not why_not_asked(command.metrics[0], self._is_local):
            metrics = _url(*command.metrics)
        return RouterTarget(url, metrics, command.kind, command, configured=spec is not None)

    def _target_outside(self, process: Process, command: RouterCommand) -> RouterTarget | str:
        """What to ask in another network namespace. Its metrics are read where they are listened for on more than loopback."""
        reached = self._outside.reach(process, self._clock())
        if reached.address is None:
            return "it is in a network namespace of its own, where it is not reached from here"
        host = str(reached.address)
        if command.port is None:
            return RouterTarget(None, None, command.kind, command, host)
        url = _url(host, command.port)
        spec = self._roster.spec_of(url)
        metrics = _metrics_of(spec) if spec is not None else None
        if metrics is None and command.metrics is not None and not is_loopback(command.metrics[0] or ""):
            metrics = _url(host, command.metrics[1])
        return RouterTarget(url, metrics, command.kind, command, host)

    def _is_at(self, spec: RouterSpec, target: RouterTarget) -> bool:
        return target.url is not None and self._roster.spec_of(target.url) is spec

    def _keep_pollers(self, targets: Mapping[ProcessKey | str, tuple[str, RouterTarget]]) -> Mapping[ProcessKey | str, RouterPoller]:
        """Ends pollers whose target is another or gone, makes those that are missing; returns the new ones, which are not started yet."""
        kept: dict[ProcessKey | str, RouterPoller] = {}
        for key, poller in self._pollers.items():
            if key in targets and poller.target == targets[key][1]:
                kept[key] = poller
            else:
                poller.stop()
                self._failures_before += poller.latest.failures
        new = {
            key: RouterPoller(name, target, self._interval, is_ours=self._is_local, limits=self._limits, clock=self._clock)
            for key, (name, target) in targets.items()
            if key not in kept
        }
        self._pollers = kept | new  # replaced as a whole: other threads read it
        return new

    def _start(self, new: Mapping[ProcessKey | str, RouterPoller]) -> None:
        for key, poller in new.items():
            if self._stopped:
                return
            try:
                poller.start()
            except RuntimeError as problem:  # no thread is left; the router stays known, and the next scan tries again
                _log.warning("a router is not asked: %s", problem)
                self._pollers = {other: kept for other, kept in self._pollers.items() if other != key}

    def _offer_ports(self, found: Sequence[Process], new: Collection[ProcessKey | str]) -> None:
        """Tells pollers of routers without a known address on which ports their processes listen."""
        hidden = [process for process in found if (poller := self._pollers.get(process.key)) is not None and poller.latest.url is None]
        hidden = [process for process in hidden if process.router is not None and not process.router.told]
        is_due = self._ports_at is None or self._clock() - self._ports_at >= PORTS_INTERVAL
        if not hidden or not (is_due or any(process.key in new for process in hidden)):
            return
        self._ports_at = self._clock()
        ours = self._proc.sockets()
        for process in hidden:
            poller = self._pollers[process.key]
            sockets = ours if poller.target.host is None else self._proc.sockets(process.pid)
            ports = self._proc.listening_ports((process.pid,), sockets)
            poller.offer(tuple(sorted(ports or ())))
            if ports is None:
                self._closed.add(process.key)

    def _tell_overdue(self, unreachable: Mapping[ProcessKey, str], now: float) -> None:
        """Logs once of each router that is not shown after a while why that is so."""
        overdue = self._roster.overdue(now)
        for key in overdue - self._told:
            why = unreachable.get(key, "none of its ports answers; vllm-router opens its own once its engines are healthy")
            if key in self._closed:
                why = "its open sockets cannot be read: run Poise as root or with CAP_SYS_PTRACE"
            _log.warning("process %d is a router that is not shown yet: %s; --router NAME=URL names one", key.pid, why)
        self._told = overdue


def _seen(process: Process, target: tuple[str, RouterTarget] | None, poll: RouterPoll | None, why_no_url: str) -> SeenRouter:
    command = process.router
    assert command is not None
    answer = poll if poll is not None else RouterPoll(error=why_no_url or "not asked yet")
    url = answer.url
    if url is None and target is not None:
        url = target[1].url
    apart = target is not None and target[1].host is not None
    return SeenRouter(process.key, command.kind, url, answer, why_no_url, command.backends, command.disaggregated, apart)


def _metrics_of(spec: RouterSpec) -> str | None:
    return spec.metrics or None


def _url(host: str | None, port: int) -> str:
    return f"http://{host_to_ask(host)}:{port}"


def _tell(before: Sequence[Router], now: Sequence[Router]) -> None:
    """Logs routers that came, answered, fell silent and went."""
    old = {router.name: (router.pid, router.up) for router in before}
    for router in now:
        state = (router.pid, router.up)
        if old.get(router.name) != state:
            words = f"up, {len(router.backends)} engines" if router.up else f"down: {router.error}"
            _log.info("router %s (%s), deployment %s: %s", router.name, router.kind or "kind not known", router.deployment, words)
