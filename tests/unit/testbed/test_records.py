"""Records on disk, and which processes count as a deployment's own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from poise.testbed import processes, records, teardown
from poise.testbed.records import Record

from tests.unit.testbed.deployments import layout_in, ours, start_family
from tests.waiting import wait_until

RECORD = Record("server", "engine", 4242, 98765, 1.5, {"url": "http://127.0.0.1:8000"})


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    records.write(tmp_path, RECORD)
    assert records.read_all(tmp_path) == [RECORD]
    records.remove(tmp_path, "server")
    records.remove(tmp_path, "server")
    assert records.read_all(tmp_path) == []


def test_a_folder_that_is_not_there_holds_no_records(tmp_path: Path) -> None:
    assert records.read_all(tmp_path / "nothing") == []


def test_damaged_and_foreign_files_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_text('{"name": "server", "ro')
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "role.json").write_text('{"name": "x", "role": "king", "pid": 1, "start_ticks": 1}')
    records.write(tmp_path, RECORD)
    assert records.read_all(tmp_path) == [RECORD]


def test_a_child_that_outlived_its_server_still_belongs_and_a_stranger_does_not(tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    record = start_family(layout)
    with subprocess.Popen(["sleep", "600"], cwd=tmp_path) as stranger:
        wait_until(lambda: len(ours(layout)) == 2, "server and child")
        processes.end([record.identity], grace=0)
        wait_until(lambda: len(ours(layout)) == 1, "the child alone")
        assert stranger.pid not in ours(layout)
        stranger.kill()
    teardown.take_down(layout)


def test_a_shell_with_a_terminal_in_the_folder_is_not_ours(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    pid, terminal = os.forkpty()
    if pid == 0:
        os.chdir(run)
        os.execvp("sleep", ["sleep", "600"])
    try:
        wait_until(lambda: processes.command_line(pid) == ["sleep", "600"], "the shell's stand-in")
        assert processes.working_directory(pid) == str(run)
        assert records.belonging(processes.all_stats(), run, keep=set()) == []
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)
