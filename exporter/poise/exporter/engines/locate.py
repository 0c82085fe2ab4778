"""Finds out what the environment and the sockets of a found engine say: the cards it was told to use, and where its API listens.

Knows /proc and no page; whether a port answers as vLLM is asked through a function that is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from poise.exporter.engines.argv import DEFAULT_PORT
from poise.exporter.engines.discovery import FoundEngine
from poise.exporter.engines.identity import Located, url_of
from poise.exporter.engines.table import ProcessKey
from poise.exporter.procfs import ProcFs, Sockets

#: How often the sockets are read while there are engines, in seconds: /proc/net/tcp is long on a busy node.
SOCKETS_INTERVAL = 5.0


@dataclass(frozen=True, slots=True)
class _Environment:
    """What is read once of a server, because it holds while the process lives."""

    visible: str | None
    order: str | None
    read: bool
    reachable: bool
    why_not: str = ""


@dataclass(slots=True)
class Locator:
    """Locates engines; remembers per process what does not change. Not for use by several threads."""

    proc: ProcFs
    answers: Callable[[str], bool]
    _environments: dict[ProcessKey, _Environment] = field(default_factory=dict)
    _ports: dict[ProcessKey, int] = field(default_factory=dict)
    _sockets: Sockets = field(default_factory=lambda: Sockets({}, {}))
    _read_at: float | None = None
    _fresh: bool = False  # the sockets were read in this scan: only then are ports asked

    def locate(self, engines: Collection[FoundEngine], clock: float) -> list[Located]:
        """The engines with their environment and port; `clock` in monotonic seconds."""
        alive = {engine.key for engine in engines}
        self._environments = {key: value for key, value in self._environments.items() if key in alive}
        self._ports = {key: value for key, value in self._ports.items() if key in alive}
        self._fresh = bool(engines) and (self._read_at is None or clock - self._read_at >= SOCKETS_INTERVAL)
        if self._fresh:
            self._sockets, self._read_at = self.proc.sockets(), clock
        return [self._locate(engine) for engine in engines]

    def connections(self, port: int) -> int:
        """Established connections to a port of this network namespace, when the sockets were last read."""
        return self._sockets.established.get(port, 0)

    def _locate(self, engine: FoundEngine) -> Located:
        environment = self._environments.get(engine.key)
        if environment is None:
            environment = self._environments[engine.key] = self._read_environment(engine.key.pid)
        config = replace(
            engine.config,
            cuda_visible_devices=environment.visible,
            cuda_device_order=environment.order,
            environment_read=environment.read,
        )
        notes = engine.command.problems if environment.read else (*engine.command.problems, environment.why_not)
        return Located(replace(engine, config=config), self._port(engine, environment.reachable), environment.reachable, notes)

    def _read_environment(self, pid: int) -> _Environment:
        variables = self.proc.environment(pid)
        reachable = self.proc.same_namespace(pid, "net")
        if variables is None:
            return _Environment(None, None, False, reachable, "its environment cannot be read: run Poise as root or with CAP_SYS_PTRACE")
        visible = variables.get("CUDA_VISIBLE_DEVICES")
        if not self.proc.same_root(pid) and not (visible or "").lstrip().startswith("GPU-"):
            # In a container ordinals count the container's cards, and "not set" means all of those; only UUIDs mean the same everywhere.
            return _Environment(None, None, False, reachable, "it runs in a container, whose numbers of cards are not the node's")
        return _Environment(visible, variables.get("CUDA_DEVICE_ORDER"), True, reachable)

    def _port(self, engine: FoundEngine, reachable: bool) -> int | None:
        """The API's port: a flag's, else vLLM's default unless a file may have set another, else the socket that answers as vLLM."""
        if engine.config.port is not None:
            return engine.config.port
        if not engine.command.reads_file:
            return DEFAULT_PORT
        if engine.key not in self._ports and reachable and self._fresh and not engine.config.headless:
            ports = self.proc.listening_ports(engine.listeners, self._sockets) or frozenset()
            # Besides its API the server may listen for a KV connector's side channel, so each is asked, the usual one first.
            for port in sorted(ports, key=lambda port: (port != DEFAULT_PORT, port)):
                if self.answers(url_of(engine, port)):
                    self._ports[engine.key] = port
                    break
        return self._ports.get(engine.key)
