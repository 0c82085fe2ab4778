"""One changer at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from poise.testbed import lock
from poise.testbed.errors import TestbedError

HOLD = "import pathlib, sys, time\nfrom poise.testbed import lock\nwith lock.held(pathlib.Path(sys.argv[1]), 'holding'):\n    print('held', flush=True); time.sleep(600)"


def test_a_second_holder_is_told_who_the_first_is(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock.held(path, "poise testbed up tp"):
        found = lock.holder(path)
        assert found is not None
        assert (found[0].pid, found[1]) == (os.getpid(), "poise testbed up tp")
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
