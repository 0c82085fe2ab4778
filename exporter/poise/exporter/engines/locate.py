"""Finds out what the environment, the container and the sockets of a found engine say: the cards it was told to use, where it runs, and
where its API listens.

Knows /proc and no page; whether a port answers as vLLM is asked through a function that is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from poise.exporter.engines.argv import DEFAULT_PORT, clean
from poise.exporter.engines.container import container_cards, pod_of
from poise.exporter.engines.discovery import FoundEngine
from poise.exporter.engines.forwards import Forward, forwards
from poise.exporter.engines.identity import Located
from poise.exporter.engines.reach import MOST_PORTS, Reaching, Search, candidates
from poise.exporter.engines.roles import Declared, declared
from poise.exporter.engines.table import ProcessKey
from poise.exporter.engines.urls import url_at, url_of, why_not_asked
from poise.exporter.procfs import COMMUNICATION, ProcFs, Sockets
from poise.exporter.procnet import Address
from poise.exporter.setting_values import is_loopback
from poise.exporter.snapshot import ContainerCards, Pod

#: How often the sockets are read while there are engines, in seconds: /proc/net/tcp is long on a busy node.
SOCKETS_INTERVAL = 5.0


@dataclass(frozen=True, slots=True)
class _Environment:
    """What is read once of a server, because it holds while the process lives."""

    visible: str | None
    order: str | None
    read: bool
    reachable: bool
    container: ContainerCards | None = None
    pod: Pod | None = None
    communication: Mapping[str, str] = field(default_factory=dict)
    said: Declared = field(default_factory=Declared)


@dataclass(slots=True)
class _Elsewhere:
    """A server in another network namespace: what that said last, and how far reaching it is."""

    sockets: Sockets
    addresses: tuple[Address, ...] = ()
    forwards: tuple[Forward, ...] = ()  # ports of the node that lead to its addresses
    reaching: Reaching = field(default_factory=Reaching)


@dataclass(slots=True)
class Locator:
    """Locates engines; remembers per process what does not change. Not for use by several threads."""

    proc: ProcFs
    answers: Callable[[str], bool]
    unreadable: str = "its environment cannot be read: run Poise as root or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
    is_local: Callable[[str], bool] = is_loopback
    _environments: dict[ProcessKey, _Environment] = field(default_factory=dict)
    _ports: dict[ProcessKey, int] = field(default_factory=dict)
    _searches: dict[ProcessKey, Search] = field(default_factory=dict)
    _elsewhere: dict[ProcessKey, _Elsewhere] = field(default_factory=dict)
    _sockets: Sockets = field(default_factory=lambda: Sockets({}, {}))
    _read_at: float | None = None
    _fresh: bool = False  # the sockets were read in this scan: only then are ports asked

    def locate(self, engines: Collection[FoundEngine], clock: float) -> list[Located]:
        """The engines with their environment and port; `clock` in monotonic seconds."""
        alive = {engine.key for engine in engines}
        for known in (self._environments, self._ports, self._searches, self._elsewhere):
            for key in known.keys() - alive:
                del known[key]
        self._fresh = bool(engines) and (self._read_at is None or clock - self._read_at >= SOCKETS_INTERVAL)
        if self._fresh:
            self._sockets, self._read_at = self.proc.sockets(), clock
        return [self._locate(engine) for engine in engines]

    def connections(self, key: ProcessKey, port: int) -> int:
        """Established connections to a server, whose URL has this port, in its network namespace, when the sockets were last read."""
        elsewhere = self._elsewhere.get(key)
        if elsewhere is None:
            return self._sockets.established.get(port, 0)
        inner = next((each.container_port for each in elsewhere.forwards if each.port == port), port)
        return elsewhere.sockets.established.get(inner, 0)

    def _locate(self, engine: FoundEngine) -> Located:
        environment = self._environments.get(engine.key)
        if environment is None or not environment.read:  # it may be read in the very moment in which the server starts
            environment = self._environments[engine.key] = self._read_environment(engine.key.pid)
        config = replace(
            engine.config,
            cuda_visible_devices=environment.visible,
            cuda_device_order=environment.order,
            environment_read=environment.read,
            container=environment.container,
            communication=environment.communication,
        )
        located = replace(engine, config=config)
        notes = engine.command.problems if environment.read else (*engine.command.problems, self.unreadable)
        if environment.reachable:
            return Located(located, self._port(engine, True), True, notes, environment.pod, said=environment.said)
        there = self._reach(engine)
        address = str(there.reaching.reached.address) if there.reaching.reached.address is not None else None
        port = self._port(engine, False) if there.reaching.reached.port is None else there.reaching.reached.port
        return Located(
            located,
            port,
            False,
            notes,
            environment.pod,
            address,
            addresses=frozenset(str(each) for each in there.addresses),
            forwarded=frozenset(each.port for each in there.forwards if each.container_port == port),
            unreachable=there.reaching.reached.why_not,
            said=environment.said,
        )

    def _read_environment(self, pid: int) -> _Environment:
        variables = self.proc.environment(pid)
        reachable = self.proc.same_namespace(pid, "net")
        pod = pod_of(self.proc, pid, variables or {})
        if variables is None:
            return _Environment(None, None, False, reachable, None, pod)
        cards = container_cards(self.proc, pid, variables)
        communication = {name: clean(variables[name]) for name in sorted(COMMUNICATION & variables.keys())}
        order = variables.get("CUDA_DEVICE_ORDER")
        visible = variables.get("CUDA_VISIBLE_DEVICES")
        return _Environment(visible, order, True, reachable, cards, pod, communication, declared(variables))

    def _port(self, engine: FoundEngine, reachable: bool) -> int | None:
        """The API's port: a flag's, else vLLM's default unless a file may have set another, else the socket that answers as vLLM."""
        if engine.config.port is not None:
            return engine.config.port
        if not engine.command.reads_file:
            return DEFAULT_PORT
        search = self._searches.get(engine.key)
        if search is not None and search.port is not None:
            self._ports[engine.key] = search.port
        is_tried = reachable and self._fresh and not engine.config.headless and (search is None or not search.runs())
        if is_tried and engine.key not in self._ports and not why_not_asked(engine.config.host, self.is_local):
            ports = self.proc.listening_ports(engine.listeners, self._sockets) or frozenset()
            # Besides its API the server may listen for a KV connector's side channel, so each is asked, the usual one first.
            usual_first = sorted(ports, key=lambda port: (port != DEFAULT_PORT, port))
            search = self._searches[engine.key] = Search(engine.key.pid, usual_first, lambda port: self.answers(url_of(engine, port)))
            search.start()
        return self._ports.get(engine.key)

    def _reach(self, engine: FoundEngine) -> _Elsewhere:
        """Where a server in another network namespace is reached. What was found stays while its process lives; else it is tried again."""
        new = engine.key not in self._elsewhere  # its addresses decide whether it is a configured engine, so they are read at first sight
        there = self._elsewhere.setdefault(engine.key, _Elsewhere(Sockets({}, {})))
        there.reaching.settle()
        if not (self._fresh or new):
            return there
        there.sockets = self.proc.sockets(engine.key.pid)
        there.addresses = self.proc.addresses(engine.key.pid)
        if new:
            shown = {str(address) for address in there.addresses}
            there.forwards = tuple(each for each in forwards(self.proc) if each.container_address in shown)
        if not there.reaching.wants_another or engine.config.headless or engine.command.unix_socket:
            return there
        known = self._port(engine, False)
        ports = [known] if known is not None else sorted(self.proc.listening_ports(engine.listeners, there.sockets) or ())

        def accepts(address: Address, port: int) -> bool:
            return self.answers(url_at(engine, str(address), port))

        targets = candidates(there.sockets, there.addresses, ports[:MOST_PORTS])
        there.reaching.begin(self.proc, engine.key.pid, targets, None if known is not None else accepts)
        return there
