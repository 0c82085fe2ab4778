"""What this process may see of the other processes of its node, by its namespaces and rights, and what would let it see the rest.

Reads through `ProcFs` only. Everything that needs no look at processes works in any case: cards, and engines that are named by URL.
"""

from __future__ import annotations

import os

from poise.exporter.pid_namespace import PidNamespace, own_pid_namespace
from poise.exporter.procfs import ProcFs
from poise.exporter.snapshot import ViewLimit

#: Bits of capabilities (include/uapi/linux/capability.h). Files such as /proc/PID/environ need both: the right to trace, and to read what only
#: its owner may read; containers have CAP_DAC_OVERRIDE for the latter.
_DAC_OVERRIDE, _DAC_READ_SEARCH, _SYS_PTRACE = 1, 2, 19
_HOST_PID = "run it with --pid=host (Kubernetes: hostPID: true)"

OWN_NAMESPACE = ViewLimit("it runs in its own pid namespace: processes of other containers are not seen", _HOST_PID, unseen=True)
FOREIGN_PROC = ViewLimit("its /proc is another pid namespace's than its own: the driver's process numbers do not fit it", _HOST_PID)
HIDDEN = ViewLimit(
    "/proc hides the processes of other users (mount option hidepid)", "run it as root, or mount /proc without hidepid", unseen=True
)
NO_PTRACE = ViewLimit(
    "it has no CAP_SYS_PTRACE: environment, cards and container of other users' processes cannot be read",
    "run it as root or with CAP_SYS_PTRACE (docker: --cap-add SYS_PTRACE)",
)
NO_READ = ViewLimit(
    "it has no CAP_DAC_READ_SEARCH: environment and sockets of other users' processes cannot be read",
    "run it as root or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH",
)


def view_limits(proc: ProcFs) -> tuple[ViewLimit, ...]:
    """What of the node's processes this one cannot see or read; empty where nothing stands in its way."""
    limits = []
    namespace = own_pid_namespace(proc)
    if namespace is PidNamespace.MIXED:
        limits.append(FOREIGN_PROC)
    elif namespace is PidNamespace.CONTAINER and proc.first_is_ours():
        # Where the first process has another root than we, it is that of a node that is itself a container (kind), whose pods are below it.
        limits.append(OWN_NAMESPACE)
    elif proc.stat(1) is None and proc.stat(os.getpid()) is not None:
        limits.append(HIDDEN)
    capabilities = _capabilities(proc.text("self", "status"))
    if not capabilities >> _SYS_PTRACE & 1:
        limits.append(NO_PTRACE)
    elif not capabilities & (1 << _DAC_OVERRIDE | 1 << _DAC_READ_SEARCH):
        limits.append(NO_READ)
    elif profile := _profile(proc.text("self", "attr/current")):
        limits.append(confined(profile))
    return tuple(limits)


def confined(profile: str) -> ViewLimit:
    """The limit of a security profile, which forbids to look at processes outside it whatever the capabilities."""
    return ViewLimit(
        f"the security profile {profile} confines it: processes outside the profile may not be readable",
        "run it with --security-opt apparmor=unconfined (SELinux: label=disable)",
    )


def why_unreadable(limits: tuple[ViewLimit, ...]) -> str:
    """What to say of a process whose environment cannot be read."""
    profile = next((limit for limit in limits if not limit.unseen and limit not in (FOREIGN_PROC, NO_PTRACE, NO_READ)), None)
    if profile is None:
        return "its environment cannot be read: run Poise as root or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
    return f"its environment cannot be read: a security profile confines Poise; {profile.fix}"


def _capabilities(status: str) -> int:
    """The effective capabilities as bits; all when they cannot be told."""
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            try:
                return int(value, 16)
            except ValueError:
                break
    return -1


def _profile(current: str) -> str:
    """The security profile that confines this process; "" for none. AppArmor: "docker-default (enforce)"; SELinux: "system_u:…:container_t:s0"."""
    text = current.strip("\0\n ")
    if text.endswith("(enforce)"):
        return text.removesuffix("(enforce)").strip()
    fields = text.split(":")
    return fields[2] if len(fields) > 3 and fields[2] == "container_t" else ""
