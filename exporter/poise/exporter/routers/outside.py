"""Where routers in network namespaces of their own (containers) are reached from here.

The addresses are tried in threads of their own (engines/reach.py); what was found stays while the process lives. Knows /proc and no page.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from poise.exporter.engines.reach import MOST_PORTS, Reached, Reaching, candidates
from poise.exporter.engines.table import Process, ProcessKey
from poise.exporter.procfs import ProcFs

#: How often a router that is not reached is tried again, in seconds.
TRY_INTERVAL = 5.0


@dataclass(slots=True)
class _Trying:
    reaching: Reaching = field(default_factory=Reaching)
    tried_at: float | None = None


@dataclass(slots=True)
class Outside:
    """Reaches routers at any port on which they listen; remembers each while its process lives. Not for use by several threads."""

    proc: ProcFs
    _trying: dict[ProcessKey, _Trying] = field(default_factory=dict)

    def keep(self, keys: Collection[ProcessKey]) -> None:
        """Forgets all other processes."""
        for key in self._trying.keys() - set(keys):
            del self._trying[key]

    def reach(self, process: Process, clock: float) -> Reached:
        """Where the router of a process is reached as far as that is known now; `clock` in monotonic seconds. Never waits."""
        trying = self._trying.setdefault(process.key, _Trying())
        trying.reaching.settle()
        is_due = trying.tried_at is None or clock - trying.tried_at >= TRY_INTERVAL
        if is_due and trying.reaching.wants_another:
            trying.tried_at = clock
            self._try(process, trying)
        return trying.reaching.reached

    def _try(self, process: Process, trying: _Trying) -> None:
        command = process.router
        assert command is not None
        sockets, addresses = self.proc.sockets(process.pid), self.proc.addresses(process.pid)
        known = command.port if command.told else None
        ports = [known] if known is not None else sorted(self.proc.listening_ports((process.pid,), sockets) or ())
        trying.reaching.begin(self.proc, process.pid, candidates(sockets, addresses, ports[:MOST_PORTS]))
