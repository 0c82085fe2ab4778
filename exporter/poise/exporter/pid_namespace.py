"""Whose process numbers this process has: the node's, a container's, or others than its own /proc has. Reads through `ProcFs` only."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

#: The node's first pid namespace has this inode in every Linux (include/linux/proc_ns.h, PROC_PID_INIT_INO).
FIRST_PID_NAMESPACE = "pid:[4026531836]"


class PidNamespace(StrEnum):
    """The pid namespace of this process."""

    HOST = "host"
    CONTAINER = "container"
    #: /proc is another namespace's than our own, as with the node's /proc mounted into a container: numbers of the two do not fit.
    MIXED = "mixed"


class Processes(Protocol):
    """What is needed of a /proc."""

    def text(self, pid: int | str, name: str) -> str: ...

    def link(self, pid: int | str, name: str) -> str | None: ...


def own_pid_namespace(proc: Processes) -> PidNamespace:
    """The pid namespace of this process; the node's when that cannot be told: most exporters are.

    In a container /proc/1 is the container's own, so that comparing with it tells nothing; the inode of the first namespace does.
    """
    for line in proc.text("self", "status").splitlines():
        # Our number in the namespace of this /proc, then in each one below, down to our own.
        if line.startswith("NSpid:") and len(line.split()) > 2:
            return PidNamespace.MIXED
    ours = proc.link("self", "ns/pid")
    return PidNamespace.HOST if ours in (None, FIRST_PID_NAMESPACE) else PidNamespace.CONTAINER
