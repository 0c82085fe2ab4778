"""Which container and pod a cgroup path names: as Docker, Podman, containerd, CRI-O and the kubelet write it, in cgroup v1 and v2."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.exporter.cgroups import ContainerIds, container_ids, container_name

ID = "0123456789abcdef" * 4
OUTER = "fedcba9876543210" * 4
UID = "6f0e1a0c-1f0b-4a57-9c43-0d6c2b1a9e11"
UNIT = UID.replace("-", "_")
STATIC = "1a2b3c4d" * 4  # a static pod's is the hash of its configuration


@pytest.mark.parametrize(
    ("path", "pod"),
    [
        (f"/docker/{ID}", ""),
        (f"/system.slice/docker-{ID}.scope", ""),
        (f"/system.slice/nerdctl-{ID}.scope", ""),
        (f"/libpod_parent/libpod-{ID}", ""),
        (f"/machine.slice/libpod-{ID}.scope", ""),
        (f"/machine.slice/libpod-{ID}.scope/container", ""),
        (f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container", ""),
        (f"/ecs/0123456789abcdef0123456789abcdef/{ID}", ""),
        (f"/kubepods/pod{UID}/{ID}", UID),
        (f"/kubepods/burstable/pod{UID}/{ID}", UID),
        (f"/kubepods/besteffort/pod{STATIC}/{ID}", STATIC),
        (f"/kubepods.slice/kubepods-pod{UNIT}.slice/cri-containerd-{ID}.scope", UID),
        (f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNIT}.slice/cri-containerd-{ID}.scope", UID),
        (f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/crio-{ID}.scope", STATIC),
        (f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNIT}.slice/docker-{ID}.scope", UID),
        (f"/kubepods.slice/kubepods-pod{UNIT}.slice/crio-{ID}.scope/container", UID),
        (f"/system.slice/containerd.service/kubepods-burstable-pod{UNIT}.slice:cri-containerd:{ID}", UID),
        (f"/docker/{OUTER}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UNIT}.slice/cri-containerd-{ID}.scope", UID),
        (f"/docker/{OUTER}/kubelet/kubepods/burstable/pod{UID}/{ID}", UID),
        (f"/../../pod{UID}/{ID}", UID),
        (f"/../docker-{ID}.scope", ""),
        (f"/docker/{ID}/some/service", ""),
    ],
)
def test_the_innermost_container_and_its_pod(path: str, pod: str) -> None:
    assert container_ids(f"0::{path}\n") == ContainerIds(ID, pod)
    assert container_ids(f"12:devices:{path}\n11:cpu,cpuacct:{path}\n1:name=systemd:{path}\n0::/\n") == ContainerIds(ID, pod)
    assert ContainerIds(ID, pod).short == "0123456789ab"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0::/\n",
        "0::/init.scope\n",
        "0::/user.slice/user-1000.slice/session-2.scope\n",
        "9:name=systemd:/system.slice/vllm.service\n0::/\n",
        f"0::/machine.slice/libpod-conmon-{ID}.scope\n",
        f"0::/kubepods.slice/kubepods-pod{UNIT}.slice/crio-conmon-{ID}.scope\n",
        f"0::/docker/{ID[:-1]}\n",
        f"0::/docker/{ID}0\n",
        f"0::/docker/{ID.upper()}\n",
        "0::/slurm/uid_1000/job_5/step_0\n",
        "no colons at all",
    ],
)
def test_what_is_no_container(text: str) -> None:
    assert container_ids(text) is None


def test_a_path_with_colons_in_it_is_read_whole() -> None:
    assert container_ids(f"0::/a:b/docker/{ID}\n") == ContainerIds(ID)


@given(st.text(max_size=300) | st.lists(st.sampled_from(["/", ":", "pod", "-", ID, UID, UNIT, ".scope", ".slice", "docker"])).map("".join))
def test_any_text_gives_a_container_or_none(text: str) -> None:
    found = container_ids(text)
    assert found is None or (len(found.container) == 64 and (found.pod_uid == "" or len(found.pod_uid) in (32, 36)))


MOUNT = f"2113 2095 8:1 /var/lib/kubelet/pods/{UID}/containers/vllm-server/1a2b3c4d /dev/termination-log rw,relatime - ext4 /dev/sda1 rw\n"


def test_a_containers_name_in_its_pod_is_in_its_mounts() -> None:
    other = f"2112 2095 8:1 /var/lib/kubelet/pods/{UID}/etc-hosts /etc/hosts rw - ext4 /dev/sda1 rw\n"
    assert container_name("1 2 0:1 / / rw - overlay overlay rw\n" + other + MOUNT, UID) == "vllm-server"
    assert container_name(MOUNT.replace("/var/lib/kubelet", ""), UID) == "vllm-server"  # a file system of its own below


@pytest.mark.parametrize(
    "text", ["", "1 2\n", "9 9 8:1 /pods/x/containers/a/b /dev/termination-log rw - ext4 s rw\n", MOUNT.replace(UID, STATIC)]
)
def test_mounts_that_do_not_tell_the_name(text: str) -> None:
    assert container_name(text, UID) == ""


@given(st.text())
def test_any_mounts_give_a_name_or_none(text: str) -> None:
    assert container_name(text, UID) == ""
