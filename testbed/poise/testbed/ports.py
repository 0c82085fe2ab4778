"""Which TCP ports the parts of a deployment get: the preferred one where it is free, else the next that is.

Pure but for one question that is passed in: is this port free?
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from poise.testbed.errors import TestbedError

LOOPBACK = "127.0.0.1"
# How many ports above the preferred one are tried before the kernel is asked for any.
TRIED = 100


@dataclass(frozen=True, slots=True)
class PortPlan:
    """`ports` by part; `remarks` say where a part does not get the port it is known by."""

    ports: dict[str, int]
    remarks: tuple[str, ...]


def is_free(port: int) -> bool:
    """Whether a server could listen on 127.0.0.1:port and on all addresses now."""
    for address in (LOOPBACK, ""):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                return False
    return True


def any_free() -> int:
    """A port from the kernel's ephemeral range that is free now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def plan(
    preferred: Mapping[str, int],
    fixed: Mapping[str, int],
    free: Callable[[int], bool] = is_free,
    ephemeral: Callable[[], int] = any_free,
) -> PortPlan:
    """A port for each part. `preferred` may give way, `fixed` (asked for by the user) may not; 0 means any.

    Raises TestbedError when a fixed port is taken or asked for twice, before anything has started.
    """
    given: dict[str, int] = {}
    remarks: list[str] = []
    for part, port in fixed.items():
        if port == 0:
            continue
        twice = [other for other, used in given.items() if used == port]
        if twice:
            raise TestbedError(f"port {port} is asked for by {twice[0]} and {part}: give them different ports")
        if not free(port):
            raise TestbedError(f"port {port} for {part} is taken (see `ss -ltnp 'sport = :{port}'`): give another one")
        given[part] = port
    for part, port in {**preferred, **fixed}.items():
        if part in given:
            continue
        candidates = range(port, min(port + TRIED, 65536)) if port else ()
        chosen = next((c for c in candidates if c not in given.values() and free(c)), 0)
        while chosen == 0 or (port == 0 and chosen in given.values()):
            chosen = ephemeral()
        if port not in (0, chosen):
            remarks.append(f"port {port} is taken: {part} uses {chosen}")
        given[part] = chosen
    return PortPlan(given, tuple(remarks))
