"""Reads which ports of the node Docker forwards to containers, so that an engine that was named by such a port is known to be its process.

Docker runs a process for each published port (`docker-proxy`, unless userland-proxy is off) that says so on its command line; moby,
cmd/docker-proxy/main_linux.go. Other engines forward in the kernel's tables, which only CAP_NET_ADMIN can read: their ports are not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from poise.exporter.procfs import ProcFs

_PROGRAM = "docker-proxy"


@dataclass(frozen=True, slots=True)
class Forward:
    """A TCP port of the node, and where in a container it leads."""

    port: int
    container_address: str
    container_port: int


def forwards(proc: ProcFs) -> Iterator[Forward]:
    """The ports that are forwarded now."""
    for pid in proc.pids():
        stat = proc.stat(pid)
        if stat is not None and stat.comm == _PROGRAM:
            found = forward_of(proc.command_line(pid))
            if found is not None:
                yield found


def forward_of(argv: Sequence[str]) -> Forward | None:
    """What a docker-proxy forwards, by its command line; None for UDP, and for what is none."""
    if not argv or argv[0].rpartition("/")[2] != _PROGRAM:
        return None
    values = {name.lstrip("-"): value for name, value in pairwise(argv) if name.startswith("-")}
    try:
        port, inner = int(values["host-port"]), int(values["container-port"])
    except (KeyError, ValueError):
        return None
    return Forward(port, values["container-ip"], inner) if values.get("proto") == "tcp" and values.get("container-ip") else None
