"""Whose process numbers this process has, from a /proc as it looks on a node, in a container, and with the node's /proc in a container."""

from __future__ import annotations

from pathlib import Path

import pytest
from poise.exporter.pid_namespace import FIRST_PID_NAMESPACE, PidNamespace, own_pid_namespace
from poise.exporter.procfs import ProcFs


def proc(root: Path, link: str | None, nspid: str | None) -> ProcFs:
    own = root / "self"
    (own / "ns").mkdir(parents=True)
    if link is not None:
        (own / "ns" / "pid").symlink_to(link)
    if nspid is not None:
        (own / "status").write_text(f"Name:\tpoise\nTgid:\t7\nNSpid:\t{nspid}\nVmRSS:\t1 kB\n")
    return ProcFs(root)


@pytest.mark.parametrize(
    ("link", "nspid", "expected"),
    [
        (FIRST_PID_NAMESPACE, "4711", PidNamespace.HOST),
        ("pid:[4026532792]", "7", PidNamespace.CONTAINER),
        ("pid:[4026532792]", "4711\t7", PidNamespace.MIXED),
        ("pid:[4026532792]", "4711\t20\t7", PidNamespace.MIXED),
        ("pid:[4026532792]", None, PidNamespace.CONTAINER),
        (None, "4711", PidNamespace.HOST),
        (None, None, PidNamespace.HOST),
    ],
)
def test_the_namespace_is_told_by_inode_and_by_the_numbers_of_the_process(
    link: str | None, nspid: str | None, expected: PidNamespace, tmp_path: Path
) -> None:
    assert own_pid_namespace(proc(tmp_path, link, nspid)) is expected


def test_this_machines_own_proc_can_be_read() -> None:
    assert own_pid_namespace(ProcFs()) in PidNamespace
