"""The /proc reader on trees of its own and on this very process: vanished, unreadable, retitled, huge and strange processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from ipaddress import ip_address
from pathlib import Path

import pytest
from poise.exporter import procfs
from poise.exporter.procfs import COMMAND_LINE_LIMIT, ENVIRONMENT, ProcFs

from tests.fake_proc import BOOT_TIME, FakeProc
from tests.waiting import wait_until


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


def reader(fake: FakeProc) -> ProcFs:
    return ProcFs(fake.root, ticks_per_second=100)


def test_lists_only_processes(fake: FakeProc) -> None:
    fake.add(7, ["a"])
    fake.add(1234, ["b"])
    assert sorted(reader(fake).pids()) == [7, 1234]


def test_a_missing_proc_has_no_processes(tmp_path: Path) -> None:
    proc = ProcFs(tmp_path / "none")
    assert proc.pids() == []
    assert proc.stat(1) is None
    assert proc.command_line(1) == ()
    assert proc.environment(1) is None
    assert proc.program(1) == ""
    assert proc.sockets().listening == {}


@pytest.mark.parametrize("name", [b"plain", b"a b", b"a) R 1 (b", b"x\ny", b"\xff\xfe", b"()"])
def test_a_name_of_any_bytes_does_not_shift_the_fields(fake: FakeProc, name: bytes) -> None:
    fake.add(42, ["x"], ppid=7, comm=name, ticks=12345)
    stat = reader(fake).stat(42)
    assert stat is not None
    assert (stat.ppid, stat.start_ticks, stat.comm) == (7, 12345, name.decode(errors="replace"))


def test_start_time_counts_from_boot(fake: FakeProc) -> None:
    fake.add(42, ["x"], ticks=1050)
    proc = reader(fake)
    stat = proc.stat(42)
    assert stat is not None
    assert proc.start_time(stat) == BOOT_TIME + 10.5


@pytest.mark.parametrize("content", [b"", b"42", b"42 (x)", b"42 (x) S", b"42 (x) S a b"])
def test_a_stat_cut_short_is_no_process(fake: FakeProc, content: bytes) -> None:
    fake.add(42, ["x"])
    (fake.root / "42" / "stat").write_bytes(content)
    assert reader(fake).stat(42) is None


def test_zombies_are_told(fake: FakeProc) -> None:
    fake.add(42, b"", state="Z")
    stat = reader(fake).stat(42)
    assert stat is not None
    assert stat.zombie


def test_command_line_keeps_empty_arguments_and_drops_padding(fake: FakeProc) -> None:
    fake.add(1, b"a\0\0b c\0")
    fake.add(2, b"VLLM::Worker_TP0\0\0\0\0\0\0")
    fake.add(3, b"\0\0\0")
    proc = reader(fake)
    assert proc.command_line(1) == ("a", "", "b c")
    assert proc.command_line(2) == ("VLLM::Worker_TP0",)
    assert proc.command_line(3) == ()


def test_a_huge_command_line_is_cut_at_an_argument(fake: FakeProc) -> None:
    fake.add(1, b"vllm\0serve\0" + b"x" * COMMAND_LINE_LIMIT)
    assert reader(fake).command_line(1) == ("vllm", "serve")


def test_a_command_line_that_is_no_utf8_is_readable(fake: FakeProc) -> None:
    fake.add(1, b"vllm\0serve\0/models/\xff\0")
    assert reader(fake).command_line(1) == ("vllm", "serve", "/models/�")


def test_only_allow_listed_variables_leave_the_reader(fake: FakeProc) -> None:
    fake.add(
        1,
        ["x"],
        environment={
            "HF_TOKEN": "hf_secret",
            "CUDA_VISIBLE_DEVICES": "0,1",
            "VLLM_API_KEY": "sk-secret",
            "PATH": "/bin",
            "CUDA_DEVICE_ORDER": "",
        },
    )
    kept = reader(fake).environment(1)
    assert kept == {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": ""}
    assert not any("KEY" in name or "TOKEN" in name or "SECRET" in name for name in ENVIRONMENT)


def test_the_first_of_a_repeated_variable_holds_as_in_getenv(fake: FakeProc) -> None:
    fake.add(1, ["x"], environment=b"CUDA_VISIBLE_DEVICES=0\0CUDA_VISIBLE_DEVICES=1\0no-equals\0")
    assert reader(fake).environment(1) == {"CUDA_VISIBLE_DEVICES": "0"}


def test_an_environment_that_was_overwritten_is_unknown_not_empty(fake: FakeProc) -> None:
    fake.add(1, ["x"], environment=b"\0" * 500)
    fake.add(2, ["x"], environment=b"")
    proc = reader(fake)
    assert proc.environment(1) is None
    assert proc.environment(2) is None


def test_an_environment_that_we_may_not_read_is_unknown(fake: FakeProc) -> None:
    fake.add(1, ["x"], environment=None)
    assert reader(fake).environment(1) is None


def test_listening_ports_join_sockets_and_descriptors(fake: FakeProc) -> None:
    fake.sockets([(8000, "0A", 100), (9000, "0A", 101), (8000, "01", 102), (8000, "01", 103), (50000, "01", 104)])
    fake.sockets([(8001, "0A", 200), (8000, "01", 201)], ipv6=True)
    fake.add(1, ["x"], inodes=(100, 102, 200))
    fake.add(2, ["x"], inodes=(101,))
    proc = reader(fake)
    sockets = proc.sockets()
    assert proc.listening_ports([1], sockets) == {8000, 8001}
    assert proc.listening_ports([1, 2], sockets) == {8000, 8001, 9000}
    assert proc.listening_ports([99], sockets) is None
    assert sockets.established == {8000: 3, 50000: 1}


def test_of_a_process_with_very_many_open_files_so_many_are_looked_at(fake: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "DESCRIPTORS_LIMIT", 2)
    fake.sockets([(8000 + number, "0A", 100 + number) for number in range(5)])
    fake.add(1, ["x"], inodes=tuple(range(100, 105)))
    ports = reader(fake).listening_ports([1], reader(fake).sockets())
    assert ports is not None
    assert len(ports) == 2


def test_rows_of_sockets_that_make_no_sense_are_skipped(fake: FakeProc) -> None:
    (fake.root / "net" / "tcp").write_text("header\ngarbage\n 0: zz:zz a 0A\n\n")
    assert reader(fake).sockets().listening == {}


def test_namespaces_and_roots_that_cannot_be_told_count_as_ours(fake: FakeProc) -> None:
    fake.add(2, ["x"])
    proc = reader(fake)
    assert proc.same_namespace(2, "net")
    assert proc.same_root(2)
    assert ProcFs().same_namespace(os.getpid(), "net")
    assert ProcFs().same_root(os.getpid())


def test_another_network_namespace_is_told(fake: FakeProc) -> None:
    for pid, space in (("self", "net:[1]"), ("2", "net:[1]"), ("3", "net:[2]")):
        (fake.root / pid / "ns").mkdir(parents=True)
        (fake.root / pid / "ns" / "net").symlink_to(space)
    assert reader(fake).same_namespace(2, "net")
    assert not reader(fake).same_namespace(3, "net")


def test_another_root_directory_is_told_and_the_nodes_own_is_ours(fake: FakeProc) -> None:
    for name in ("exporter", "node", "container"):
        (fake.root.parent / name).mkdir()
    for pid, name in (("self", "exporter"), ("1", "node"), ("2", "node"), ("3", "container"), ("4", "exporter")):
        (fake.root / pid).mkdir(exist_ok=True)
        (fake.root / pid / "root").symlink_to(fake.root.parent / name)
    assert [reader(fake).same_root(pid) for pid in (2, 3, 4)] == [True, False, True]


def test_reads_this_process_as_it_is() -> None:
    proc = ProcFs()
    stat = proc.stat(os.getpid())
    assert stat is not None
    assert stat.ppid == os.getppid()
    assert abs(proc.start_time(stat) - time.time()) < 24 * 3600
    assert proc.command_line(os.getpid())
    assert proc.program(os.getpid()).startswith("python")


def test_finds_the_real_socket_that_a_process_listens_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        port = server.getsockname()[1]
        proc = ProcFs()
        sockets = proc.sockets()
        ports = proc.listening_ports([os.getpid()], sockets)
        assert ports is not None
        assert port in ports
        assert sockets.established[port] == 1


def test_reads_a_real_process_with_its_environment_and_its_end() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", "argument"],
        stdin=subprocess.PIPE,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "GPU-1"},
    )
    try:
        proc = ProcFs()
        wait_until(lambda: proc.environment(child.pid) is not None, "the child has its environment")
        environment = proc.environment(child.pid)
        assert environment is not None
        assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    finally:
        child.kill()
        child.communicate()
    assert proc.stat(child.pid) is None


def test_sockets_of_a_process_are_those_of_its_network_namespace(fake: FakeProc) -> None:
    fake.add(7, ["x"])
    (fake.root / "7" / "net").mkdir()
    fake.sockets([(8000, "0A", 1), (8000, "01", 2)])
    (fake.root / "net" / "tcp").rename(fake.root / "7" / "net" / "tcp")
    fake.sockets([])
    proc = reader(fake)
    loopback = ip_address("127.0.0.1")
    assert proc.sockets().bound == {}
    assert (proc.sockets(7).established, proc.sockets(7).bound) == ({8000: 1}, {8000: frozenset({loopback})})
    assert proc.callers(7, loopback, 8000) == {50000}
    assert (
        proc.callers(7, ip_address("10.0.0.1"), 8000) == proc.callers(7, loopback, 8001) == proc.callers(8, loopback, 8000) == frozenset()
    )


def test_without_ptrace_rights_a_network_namespace_is_told_by_its_files(fake: FakeProc) -> None:
    fake.add(7, ["x"])
    (fake.root / "7" / "net").mkdir()
    (fake.root / "7" / "net" / "tcp").write_text("")
    (fake.root / "self" / "net").mkdir(parents=True)
    (fake.root / "self" / "net" / "tcp").write_text("")
    assert not reader(fake).same_namespace(7, "net")
    assert reader(fake).same_namespace(7, "pid")
    assert ProcFs().same_namespace(os.getpid(), "net", of=os.getppid())


def test_texts_and_links_of_a_process_are_read_or_empty(fake: FakeProc) -> None:
    fake.add(7, ["x"])
    (fake.root / "7" / "cgroup").write_bytes(b"0::/a\xff\n")
    assert reader(fake).text(7, "cgroup") == "0::/a�\n"
    assert reader(fake).text(8, "cgroup") == ""
    assert reader(fake).link(8, "ns/pid") is None
    assert reader(fake).first_is_ours()
    assert reader(fake).addresses(7) == ()
