"""Which processes count as a deployment's own: real ones, started as vLLM's are, and strangers that look alike."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from poise.testbed import claim, ownership, processes, records, teardown
from poise.testbed.paths import StateLayout
from poise.testbed.records import Record
from poise.testbed.starter import MARK, STARTER

from tests.unit.testbed.deployments import layout_in, ours, start, start_family
from tests.waiting import wait_until

# A server whose child has no environment to read, as vLLM's workers after setproctitle; `elsewhere`: and no log either.
RETITLED = """
import os, sys, time
if os.fork() == 0:
    if "elsewhere" in sys.argv:
        os.dup2(0, 1), os.dup2(0, 2)
    os.execve("/bin/sleep", ["VLLM::Worker", "600"], {})
time.sleep(600)
"""
# A server whose child leaves its session, its folder and its environment behind.
RUNAWAY = """
import os, time
if os.fork() == 0:
    os.setsid()
    os.chdir("/")
    os.execve("/bin/sleep", ["sleep", "600"], {})
time.sleep(600)
"""


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[StateLayout]:
    made = layout_in(tmp_path)
    yield made
    if made.root.exists():
        teardown.take_down(made)


Stranger = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    """`stranger(cwd=…, env=…)`: a process without terminal that the testbed did not start."""
    with ExitStack() as stack:

        def begin(**options: object) -> subprocess.Popen[bytes]:
            begun: subprocess.Popen[bytes] = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True, **options)  # type: ignore[call-overload]  # Popen's own
            stack.enter_context(begun)  # which waits
            stack.callback(begun.kill)  # before
            return begun

        yield begin


def identity(pid: int) -> processes.ProcessIdentity:
    stat = processes.read_stat(pid)
    assert stat is not None
    return processes.ProcessIdentity(pid, stat.start_ticks)


def alone(layout: StateLayout, record: Record) -> list[int]:
    """What is found when the server was killed."""
    wait_until(lambda: len(ours(layout)) == 2, "server and child")
    processes.send(record.identity, signal.SIGKILL)
    processes.wait_gone([record.identity], 30)
    return ours(layout)


def test_what_is_started_carries_the_mark_of_its_folder_and_hands_it_down(layout: StateLayout) -> None:
    start_family(layout)
    wait_until(lambda: len(ours(layout)) == 2, "server and child")
    assert [processes.environment_entry(pid, MARK) for pid in ours(layout)] == [claim.identity(layout)] * 2


def test_a_child_that_outlived_its_server_still_belongs_and_a_stranger_does_not(layout: StateLayout, stranger: Stranger) -> None:
    other = stranger(cwd=layout.root)
    left = alone(layout, start_family(layout))
    assert len(left) == 1
    assert other.pid not in left


@pytest.mark.parametrize("environ", [None, {}, {MARK: "of another deployment"}])
def test_a_stranger_who_works_in_the_folder_is_not_ours(layout: StateLayout, stranger: Stranger, environ: dict[str, str] | None) -> None:
    """A job without terminal, one without environment, and one of another deployment in another folder."""
    stranger(cwd=layout.root if environ else layout.run, env=environ)
    assert ours(layout) == []


@pytest.mark.parametrize("argument", ["log", "elsewhere"])
def test_a_retitled_worker_is_found_by_session_while_anything_marked_lives_and_by_its_record_or_log_after(
    layout: StateLayout, argument: str
) -> None:
    record = start(layout, command=[sys.executable, "-c", RETITLED, argument])
    wait_until(lambda: len(ours(layout)) == 2, "server and worker")
    worker = next(pid for pid in ours(layout) if pid != record.pid)
    wait_until(lambda: processes.command_line(worker) == ["VLLM::Worker", "600"], "its title")
    assert processes.is_wiped(worker)
    assert alone(layout, record) == [worker]
    records.remove(layout.records, record.name)
    assert ours(layout) == ([worker] if argument == "log" else [])
    records.write(layout.records, record)
    assert teardown.take_down(layout).pids == (worker,)


def test_a_descendant_that_left_session_folder_and_environment_is_ours(layout: StateLayout) -> None:
    record = start(layout, command=[sys.executable, "-c", RUNAWAY])
    wait_until(lambda: len(ours(layout)) == 2, "server and child")
    child = next(pid for pid in ours(layout) if pid != record.pid)
    wait_until(lambda: processes.working_directory(child) == "/" and processes.is_wiped(child), "the runaway")
    assert ours(layout) == sorted([record.pid, child])


def test_a_process_between_its_session_and_its_record_is_ours(layout: StateLayout) -> None:
    os.mkfifo(layout.log("server"))  # opening it waits for a reader
    command = [sys.executable, "-m", STARTER, str(layout.records), '{"name": "server"}', "mark", str(layout.log("server")), "sleep", "600"]
    with subprocess.Popen(command, cwd=layout.run) as starter:
        wait_until(lambda: len(ours(layout)) == 1, "the starter's child")
        assert ours(layout) != [starter.pid], "which is in the session of whoever called it"
        assert records.read_all(layout.records) == []
        teardown.take_down(layout)
        assert starter.wait(30) == 0
    assert ours(layout) == []


def test_processes_are_found_when_their_folder_was_removed(layout: StateLayout) -> None:
    start_family(layout)
    wait_until(lambda: len(ours(layout)) == 2, "server and child")
    pids = ours(layout)
    shutil.rmtree(layout.root)
    assert ours(layout) == pids
    assert teardown.take_down(layout).pids == tuple(pids)
    assert not layout.root.exists()


def test_a_copy_of_the_folder_owns_nothing_of_what_runs_in_the_first(layout: StateLayout, tmp_path: Path) -> None:
    record = start(layout)
    copy = StateLayout(tmp_path / "copy")
    shutil.copytree(layout.root, copy.root)
    assert ours(copy) == []
    assert teardown.take_down(copy).pids == ()
    assert record.lives
    assert ours(layout) == [record.pid]


@pytest.mark.parametrize("inside", [True, False])
def test_a_record_that_was_edited_makes_nobody_ours(layout: StateLayout, stranger: Stranger, inside: bool) -> None:
    other = identity(stranger(cwd=layout.run if inside else layout.root).pid)
    for role in ("engine", "exporter"):
        records.write(layout.records, Record("server", role, other.pid, other.start_ticks, 0.0))
        assert ours(layout) == []
        assert teardown.take_down(layout).pids == ()
        assert processes.is_alive(other)
        claim.make(layout)


def test_a_server_that_an_earlier_version_started_is_ours_by_record_and_log(layout: StateLayout, stranger: Stranger) -> None:
    """It had no mark."""
    with layout.log("server").open("w") as log:
        server = identity(stranger(cwd=layout.run, stdout=log).pid)
    assert ours(layout) == []
    record = Record("server", "engine", server.pid, server.start_ticks, 0.0)
    records.write(layout.records, replace(record, boot="another"))
    assert ours(layout) == [], "the pid is of another boot"
    records.write(layout.records, record)
    assert ours(layout) == [server.pid]


def test_a_shell_with_a_terminal_in_the_folder_is_not_ours(layout: StateLayout) -> None:
    pid, terminal = os.forkpty()
    if pid == 0:
        os.chdir(layout.run)
        os.execvpe("sleep", ["sleep", "600"], {})
    try:
        wait_until(lambda: processes.command_line(pid) == ["sleep", "600"], "the shell's stand-in")
        records.write(layout.records, Record("server", "engine", pid, identity(pid).start_ticks, 0.0))
        assert ours(layout) == []
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)


def test_who_called_is_kept() -> None:
    assert {os.getpid(), os.getppid()} <= ownership.kept(processes.all_stats())
