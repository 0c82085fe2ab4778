"""Gives routers their names and deployments, once, remembers those that vanished, and says which engine belongs to which deployment.

Pure: time, routers found and what they answered are arguments. A router's labels are settled before it is published and stay while it is
remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from poise.exporter import metrics as m
from poise.exporter.engines.identity import CLASH, KEEP_GONE, MOST_GONE
from poise.exporter.engines.table import ProcessKey
from poise.exporter.engines.urls import url_host
from poise.exporter.metrics import Metric
from poise.exporter.router_specs import RouterSpec
from poise.exporter.routers.addresses import Assignment, KnownEngine, join
from poise.exporter.routers.poll import RouterPoll
from poise.exporter.setting_values import is_loopback
from poise.exporter.snapshot import Readings, Role, Router, RouterBackend, RouterKind

#: So long, in seconds, engines that were just found wait for a router that was found and has not said yet which they are, and a router waits
#: for its own answer: two polls of a router that is being tried (routers/poll.py, LOADING_INTERVAL) and a scan.
ROUTER_GRACE = 6.0


@dataclass(frozen=True, slots=True)
class SeenRouter:
    """A router's process now. `url` is None while it is not known where it listens; `why_no_url` says why nobody asks. `apart`: in a network
    namespace of its own, where every port is free.
    """

    key: ProcessKey
    kind: RouterKind
    url: str | None
    poll: RouterPoll
    why_no_url: str = ""
    told: tuple[RouterBackend, ...] = ()  # by its command line
    disaggregated: bool = False
    apart: bool = False


@dataclass(frozen=True, slots=True)
class _Member:
    """A router that is remembered. `deployment` is None until it is settled. `backends` are the last that were known, with our engine ids.

    `asked`: it was asked once, so that what is shown of it is more than that nobody asked yet.
    """

    name: str
    deployment: str | None
    kind: RouterKind | None
    url: str | None
    since: float
    key: ProcessKey | None = None
    spec: RouterSpec | None = None
    gone_since: float | None = None
    poll: RouterPoll | None = None
    error: str = ""
    backends: tuple[RouterBackend, ...] = ()
    disaggregated: bool = False
    asked: bool = False


@dataclass(slots=True)
class RouterRoster:
    """All routers of this node and the configured ones. `is_local` says whether a host name or address is this node's."""

    node: str
    specs: Sequence[RouterSpec] = ()
    is_local: Callable[[str], bool] = is_loopback
    _members: dict[str, _Member] = field(default_factory=dict)
    _names: dict[ProcessKey, str] = field(default_factory=dict)
    _since: dict[ProcessKey, float] = field(default_factory=dict)  # since when a process has no name yet

    def update(self, seen: Sequence[SeenRouter], asked: Mapping[str, RouterPoll], now: float) -> None:
        """Takes over the processes of a scan, and the answers of configured routers that are only a URL (by name)."""
        for spec in self.specs:
            if not self._is_living_under_another_name(spec):
                self._members.setdefault(spec.name, _Member(spec.name, spec.deployment or None, spec.kind, spec.url, now, spec=spec))
        alive = {router.key for router in seen}
        for key in [key for key in self._names if key not in alive]:
            name = self._names.pop(key)
            member = self._members[name]
            self._members[name] = replace(member, key=None, gone_since=now, poll=None, error="its process is gone")
        for router in seen:
            self._enter(router, now)
        for name, poll in asked.items():
            known = self._members.get(name)
            if known is not None and known.key is None:
                gone_since = None if poll.up else known.gone_since
                self._members[name] = _with_answer(replace(known, gone_since=gone_since), poll, known.url)
        self._since = {key: since for key, since in self._since.items() if key in alive and key not in self._names}
        for name in [
            name
            for name, member in self._members.items()
            if member.spec is None and member.gone_since is not None and now - member.gone_since > KEEP_GONE
        ]:
            del self._members[name]
        gone = sorted(
            (member.gone_since, name) for name, member in self._members.items() if member.spec is None and member.gone_since is not None
        )
        for _, name in gone[: max(len(gone) - MOST_GONE, 0)]:
            del self._members[name]

    def replace_specs(self, specs: Sequence[RouterSpec]) -> tuple[str, ...]:
        """Takes over another list of configured routers; the names of those that stay what they are until their process ends."""
        wanted = {spec.name: spec for spec in specs}
        self.specs = tuple(specs)
        kept = []
        for name, member in list(self._members.items()):
            before, spec = member.spec, wanted.get(name)
            if spec == before:
                continue
            if member.key is None:
                del self._members[name]
            elif before is not None:
                kept.append(name)
                self._members[name] = replace(member, spec=spec if spec is not None and spec.url == before.url else None)
            elif spec is not None and member.url is not None and self.spec_of(member.url) is spec:
                # Taken off the list and put back, or put on the list under the very name that it was given.
                kept += [name] if spec.deployment not in ("", member.deployment) else []
                self._members[name] = replace(member, spec=spec)
        return (*kept, *(name for name, spec in wanted.items() if self._is_living_under_another_name(spec)))

    def _is_living_under_another_name(self, spec: RouterSpec) -> bool:
        """Whether a process that was named before somebody configured it is this router: its labels stay while it lives."""
        return any(
            member.key is not None and member.name != spec.name and member.url is not None and self.spec_of(member.url) is spec
            for member in self._members.values()
        )

    def only_by_url(self) -> Mapping[str, RouterSpec]:
        """The configured routers whose process is not known here: they are asked at their URL."""
        return {spec.name: spec for spec in self.specs if (member := self._members.get(spec.name)) is None or member.key is None}

    def spec_of(self, url: str) -> RouterSpec | None:
        """The configured router that listens at a URL of this node."""
        host, port = url_host(url)
        for spec in self.specs:
            their_host, their_port = url_host(spec.url)
            if port == their_port and (their_host == host or (self.is_local(their_host) and self.is_local(host))):
                return spec
        return None

    def is_undecided(self, now: float) -> bool:
        """Whether a living router, found a moment ago, has not said yet which engines are its: those that are found with it wait."""
        waiting = list(self._since.values())
        waiting += [member.since for member in self._members.values() if member.gone_since is None and not _has_topology(member)]
        return any(_is_young(since, now) for since in waiting)

    def overdue(self, now: float) -> frozenset[ProcessKey]:
        """The processes that have waited long for a name."""
        return frozenset(key for key, since in self._since.items() if not _is_young(since, now))

    def group(self, engines: Sequence[KnownEngine], told: Mapping[str, str], now: float) -> Mapping[str, Assignment]:
        """What routers say of engines, by engine id; living routers first. Settles the routers' own deployments.

        `told`: engine id → deployment, of the engines whose deployment is more than their own id: a router before one of those is of it.
        """
        deployments, models = dict(told), {engine.engine: engine.model for engine in engines if engine.model}
        found: dict[str, Assignment] = {}
        for member in sorted(self._members.values(), key=lambda member: (member.gone_since is not None, member.since, member.name)):
            router_host = url_host(member.url)[0] if member.url is not None else ""
            backends = join(member.backends, engines, self.node, self.is_local, "" if self.is_local(router_host) else router_host)
            deployment = member.deployment
            if deployment is None and (_has_topology(member) or not _is_young(member.since, now)):
                theirs = {deployments[backend.engine] for backend in backends if backend.engine in deployments}
                deployment = theirs.pop() if len(theirs) == 1 else member.name
            self._members[member.name] = replace(member, backends=backends, deployment=deployment)
            if deployment is None:
                continue
            for engine, assignment in _assignments(deployment, backends, models):
                found.setdefault(engine, assignment)
                deployments.setdefault(engine, assignment.deployment)
        return found

    def published(self) -> tuple[Router, ...]:
        """The routers as they are shown, in order of their names."""
        return tuple(
            _published(member, member.deployment)
            for _, member in sorted(self._members.items())
            if member.deployment is not None and member.asked
        )

    def _enter(self, router: SeenRouter, now: float) -> None:
        name = self._names.get(router.key)
        if name is None:
            if router.url is None and not router.why_no_url:
                self._since.setdefault(router.key, now)
                return
            spec = self.spec_of(router.url) if router.url is not None else None
            name = self._name_of(router, spec)
            if name is None:
                self._since.setdefault(router.key, now)  # it cannot be named, or its name is another living router's
                return
            before = self._members.get(name)
            since = self._since.get(router.key, now)
            if before is None:
                before = _Member(name, spec.deployment or None if spec is not None else None, router.kind, router.url, since, spec=spec)
            self._names[router.key] = name
            self._members[name] = replace(before, key=router.key, gone_since=None, kind=router.kind, url=router.url, since=since)
        member = replace(self._members[name], disaggregated=router.disaggregated)
        if router.told and not member.backends:
            member = replace(member, backends=router.told)
        self._members[name] = _with_answer(member, router.poll, router.url)

    def _name_of(self, router: SeenRouter, spec: RouterSpec | None) -> str | None:
        """The configured name, else ``<node>:<port>``; with the first free number where another has it in a network namespace of its own."""
        if router.url is None:
            return None
        name = spec.name if spec is not None else f"{self.node}:{url_host(router.url)[1]}"
        number = 1
        while (before := self._members.get(name)) is not None and before.key is not None:
            if not router.apart:
                return None
            number += 1
            name = f"{name.partition(CLASH)[0]}{CLASH}{number}"
        return name


def _is_young(since: float, now: float) -> bool:
    """Whether something that is waited for may still come; not when the clock was set back."""
    return 0 <= now - since <= ROUTER_GRACE


def _assignments(deployment: str, backends: Sequence[RouterBackend], models: Mapping[str, str]) -> Iterator[tuple[str, Assignment]]:
    """Each engine of a router with its deployment and role. Engines of several models that serve whole requests are as many deployments; where
    prefill and decode have different ones, that is a mistake of one deployment.
    """
    whole = {models[backend.engine] for backend in backends if backend.role is Role.MIXED and backend.engine in models}
    for backend in backends:
        if backend.engine:
            is_one_of_several = len(whole) > 1 and backend.role is Role.MIXED and backend.engine in models
            yield backend.engine, Assignment(f"{deployment}/{models[backend.engine]}" if is_one_of_several else deployment, backend.role)


def _has_topology(member: _Member) -> bool:
    return bool(member.backends) or (member.poll is not None and member.poll.up)


def _with_answer(member: _Member, poll: RouterPoll, url: str | None) -> _Member:
    """The member after an answer. What it was known to send to stays known while it does not tell."""
    return replace(
        member,
        poll=poll,
        url=url,
        error=poll.error,
        kind=poll.kind or member.kind,
        backends=poll.backends if poll.backends is not None else member.backends,
        disaggregated=poll.disaggregated or member.disaggregated,
        asked=poll.asked or member.asked,
    )


def _published(member: _Member, deployment: str) -> Router:
    poll = member.poll if member.poll is not None else RouterPoll(error=member.error)
    # Only from an answer: what a silent one sent to may be another by now.
    backends = member.backends if poll.up and poll.backends is not None else ()
    return Router(
        member.name,
        deployment,
        member.kind,
        member.url,
        member.key.pid if member.key is not None else None,
        poll.up,
        poll.error,
        member.disaggregated,
        backends,
        _readings(member.kind, poll, backends),
    )


def _readings(kind: RouterKind | None, poll: RouterPoll, backends: Iterable[RouterBackend]) -> Readings:
    readings: dict[Metric, dict[tuple[str, ...], float]] = {
        m.ROUTER_INFO: {(str(kind or ""),): 1.0},
        m.ROUTER_UP: {(): float(poll.up)},
    }
    health: dict[tuple[str, Role], bool | None] = {}
    for backend in backends:
        if backend.engine:
            key = (backend.engine, backend.role)
            health[key] = False if backend.healthy is False or health.get(key) is False else backend.healthy
    words = {True: "true", False: "false", None: ""}
    for (engine, role), healthy in health.items():
        readings.setdefault(m.ROUTER_BACKEND_INFO, {})[(engine, str(role), words[healthy])] = 1.0
    for (metric, role), value in poll.counts.items():
        readings.setdefault(metric, {})[(str(role),)] = value
    return readings
