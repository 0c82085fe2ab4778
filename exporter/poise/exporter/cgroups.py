"""Reads which container and pod a process is in from its /proc/PID/cgroup and /proc/PID/mountinfo. Pure; both files are the kernel's own words.

Paths as container engines lay them out, cgroup v1 and v2, cgroupfs and systemd drivers: Docker `/docker/ID`, `/system.slice/docker-ID.scope`;
Podman `libpod-ID.scope`; Kubernetes `kubepods…/podUID/ID`, `kubepods-…-podUID_.slice/cri-containerd-ID.scope` or `crio-ID.scope`, and
`…slice:cri-containerd:ID`. In a nested node (kind) several stand in one path: the innermost is the process's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Container engines show ids cut to so many characters (`docker ps`, `crictl ps` shows 13).
SHORT_ID = 12

#: An id of the Open Container Initiative's runtimes: 64 hexadecimal digits, behind the engine's name, in a component of its own or a unit.
_CONTAINER = re.compile(r"(?:(?P<engine>[A-Za-z0-9_.-]*?)[-:])??(?P<id>[0-9a-f]{64})(?:\.scope)?")
#: Beside a container runs its monitor (conmon) in a cgroup of its own with the same id.
_MONITORS = re.compile(r"(^|-)conmon$")
#: A pod's UID, of a static pod a hash of its configuration; systemd's unit names have underscores for dashes.
_POD = re.compile(r"(?:^|[-/:])pod(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice|$|(?=[/:]))")
#: The file to which a container may write why it ended lies in a folder of the kubelet with the container's name (kuberuntime_container.go).
_TERMINATION = re.compile(r"/pods/(?P<uid>[0-9a-f-]{32,36})/containers/(?P<name>[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)/[^/ ]+$")


@dataclass(frozen=True, slots=True)
class ContainerIds:
    """A container's full id, and the UID of its pod (with dashes); "" outside Kubernetes."""

    container: str
    pod_uid: str = ""

    @property
    def short(self) -> str:
        """The id as container engines show it."""
        return self.container[:SHORT_ID]


def container_ids(cgroup: str) -> ContainerIds | None:
    """The ids in a /proc/PID/cgroup; None for a process in no container."""
    for line in cgroup.splitlines():
        path = line.split(":", 2)[-1]
        container = _innermost(path)
        if container:
            pods = _POD.findall(path)
            return ContainerIds(container, pods[-1].replace("_", "-") if pods else "")
    return None


def container_name(mountinfo: str, pod_uid: str) -> str:
    """The name that a container has in the pod `pod_uid`, from its /proc/PID/mountinfo; "" where it does not show.

    A line is: id, parent, device, root of the mount in its file system, mount point … (proc(5)).
    """
    for line in mountinfo.splitlines():
        fields = line.split(" ", 5)
        found = _TERMINATION.search(fields[3]) if len(fields) > 4 else None
        if found is not None and found["uid"] == pod_uid:
            return found["name"]
    return ""


def _innermost(path: str) -> str:
    for component in reversed(path.split("/")):
        found = _CONTAINER.fullmatch(component) or _CONTAINER.fullmatch(component.rpartition(":")[2])
        if found is not None and not _MONITORS.search(found["engine"] or ""):
            return found["id"]
    return ""
