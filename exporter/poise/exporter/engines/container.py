"""What a server's container gives and calls it: its cards by device node, its pod and its names. Knows /proc and no driver.

Kubernetes writes neither a pod's name nor its namespace where a node sees them. The name is the container's host name unless the pod says
otherwise or uses the host's network; the namespace stands in the public file of the pod's service account, where that is mounted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from poise.exporter import cgroups
from poise.exporter.inroot import devices_inside, read_inside
from poise.exporter.procfs import ProcFs
from poise.exporter.snapshot import ContainerCards, Pod

#: Major number of /dev/nvidiaN (Documentation/admin-guide/devices.txt: 195 char, Nvidia graphics devices); nvidiactl has minor 255.
NVIDIA_MAJOR = 195
_CARD = re.compile(r"nvidia[0-9]+")

#: Where Kubernetes puts the namespace of a pod's service account. Beside it lies the token, which is never looked at.
NAMESPACE_FILE = "var/run/secrets/kubernetes.io/serviceaccount/namespace"
HOSTNAME_FILE = "etc/hostname"
#: Names in Kubernetes have at most 253 characters (RFC 1123); more is not one.
_NAME_LIMIT = 256
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")
_FIRST_PROCESS = 1


def container_cards(proc: ProcFs, pid: int, variables: Mapping[str, str]) -> ContainerCards | None:
    """The cards that a process's container gives it; None for a process in no container of its own."""
    if proc.same_root(pid):
        return None
    devices = devices_inside(proc.root_of(pid), "dev", NVIDIA_MAJOR)
    minors = None if devices is None else frozenset(minor for name, minor in devices.items() if _CARD.fullmatch(name))
    return ContainerCards(minors, variables.get("NVIDIA_VISIBLE_DEVICES"))


def pod_of(proc: ProcFs, pid: int, variables: Mapping[str, str]) -> Pod | None:
    """Where a process runs: outside Kubernetes only the short id of its container; None for a process in no container."""
    ids = cgroups.container_ids(proc.text(pid, "cgroup"))
    if ids is None:
        return None
    if not ids.pod_uid:
        return Pod(container=ids.short)
    name = cgroups.container_name(proc.text(pid, "mountinfo"), ids.pod_uid)
    root = proc.root_of(pid)
    namespace = _kubernetes_name(read_inside(root, NAMESPACE_FILE, _NAME_LIMIT))
    if not proc.same_root(pid) and proc.same_namespace(pid, "net", _FIRST_PROCESS):
        return Pod(namespace, "", name or ids.short)  # hostNetwork: the host name is the node's
    hostname = _kubernetes_name(read_inside(root, HOSTNAME_FILE, _NAME_LIMIT)) or _kubernetes_name(variables.get("HOSTNAME", "").encode())
    return Pod(namespace, hostname, name or ids.short)


def _kubernetes_name(content: bytes | None) -> str:
    text = (content or b"").decode(errors="replace").strip()
    return text if _NAME.fullmatch(text) else ""
