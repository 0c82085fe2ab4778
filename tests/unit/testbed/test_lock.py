"""One changer at a time."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from poise.testbed import lock, processes
from poise.testbed.errors import TestbedError
from poise.testbed.processes import ProcessIdentity

HOLD = "import pathlib, sys, time\nfrom poise.testbed import lock\nwith lock.held(pathlib.Path(sys.argv[1]), 'holding'):\n    print('held', flush=True); time.sleep(600)"


def test_a_second_holder_is_told_who_the_first_is(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock.held(path, "poise testbed up tp"):
        found = lock.holder(path)
        assert found is not None
        assert found.identity is not None
        assert (found.identity.pid, found.purpose) == (os.getpid(), "poise testbed up tp")
        with pytest.raises(TestbedError, match=rf"process {os.getpid()} \(poise testbed up tp\)"), lock.held(path, "again"):
            pytest.fail("held twice")
    assert lock.holder(path) is None
    with lock.held(path, "again"):
        pass


def test_the_kernel_takes_the_lock_of_a_killed_holder_back(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert lock.holder(path) is not None
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with lock.held(path, "mine", timeout=30):
        pass


def test_nobody_holds_what_was_never_made(tmp_path: Path) -> None:
    assert lock.holder(tmp_path / "lock") is None


@pytest.fixture
def bystander() -> Iterator[ProcessIdentity]:
    """A process that holds nothing."""
    with subprocess.Popen(["sleep", "600"]) as process:
        stat = processes.read_stat(process.pid)
        assert stat is not None
        yield ProcessIdentity(stat.pid, stat.start_ticks)
        process.kill()


def test_a_note_that_names_somebody_else_is_not_believed(tmp_path: Path, bystander: ProcessIdentity) -> None:
    path = tmp_path / "lock"
    with lock.held(path, "mine"):
        (tmp_path / "lock.holder.json").write_text(
            json.dumps({"pid": bystander.pid, "start_ticks": bystander.start_ticks, "purpose": "poise testbed up"})
        )
        found = lock.holder(path)
        assert found is not None
        assert found.identity == processes.own_identity()
        assert found.purpose is None


def test_a_holder_that_left_no_note_is_named_as_a_process_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(TestbedError, match=rf"^process {os.getpid()} is working"), lock.held(path, "again"):
            pytest.fail("held twice")


def test_nothing_says_who_held_the_lock_once_it_is_free(tmp_path: Path) -> None:
    with lock.held(tmp_path / "lock", "mine"):
        assert (tmp_path / "lock.holder.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock"]


def test_a_lock_that_can_be_no_file_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(TestbedError, match=r"lock cannot be used as a lock: No such file"),
        lock.held(tmp_path / "nowhere" / "lock", "mine"),
    ):
        pytest.fail("held nothing")
