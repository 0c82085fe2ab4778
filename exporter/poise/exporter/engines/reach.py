"""Finds the address by which a server in another network namespace can be reached from here, and proves it.

An address of a container means nothing by itself: another network may use the same one, and whoever answers there may be another vLLM. So a
connection is made, and then looked for in the server's own namespace: only if the kernel shows it there is the address the server's. Poise
does not enter the namespace, which would need CAP_SYS_ADMIN.

Attempts run in threads of their own with a deadline each, so that looking through /proc never waits for a network.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from poise.exporter.procfs import ProcFs, Sockets
from poise.exporter.procnet import Address

#: How long a connection on one node may take, in seconds; a round trip there takes less than a millisecond, a lost packet one second.
CONNECT_TIMEOUT = 1.5
#: How long the namespace may take to show a connection that was made, in seconds: the last packet of the handshake is on its way.
PROOF_TIMEOUT = 0.5
_PROOF_STEP = 0.01
#: So many addresses are tried; a container has one or two.
MOST_ADDRESSES = 8
#: So many ports are tried where the port is not known: besides its API a server may listen for a KV connector.
MOST_PORTS = 8


@dataclass(frozen=True, slots=True)
class Reached:
    """Where a server answers, or in words why nowhere."""

    address: Address | None = None
    port: int | None = None
    why_not: str = "its addresses are being tried"


def candidates(sockets: Sockets, addresses: Sequence[Address], ports: Collection[int]) -> tuple[tuple[Address, int], ...] | str:
    """The addresses and ports to try, likeliest first, or in words why there are none. `sockets` and `addresses` are the namespace's."""
    found: list[tuple[Address, int]] = []
    inside: list[int] = []
    for port in ports:
        bound = sockets.bound.get(port, frozenset())
        everywhere = {address.version for address in bound if address.is_unspecified}
        usable = [address for address in addresses if address in bound or address.version in everywhere or 6 in everywhere]
        found += [(address, port) for address in usable[:MOST_ADDRESSES]]
        inside += [port] if bound and all(address.is_loopback for address in bound) else []
    if found:
        return tuple(found)
    if inside:
        shown = " or ".join(str(port) for port in sorted(inside))
        return (
            f"it listens only on the loopback of its own network namespace (port {shown}), which nothing outside can reach; "
            "start it with --host 0.0.0.0 or share the node's network"
        )
    if not any(sockets.bound.get(port) for port in ports):
        return "it runs in another network namespace and does not listen there yet"
    return "its network namespace has no address besides loopback; name an address with --engine NAME=URL"


def is_reached(proc: ProcFs, pid: int, address: Address, port: int) -> bool:
    """Whether a connection from here to an address arrives in the network namespace of a process. Waits for at most two seconds."""
    if not proc.has_way_to(address):
        return False
    for _ in range(2):  # the second time if our port was another's by chance
        before = proc.callers(pid, address, port)
        try:
            with socket.create_connection((str(address), port), CONNECT_TIMEOUT) as connection:
                ours = connection.getsockname()[1]
                deadline = time.monotonic() + PROOF_TIMEOUT
                # The kernel tells nobody when a row appears in another namespace, so it is looked at.
                while ours not in proc.callers(pid, address, port) and time.monotonic() < deadline:
                    time.sleep(_PROOF_STEP)
                if ours not in before:
                    return ours in proc.callers(pid, address, port)
        except OSError:
            return False
    return False


class Search:
    """Looks in a thread of its own for the port on which a server answers: a process may listen on many, and answer on none of them.

    `port` is None until it is found, and stays so when it is not.
    """

    def __init__(self, pid: int, ports: Sequence[int], accepts: Callable[[int], bool]) -> None:
        """`ports`: likeliest first; so many as MOST_PORTS are tried."""
        self._ports = tuple(ports[:MOST_PORTS])
        self._accepts = accepts
        self.port: int | None = None
        self._thread = threading.Thread(target=self._run, name=f"poise-ports-{pid}", daemon=True)

    def start(self) -> None:
        """Begins; ends at once if no thread can be had."""
        with contextlib.suppress(RuntimeError):
            self._thread.start()

    def runs(self) -> bool:
        """Whether it is still under way."""
        return self._thread.is_alive()

    def _run(self) -> None:
        self.port = next((port for port in self._ports if self._accepts(port)), None)


class Attempt:
    """One attempt to reach a server, in a thread of its own. `result` is None while it runs."""

    def __init__(
        self, proc: ProcFs, pid: int, targets: Sequence[tuple[Address, int]], accepts: Callable[[Address, int], bool] | None = None
    ) -> None:
        """`accepts` is asked of each address that was reached, where the port alone does not tell that it is the API."""
        self._proc = proc
        self._pid = pid
        self._targets = targets
        self._accepts = accepts
        self.result: Reached | None = None
        self._thread = threading.Thread(target=self._run, name=f"poise-reach-{pid}", daemon=True)

    def start(self) -> None:
        """Begins; the result says so if no thread can be had."""
        try:
            self._thread.start()
        except RuntimeError as problem:
            self.result = Reached(why_not=f"its addresses cannot be tried: {problem}")

    def runs(self) -> bool:
        """Whether it is still under way."""
        return self._thread.is_alive()

    def _run(self) -> None:
        reached = False
        for address, port in self._targets:
            if is_reached(self._proc, self._pid, address, port):
                reached = True
                if self._accepts is None or self._accepts(address, port):
                    self.result = Reached(address, port, "")
                    return
        if reached:
            self.result = Reached(why_not="none of the ports on which it listens answers as vLLM yet")
            return
        shown = ", ".join(sorted({str(address) for address, _ in self._targets}))
        self.result = Reached(
            why_not=f"it runs in another network namespace, none of whose addresses ({shown}) can be reached from here; "
            "name another with --engine NAME=URL, or run Poise in the node's network"
        )


@dataclass(slots=True)
class Reaching:
    """How far reaching one server is: what is known, and the attempt under way. For one thread."""

    reached: Reached = field(default_factory=Reached)
    _attempt: Attempt | None = None

    def settle(self) -> None:
        """Takes over what an attempt that ended has found."""
        if self._attempt is not None and self._attempt.result is not None:
            self.reached, self._attempt = self._attempt.result, None

    @property
    def wants_another(self) -> bool:
        """Whether nothing is reached and nothing under way; an attempt that broke off without a result is not."""
        attempt = self._attempt
        under_way = attempt is not None and (attempt.runs() or attempt.result is not None)
        return self.reached.address is None and not under_way

    def begin(
        self,
        proc: ProcFs,
        pid: int,
        targets: tuple[tuple[Address, int], ...] | str,
        accepts: Callable[[Address, int], bool] | None = None,
    ) -> None:
        """An attempt at what `candidates` gave; where that are words, they are the result."""
        if isinstance(targets, str):
            self.reached, self._attempt = Reached(why_not=targets), None
            return
        self._attempt = Attempt(proc, pid, targets, accepts)
        self._attempt.start()
