"""What Poise may see of other processes, told from its namespaces, capabilities and security profile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from poise.exporter.pid_namespace import FIRST_PID_NAMESPACE
from poise.exporter.procfs import ProcFs
from poise.exporter.standing import FOREIGN_PROC, HIDDEN, NO_PTRACE, NO_READ, OWN_NAMESPACE, confined, view_limits, why_unreadable

from tests.fake_proc import FakeProc

ALL = "000001ffffffffff"
DOCKERS = "00000000a80425fb"  # what Docker gives a container; without CAP_SYS_PTRACE
WITH_PTRACE = "00000000a80c25fb"


def standing(
    folder: Path,
    *,
    namespace: str = FIRST_PID_NAMESPACE,
    capabilities: str | None = ALL,
    numbers: str = "7",
    profile: str = "unconfined\n",
    first_root: str = "node",
    own_root: str = "node",
    first: bool = True,
) -> ProcFs:
    fake = FakeProc(folder / "proc")
    own = fake.root / "self"
    (own / "ns").mkdir(parents=True)
    (own / "ns" / "pid").symlink_to(namespace)
    (own / "attr").mkdir()
    (own / "attr" / "current").write_text(profile)
    (own / "status").write_text(f"Name:\tpoise\nNSpid:\t{numbers}\n" + (f"CapEff:\t{capabilities}\n" if capabilities is not None else ""))
    if first:
        fake.add(1, ["init"])
        (folder / first_root).mkdir(exist_ok=True)
        (fake.root / "1" / "root").symlink_to(folder / first_root)
    (folder / own_root).mkdir(exist_ok=True)
    (own / "root").symlink_to(folder / own_root)
    return ProcFs(fake.root)


def test_root_on_the_node_sees_everything(tmp_path: Path) -> None:
    assert view_limits(standing(tmp_path)) == ()


def test_nothing_is_said_where_nothing_can_be_told(tmp_path: Path) -> None:
    assert view_limits(ProcFs(tmp_path / "none")) == ()
    assert view_limits(standing(tmp_path, capabilities=None, profile="")) == ()


def test_a_container_without_the_nodes_pid_namespace_says_so(tmp_path: Path) -> None:
    assert view_limits(standing(tmp_path, namespace="pid:[4026532201]", capabilities=DOCKERS)) == (OWN_NAMESPACE, NO_PTRACE)
    assert "--pid=host (Kubernetes: hostPID: true)" in OWN_NAMESPACE.fix


def test_the_pid_namespace_of_a_node_that_is_itself_a_container_is_the_nodes(tmp_path: Path) -> None:
    assert view_limits(standing(tmp_path, namespace="pid:[4026532201]", own_root="pod")) == ()


def test_a_proc_of_another_namespace_is_told(tmp_path: Path) -> None:
    assert view_limits(standing(tmp_path, namespace="pid:[4026532201]", numbers="4711 7")) == (FOREIGN_PROC,)


def test_a_proc_that_hides_others_is_told(tmp_path: Path) -> None:
    proc = standing(tmp_path, first=False, capabilities="0000000000000000")
    FakeProc(tmp_path / "proc").add(os.getpid(), ["poise"])
    assert view_limits(proc) == (HIDDEN, NO_PTRACE)


@pytest.mark.parametrize(
    ("capabilities", "profile", "limits"),
    [
        (ALL, "", ()),
        (DOCKERS, "docker-default (enforce)\n", (NO_PTRACE,)),
        (WITH_PTRACE, "unconfined\n", ()),
        ("0000000000080000", "", (NO_READ,)),
        ("0000000000080004", "", ()),
        (WITH_PTRACE, "docker-default (complain)\n", ()),
        (WITH_PTRACE, "docker-default (enforce)\n", (confined("docker-default"),)),
        (WITH_PTRACE, "system_u:system_r:container_t:s0:c1,c2\0", (confined("container_t"),)),
        (WITH_PTRACE, "system_u:system_r:spc_t:s0\0", ()),
        ("not a number", "", ()),
    ],
)
def test_rights_to_read_other_processes(tmp_path: Path, capabilities: str, profile: str, limits: tuple[object, ...]) -> None:
    assert view_limits(standing(tmp_path, capabilities=capabilities, profile=profile)) == limits


def test_why_an_environment_cannot_be_read_follows_from_the_limits() -> None:
    usual = "its environment cannot be read: run Poise as root or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
    assert why_unreadable(()) == why_unreadable((NO_PTRACE,)) == why_unreadable((OWN_NAMESPACE, NO_PTRACE)) == usual
    assert why_unreadable((confined("docker-default"),)) == (
        "its environment cannot be read: a security profile confines Poise; "
        "run it with --security-opt apparmor=unconfined (SELinux: label=disable)"
    )


def test_this_very_process_can_be_judged() -> None:
    assert all(limit.sentence and limit.fix for limit in view_limits(ProcFs()))
