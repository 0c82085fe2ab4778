"""Gives engines their labels, once, and remembers engines that vanished.

An identity is latched before the first publication and does not change while the process lives, so that no series changes its labels under
a rule. Two things may be filled once, for they are often known only later: a deployment that nobody said and a role that nothing told
(docs/adr/0013-who-belongs-together.md). Pure: time, engines found and ports are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from poise.exporter.engine_specs import EngineSpec
from poise.exporter.engines.argv import DEFAULT_PORT
from poise.exporter.engines.discovery import FoundEngine
from poise.exporter.engines.roles import Declared, role_of
from poise.exporter.engines.table import ProcessKey
from poise.exporter.engines.urls import url_at, url_host, url_of, why_not_asked
from poise.exporter.routers.addresses import Assignment
from poise.exporter.setting_values import is_loopback
from poise.exporter.snapshot import EngineConfig, EngineIdentity, Pod, Role

#: A discovered engine that is gone stays visible this long, in seconds (metric contract).
KEEP_GONE = 3600.0
#: So many engines that are gone are remembered, the last ones: a server that is started over and over on ports of its own is no history.
MOST_GONE = 256

#: How long, in seconds, a process waits for a name that another living one has: a server that is started again while the old one still shuts
#: down takes the name over; one that runs beside it for longer gets a name with a number. In a network namespace of its own, where the port is
#: free to every server, nobody waits.
CLASH_GRACE = 60.0
#: Stands between the name and the number of a further process that would have the same name.
CLASH = "#"


@dataclass(frozen=True, slots=True)
class Located:
    """A found engine with what the sockets say: `port` is None while unknown, `reachable` is False in another network namespace.

    `notes` say what could not be read of it. In another namespace `address` is where it was reached, None while `unreachable` says why not;
    `addresses` are all that the namespace has, `forwarded` the ports of this node that lead to its port.
    """

    found: FoundEngine
    port: int | None
    reachable: bool = True
    notes: tuple[str, ...] = ()
    pod: Pod | None = None
    address: str | None = None
    addresses: frozenset[str] = frozenset()
    forwarded: frozenset[int] = frozenset()
    unreachable: str = ""
    said: Declared = field(default_factory=Declared)


@dataclass(frozen=True, slots=True)
class Member:
    """An engine that is published. `found` is None for one known by URL only or gone; `gone_since` in Unix seconds."""

    identity: EngineIdentity
    config: EngineConfig
    url: str | None
    found: FoundEngine | None = None
    spec: EngineSpec | None = None
    gone_since: float | None = None
    start_time: float | None = None
    why_no_url: str = ""
    notes: tuple[str, ...] = ()
    pod: Pod | None = None
    apart: bool = False  # in a network namespace of its own, where every port is free
    deployment_settled: bool = False  # somebody said which, or a router filled it
    forwarded: frozenset[int] = frozenset()  # ports of this node that lead to its port
    latched: EngineSpec | None = None  # what was configured of the process when it got its name


def name_of(node: str, located: Located) -> str:
    """``<node>:<port>``; for all nodes of one engine with one API the address of its first node, as their command lines name it, instead.

    A headless node knows no port but its own ``--port``: without one it takes vLLM's default for the first node's.
    """
    config, first = located.found.config, located.found.command.master_address or ""
    if config.headless:
        return f"{first}:{config.port or DEFAULT_PORT}" if first and not is_loopback(first) else f"{node}:headless"
    if first and not is_loopback(first) and _has_headless_nodes(located.found):
        return f"{first}:{located.port}"
    return f"{node}:{located.port}"


def _has_headless_nodes(found: FoundEngine) -> bool:
    """Whether other nodes belong to the engine that this process serves alone: nodes of one world, or of data-parallel ranks."""
    config = found.config
    local = config.data_parallel_size_local
    ranks_elsewhere = local is not None and local < config.data_parallel_size
    return (config.nnodes > 1 or ranks_elsewhere) and not found.command.api_on_each_node


@dataclass(slots=True)
class Roster:
    """All engines that are published, by their latched identities. `is_local` says whether a host name or address is this node's."""

    node: str
    specs: Sequence[EngineSpec] = ()
    is_local: Callable[[str], bool] = is_loopback
    _members: dict[str, Member] = field(default_factory=dict)
    _names: dict[ProcessKey, str] = field(default_factory=dict)
    _since: dict[ProcessKey, float] = field(default_factory=dict)  # since when a process waits for its name
    _seen: dict[ProcessKey, float] = field(default_factory=dict)  # when each living process was seen first

    def __post_init__(self) -> None:
        self._enter_configured()

    def replace_specs(self, specs: Sequence[EngineSpec]) -> tuple[str, ...]:
        """Takes over another list of configured engines; the names of those that stay what they are until their process ends.

        An engine whose process lives keeps the identity that was published. One that is only a URL is what the list says, or gone.
        """
        wanted = {spec.name: spec for spec in specs}
        self.specs = tuple(specs)
        kept: list[str] = []
        for name, member in list(self._members.items()):
            before, spec = member.spec, wanted.get(name)
            if before is None and spec is not None and member.found is not None:
                # Taken off the list, or moved away, and put back; or put on the list under the very name that it was given.
                found = replace(spec, deployment="", role=None) if self._same_server(member.url, spec.url) else None
                before = member.latched or found
            if before is None or spec == member.spec:
                continue
            if member.found is None:
                del self._members[name]
                continue
            if spec is None or (spec.deployment, spec.role, spec.url) != (before.deployment, before.role, before.url):
                kept.append(name)
            # Under another address it is another server: this process is then asked at its own.
            self._members[name] = replace(member, spec=spec if spec is not None and spec.url == before.url else None)
        self._enter_configured()
        return (*kept, *(name for name in wanted if name not in self._members))

    def _enter_configured(self) -> None:
        """Publishes configured engines whose name is free, unless a living process that has another name already is the engine."""
        for spec in self.specs:
            member = self._members.get(spec.name)
            if member is not None and (member.spec is not None or member.found is not None):
                continue
            if any(other.found is not None and self._same_server(other.url, spec.url) for other in self._members.values()):
                continue
            role = spec.role or Role.UNKNOWN
            source = "config" if spec.role is not None else "default"
            identity = EngineIdentity(spec.name, spec.deployment or spec.name, role, source, "config")
            self._members[spec.name] = Member(identity, EngineConfig(), spec.url, spec=spec, deployment_settled=bool(spec.deployment))

    def _same_server(self, one: str | None, other: str) -> bool:
        """Whether two addresses are one port of this node."""
        if one is None:
            return False
        (host, port), (other_host, other_port) = url_host(one), url_host(other)
        return port == other_port and self.is_local(host) and self.is_local(other_host)

    def update(self, located: Sequence[Located], now: float, *, hold: float = 0.0) -> tuple[Member, ...]:
        """The members after a scan, in order of their names. An engine whose port is not known yet waits for it.

        `hold`: a router is about to say which engines are its, so that an engine gets no identity in its first `hold` seconds.
        """
        alive = {item.found.key for item in located}
        for key in [key for key in self._names if key not in alive]:
            self._leave(self._names.pop(key), key, now)
        self._seen = {item.found.key: self._seen.get(item.found.key, now) for item in located}
        for item in located:
            if item.found.key in self._names or not 0 <= now - self._seen[item.found.key] < hold:  # below 0: the clock was set back
                self._enter(item, now)
        self._enter_configured()
        self._since = {key: since for key, since in self._since.items() if key in alive and key not in self._names}
        expired = [
            name
            for name, member in self._members.items()
            if member.spec is None and member.gone_since is not None and now - member.gone_since > KEEP_GONE
        ]
        for name in expired:
            del self._members[name]
        gone = sorted(
            (member.gone_since, name) for name, member in self._members.items() if member.spec is None and member.gone_since is not None
        )
        for _, name in gone[: max(len(gone) - MOST_GONE, 0)]:
            del self._members[name]
        return self.members()

    def members(self) -> tuple[Member, ...]:
        """All members as they are now, in order of their names."""
        return tuple(self._members[name] for name in sorted(self._members))

    def fill(self, assigned: Mapping[str, Assignment], shown: Mapping[str, Role]) -> tuple[Member, ...]:
        """The members, with what nobody said of them filled in, each once: by routers, and a role by what the engine was seen to do (`shown`)."""
        for name, member in self._members.items():
            identity, router = member.identity, assigned.get(name)
            if router is not None and not member.deployment_settled:
                identity = replace(identity, deployment=router.deployment)
            if identity.role is Role.UNKNOWN and router is not None and router.role is not Role.UNKNOWN:
                identity = replace(identity, role=router.role, role_source="router")
            elif identity.role is Role.UNKNOWN and name in shown:
                identity = replace(identity, role=shown[name], role_source="observed")
            settled = member.deployment_settled or router is not None
            self._members[name] = replace(member, identity=identity, deployment_settled=settled)
        return self.members()

    def _leave(self, name: str, key: ProcessKey, now: float) -> None:
        member = self._members.get(name)
        if member is None or member.found is None or member.found.key != key:
            return
        if CLASH in name and not member.apart:
            del self._members[name]  # a second server on a port that was taken: it never was an engine of its own
        else:
            self._members[name] = replace(member, found=None, gone_since=now)

    def _enter(self, item: Located, now: float) -> None:
        found = item.found
        name = self._names.get(found.key)
        if name is None:
            latched = self._latch(item, now)
            if latched is None:
                return
            identity, spec = latched
            self._names[found.key] = identity.engine
            settled, named = bool((spec is not None and spec.deployment) or item.said.deployment), spec
        else:
            before = self._members[name]
            identity, spec, settled, named = before.identity, before.spec, before.deployment_settled, before.latched
        url, why_no_url = self._address(item, spec)
        self._members[identity.engine] = Member(
            identity,
            found.config,
            url,
            found,
            spec,
            None,
            found.start_time,
            why_no_url,
            (*item.notes, *item.said.problems),
            item.pod,
            not item.reachable,
            settled,
            item.forwarded,
            named,
        )

    def _latch(self, item: Located, now: float) -> tuple[EngineIdentity, EngineSpec | None] | None:
        """The identity of a process that has none yet; None while its port is unknown or its name is still another's."""
        if item.port is None and not item.found.config.headless:
            return None
        spec = self._spec_for(item)
        name = spec.name if spec is not None else item.said.name or name_of(self.node, item)
        member = self._members.get(name)
        if member is not None and (member.found is not None or (spec is None and member.spec is not None)):
            if item.reachable and now - self._since.setdefault(item.found.key, now) < CLASH_GRACE:
                return None
            name, spec = self._numbered(name), None
        role, source = role_of(item.found, spec, item.said)
        deployment = (spec.deployment if spec is not None else "") or item.said.deployment or name
        return EngineIdentity(name, deployment, role, source, "config" if spec is not None else "argv"), spec

    def _spec_for(self, item: Located) -> EngineSpec | None:
        """The configured engine that this process is: its URL names this node, or its container's address, and the process's port, or a port of
        this node that leads there. A headless node is of the engine whose URL names the first node: it has no port itself.
        """
        config, first = item.found.config, item.found.command.master_address
        for spec in self.specs:
            host, port = url_host(spec.url)
            if config.headless:
                if host == first and port == (config.port or DEFAULT_PORT):
                    return spec
                continue
            here = item.reachable and (self.is_local(host) or host == item.found.config.host)
            leads = port in item.forwarded and self.is_local(host)
            if leads or (port == item.port and (here or host in item.addresses)):
                return spec
        return None

    def _numbered(self, name: str) -> str:
        """The name with the first number that no living engine has: a restarted container takes over."""
        number = 2
        while (member := self._members.get(f"{name}{CLASH}{number}")) is not None and member.found is not None:
            number += 1
        return f"{name}{CLASH}{number}"

    def _address(self, item: Located, spec: EngineSpec | None) -> tuple[str | None, str]:
        """Where to ask for the page, or why nowhere."""
        if item.found.config.headless:
            return None, "this node of the engine is headless: the first node has the API"
        if spec is not None:
            return spec.url, ""
        if item.found.command.unix_socket:
            return None, "it listens on a Unix socket (--uds), where Poise does not ask"
        if not item.reachable:
            if item.address is None or item.port is None:
                return None, item.unreachable
            return url_at(item.found, item.address, item.port), ""
        if item.port is None:
            return None, "its port is not known"
        if why := why_not_asked(item.found.config.host, self.is_local):
            return None, f"{why}; if it is right, name it with --engine NAME=URL"
        return url_of(item.found, item.port), ""
