"""What a container gives and calls a server: cards by device nodes, pod by host name and service account, container by cgroup and mounts."""

from __future__ import annotations

from pathlib import Path

import pytest
from poise.exporter.engines.container import HOSTNAME_FILE, NAMESPACE_FILE, container_cards, pod_of
from poise.exporter.procfs import ProcFs
from poise.exporter.snapshot import ContainerCards, Pod

from tests.fake_proc import FakeProc

UID, ID = "6f0e1a0c-1f0b-4a57-9c43-0d6c2b1a9e11", "0123456789abcdef" * 4
KUBERNETES = f"0::/kubepods/burstable/pod{UID}/{ID}\n"
DOCKER = f"0::/system.slice/docker-{ID}.scope\n"
TERMINATION = f"1 2 8:1 /var/lib/kubelet/pods/{UID}/containers/vllm/1a2b /dev/termination-log rw - ext4 /dev/sda1 rw\n"
SERVER = 100


def container(folder: Path, cgroup: str, *, network: str = "own", mounts: str = "", **files: str) -> ProcFs:
    """A fake /proc with a server in a container; `files` by the last part of their names."""
    fake = FakeProc(folder / "proc")
    fake.add(SERVER, ["vllm", "serve", "m"])
    (fake.root / str(SERVER) / "cgroup").write_text(cgroup)
    (fake.root / str(SERVER) / "mountinfo").write_text(mounts)
    for name in ("node", "container"):
        (folder / name / "dev").mkdir(parents=True)
    for pid, root, net in (("self", "node", "node"), ("1", "node", "node"), (str(SERVER), "container", network)):
        (fake.root / pid / "ns").mkdir(parents=True, exist_ok=True)
        (fake.root / pid / "ns" / "net").symlink_to(f"net:[{net}]")
        (fake.root / pid / "root").symlink_to(folder / root)
    for path in (NAMESPACE_FILE, HOSTNAME_FILE):
        if (name := path.rpartition("/")[2]) in files:
            (folder / "container" / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / "container" / path).write_text(files[name])
    return ProcFs(fake.root)


def test_a_pod_is_named_by_its_host_name_service_account_and_mounts(tmp_path: Path) -> None:
    proc = container(tmp_path, KUBERNETES, mounts=TERMINATION, namespace="serving", hostname="chat-7d4b9c-x2x\n")
    assert pod_of(proc, SERVER, {"HOSTNAME": "changed"}) == Pod("serving", "chat-7d4b9c-x2x", "vllm")


def test_without_files_the_variable_and_the_id_stand_in(tmp_path: Path) -> None:
    proc = container(tmp_path, KUBERNETES)
    assert pod_of(proc, SERVER, {"HOSTNAME": "chat-0"}) == Pod("", "chat-0", "0123456789ab")
    assert pod_of(proc, SERVER, {}) == Pod("", "", "0123456789ab")


def test_in_the_hosts_network_the_host_name_is_the_nodes_and_names_no_pod(tmp_path: Path) -> None:
    proc = container(tmp_path, KUBERNETES, network="node", namespace="serving", hostname="node-17\n")
    assert pod_of(proc, SERVER, {"HOSTNAME": "node-17"}) == Pod("serving", "", "0123456789ab")


def test_a_docker_container_is_its_short_id_and_no_pod(tmp_path: Path) -> None:
    proc = container(tmp_path, DOCKER, hostname="0123456789ab\n")
    assert pod_of(proc, SERVER, {"HOSTNAME": "0123456789ab"}) == Pod("", "", "0123456789ab")


def test_a_process_of_the_node_has_neither(tmp_path: Path) -> None:
    proc = container(tmp_path, "0::/user.slice/user-0.slice/session-1.scope\n")
    assert pod_of(proc, SERVER, {"HOSTNAME": "node"}) is None
    assert pod_of(ProcFs(tmp_path / "none"), 1, {}) is None


@pytest.mark.parametrize("name", ["", "Not A Name", "../../etc/passwd", "a" * 254, "-a", "a_b", "ä", "{le=}", "a\nb"])
def test_what_is_no_name_of_kubernetes_is_not_published(tmp_path: Path, name: str) -> None:
    proc = container(tmp_path, KUBERNETES, namespace=name, hostname=name)
    assert pod_of(proc, SERVER, {"HOSTNAME": name}) == Pod("", "", "0123456789ab")


def test_a_link_out_of_the_container_names_nothing(tmp_path: Path) -> None:
    proc = container(tmp_path, KUBERNETES)
    (tmp_path / "secret").write_text("hunter2")
    (tmp_path / "container" / "etc").mkdir()
    (tmp_path / "container" / HOSTNAME_FILE).symlink_to(tmp_path / "secret")
    assert pod_of(proc, SERVER, {}) == Pod("", "", "0123456789ab")


def test_cards_are_those_of_the_device_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc = container(tmp_path, DOCKER)
    assert container_cards(proc, SERVER, {"NVIDIA_VISIBLE_DEVICES": "all"}) == ContainerCards(frozenset(), "all")
    found = {"nvidia3": 3, "nvidia12": 12, "nvidiactl": 255, "nvidia-uvm": 0, "nvidia4x": 4}
    monkeypatch.setattr("poise.exporter.engines.container.devices_inside", lambda root, folder, major: found)
    assert container_cards(proc, SERVER, {}) == ContainerCards(frozenset({3, 12}), None)
    monkeypatch.setattr("poise.exporter.engines.container.devices_inside", lambda root, folder, major: None)
    assert container_cards(proc, SERVER, {}) == ContainerCards(None, None)
    assert container_cards(proc, 1, {"NVIDIA_VISIBLE_DEVICES": "0"}) is None  # a process of the node
