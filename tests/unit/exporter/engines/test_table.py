"""The process table: what is read when, reused pids, late titles, processes that become servers."""

from __future__ import annotations

from pathlib import Path

import pytest
from poise.exporter.engines.table import ROTATION, YOUNG_SCANS, ProcessTable
from poise.exporter.procfs import ProcessStat, ProcFs

from tests.fake_proc import FakeProc


class CountingProc(ProcFs):
    """The real reader, counting what it reads."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, ticks_per_second=100)
        self.stats: list[int] = []
        self.command_lines: list[int] = []

    def stat(self, pid: int) -> ProcessStat | None:
        self.stats.append(pid)
        return super().stat(pid)

    def command_line(self, pid: int) -> tuple[str, ...]:
        self.command_lines.append(pid)
        return super().command_line(pid)


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def test_an_old_process_costs_nothing_in_most_scans(fake: FakeProc) -> None:
    for pid in range(100, 200):
        fake.add(pid, ["sleep", "60"])
    proc = CountingProc(fake.root)
    table = ProcessTable(proc)
    for _ in range(YOUNG_SCANS + 1):
        table.scan()
    proc.stats.clear()
    proc.command_lines.clear()
    for _ in range(ROTATION):
        table.scan()
    assert len(proc.stats) == len(proc.command_lines) == 100


def test_a_shell_that_becomes_a_server_is_seen_at_the_next_scan(fake: FakeProc) -> None:
    fake.add(100, ["bash", "-c", "exec vllm serve m"])
    table = ProcessTable(ProcFs(fake.root))
    assert table.scan()[100].server is None
    fake.add(100, ["vllm", "serve", "m"])
    assert table.scan()[100].server is not None


def test_a_late_exec_is_seen_within_one_rotation(fake: FakeProc) -> None:
    fake.add(100, ["bash"])
    table = ProcessTable(ProcFs(fake.root))
    for _ in range(3 * ROTATION):
        table.scan()
    fake.add(100, ["vllm", "serve", "m"])
    assert any(table.scan()[100].server is not None for _ in range(ROTATION))


def test_a_watched_process_is_read_every_time(fake: FakeProc) -> None:
    fake.add(100, ["VLLM::Worker"])
    table = ProcessTable(ProcFs(fake.root))
    for _ in range(3 * ROTATION):
        table.scan()
    fake.add(100, ["VLLM::Worker_TP1"])
    title = table.scan(watched={100})[100].title
    assert title is not None
    assert title.tp_rank == 1
    assert table.title_of(100) == "VLLM::Worker_TP1"


def test_a_pid_used_again_is_another_process(fake: FakeProc) -> None:
    fake.add(100, ["vllm", "serve", "m"], ticks=1)
    table = ProcessTable(ProcFs(fake.root))
    before = table.scan()[100]
    fake.add(100, ["vllm", "serve", "m"], ticks=2)
    after = table.scan()[100]
    assert before.key != after.key


def test_a_process_that_goes_or_turns_zombie_is_gone(fake: FakeProc) -> None:
    fake.add(100, ["VLLM::Worker_TP0"])
    fake.add(101, ["VLLM::Worker_TP1"])
    table = ProcessTable(ProcFs(fake.root))
    assert set(table.scan()) == {100, 101}
    fake.remove(100)
    fake.add(101, b"", comm="VLLM::Worker_TP", state="Z")
    assert set(table.scan({101})) == set()
    assert table.title_of(100) is None


def test_processes_that_vanish_between_two_reads_are_no_error(fake: FakeProc) -> None:
    class Hasty(ProcFs):
        def pids(self) -> list[int]:
            return [*super().pids(), 4_000_000]

        def command_line(self, pid: int) -> tuple[str, ...]:
            fake.remove(pid)
            return super().command_line(pid)

    fake.add(100, ["vllm", "serve", "m"])
    table = ProcessTable(Hasty(fake.root))
    assert table.scan()[100].server is None
    assert table.scan() == {}


def test_without_a_command_line_the_cut_name_tells(fake: FakeProc) -> None:
    fake.add(100, b"", comm="VLLM::Worker_TP")
    title = ProcessTable(ProcFs(fake.root)).scan()[100].title
    assert title is not None
    assert title.text == "VLLM::Worker_TP"


def test_kernel_threads_are_read_once(fake: FakeProc) -> None:
    fake.add(2, b"", comm="kthreadd", ppid=0)
    fake.add(30, b"", comm="kworker/0:1", ppid=2)
    proc = CountingProc(fake.root)
    table = ProcessTable(proc)
    table.scan()
    proc.stats.clear()
    table.scan()
    assert len(proc.stats) <= 1
    assert proc.command_lines == []


def test_no_process_holds_a_command_line(fake: FakeProc) -> None:
    fake.add(100, ["vllm", "serve", "m", "--api-key", "sk-planted"], environment={"HF_TOKEN": "hf_planted"})
    fake.add(101, ["mysql", "-psk-planted"])
    shown = repr(ProcessTable(ProcFs(fake.root)).scan())
    assert "planted" not in shown
