"""The keeper takes a deployment down when its launcher ends, unless it was told to keep it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from poise.testbed import deployment, processes, records, teardown
from poise.testbed.paths import StateLayout

from tests.unit.testbed.deployments import layout_in, ours
from tests.waiting import wait_until

# A launcher: the keeper first, then a server, then the end that the test wants.
LAUNCHER = """
import os, pathlib, signal, sys, time
from poise.testbed import deployment
from poise.testbed.paths import StateLayout
from tests.unit.testbed.deployments import start_family
layout = StateLayout(pathlib.Path(sys.argv[1]))
made = deployment.Deployment(layout, os.environ, deployment.start_keeper(layout, os.environ))
start_family(layout)
if sys.argv[2] == "split":
    start_family(layout, "decode")
    start_family(layout, "router", "router")
if sys.argv[2] == "release":
    made.release()
print("up", flush=True)
if sys.argv[2] == "down":
    made.down(lambda text: print(text, flush=True))
time.sleep(600)
"""


def launch(layout: StateLayout, ending: str) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, "-c", LAUNCHER, str(layout.root), ending]
    launcher = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE)
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == b"up\n"
    return launcher


@pytest.mark.parametrize(("number", "parts", "count"), [(signal.SIGKILL, "split", 7), (signal.SIGTERM, "hold", 3)])
def test_everything_ends_when_the_launcher_is_killed(tmp_path: Path, number: signal.Signals, parts: str, count: int) -> None:
    layout = layout_in(tmp_path)
    with launch(layout, parts) as launcher:
        wait_until(lambda: len(ours(layout)) == count, "keeper, servers and their children")
        launcher.send_signal(number)
        launcher.wait()
        wait_until(lambda: ours(layout) == [] and not layout.records.exists(), "nothing of the deployment")
    assert "taking everything down" in layout.log("keeper").read_text()


# Holds the lock of a deployment and does not let itself be asked to leave.
STUBBORN = """
import pathlib, signal, sys, time
from poise.testbed import lock
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with lock.held(pathlib.Path(sys.argv[1]), "stubborn"):
    print("locked", flush=True)
    time.sleep(600)
"""


def test_taking_down_that_is_interrupted_half_way_is_finished_by_the_keeper(tmp_path: Path) -> None:
    """A second Ctrl-C while the first one's cleaning up waits for somebody else."""
    layout = layout_in(tmp_path)
    with subprocess.Popen([sys.executable, "-c", STUBBORN, str(layout.lock)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with launch(layout, "down") as launcher:
            assert launcher.stdout is not None
            assert launcher.stdout.readline() == f"stopping process {holder.pid} (stubborn)\n".encode()
            launcher.send_signal(signal.SIGINT)
            assert launcher.wait() != 0
        assert len(ours(layout)) == 3
        holder.kill()
    wait_until(lambda: ours(layout) == [] and not layout.records.exists(), "nothing of the deployment")


def test_a_released_deployment_outlives_its_launcher(tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    with launch(layout, "release") as launcher:
        wait_until(lambda: [record.name for record in records.read_all(layout.records)] == ["server"], "the keeper's end")
        launcher.kill()
        launcher.wait()
    assert records.read_all(layout.records)[0].lives
    teardown.take_down(layout)


def test_what_a_killed_launcher_and_a_killed_keeper_left_is_found_by_down(tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    with launch(layout, "hold") as launcher:
        keeper = next(record for record in records.read_all(layout.records) if record.name == "keeper")
        processes.send(keeper.identity, signal.SIGKILL)
        launcher.kill()
        launcher.wait()
    wait_until(lambda: len(ours(layout)) == 2, "server and child")
    teardown.take_down(layout)
    assert ours(layout) == []


def test_a_keeper_that_can_write_nothing_ends_everything_all_the_same(tmp_path: Path) -> None:
    """As on a full disk: a write beyond the limit raises EFBIG (setrlimit(2))."""
    layout = layout_in(tmp_path)
    with launch(layout, "hold") as launcher:
        wait_until(lambda: len(ours(layout)) == 3, "keeper, server and child")
        keeper = next(record for record in records.read_all(layout.records) if record.name == "keeper")
        resource.prlimit(keeper.pid, resource.RLIMIT_FSIZE, (0, 0))
        launcher.kill()
        launcher.wait()
        wait_until(lambda: ours(layout) == [] and not layout.records.exists(), "nothing of the deployment")
    assert layout.log("keeper").read_text() == ""


@pytest.mark.parametrize("killed", [True, False])
def test_a_deployment_that_was_released_has_no_keeper_even_if_it_was_killed(tmp_path: Path, killed: bool) -> None:
    layout = layout_in(tmp_path)
    made = deployment.Deployment(layout, os.environ, deployment.start_keeper(layout, os.environ))
    (keeper,) = records.read_all(layout.records)
    if killed:
        processes.send(keeper.identity, signal.SIGKILL)
        processes.wait_gone([keeper.identity], 30)
    made.release()
    assert records.read_all(layout.records) == []
    assert not keeper.lives
    teardown.take_down(layout)
