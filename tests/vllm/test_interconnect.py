"""`poise testbed interconnect` with the real torch of vLLM's environment: gloo over loopback, measured, kept, and nothing left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from poise.exporter import interconnect_results as results
from poise.testbed import environment, hardware, paths, processes
from poise.testbed.errors import TestbedError
from poise.testbed.interconnect import allreduce
from poise.testbed.interconnect.measuring import Wanted, measure

from tests.waiting import wait_until

SECONDS = 180.0

pytestmark = pytest.mark.skipif(hardware.has_nvidia_driver(), reason="with GPUs the cards are measured, not loopback")


@pytest.fixture(scope="module")
def python() -> Path:
    made = environment.install("cpu", paths.cache_directory(os.environ), (), lambda *_, **__: None, os.environ)
    return made.python


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "poise.cli", "testbed", "interconnect", *words]
    environ = {**os.environ, "POISE_STATE_DIR": str(folder)}
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ranks_below(pid: int) -> list[processes.ProcessIdentity]:
    """The program's processes that live below this one."""
    found = processes.descendants(pid, processes.all_stats())
    return [
        processes.ProcessIdentity(stat.pid, stat.start_ticks)
        for stat in found
        if stat.lives and any(word.endswith("allreduce.py") for word in processes.command_line(stat.pid)[:3])
    ]


def test_loopback_is_measured_and_kept_and_said_to_be_no_gpu(python: Path, tmp_path: Path) -> None:
    with start(tmp_path, "--sizes", "1K,256K", "--iterations", "3", "--json") as process:
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    shown = json.loads(out)
    (kept,) = results.read(tmp_path / "interconnect.json").measurements
    assert (kept.backend, kept.ranks, kept.cards, kept.path) == ("gloo", 2, (), "loopback")
    assert [size.size_bytes for size in kept.runs[0].sizes] == [1024, 256 * 1024]
    assert shown["runs"][0]["sizes"][1]["seconds"] == kept.runs[0].sizes[1].seconds
    assert shown["verdict"]["status"] == "unknown"
    assert "says nothing of NVLink" in shown["verdict"]["sentence"]
    assert "no GPU is measured" in err or "Through loopback" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_it_is_interrupted_or_killed(python: Path, tmp_path: Path, number: signal.Signals) -> None:
    before = set(os.listdir("/dev/shm"))
    with start(tmp_path, "--sizes", "64M", "--iterations", "10000") as process:
        wait_until(lambda: len(ranks_below(process.pid)) == 2, "both ranks", patience=SECONDS)
        ranks = ranks_below(process.pid)
        process.send_signal(number)
        _, err = process.communicate(timeout=SECONDS)
    assert processes.wait_gone(ranks, SECONDS) == []
    if number is signal.SIGINT:
        assert process.returncode == 130
        assert "nothing that it started is left running" in err
    assert not (tmp_path / "interconnect.json").exists()
    assert {name for name in set(os.listdir("/dev/shm")) - before if name.startswith("nccl-")} == set()


def test_shared_memory_that_a_killed_rank_left_is_removed(tmp_path: Path) -> None:
    """NCCL's segments as gloo does not make them: a stand-in for the program that holds one, and says so when it does."""
    name = f"nccl-poise-{os.getpid()}"
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nexec 9>/dev/shm/{name}\necho here\nsleep 3\nkill -9 $$\n")
    program.chmod(0o700)
    wanted = Wanted(program, ("GPU-0", "GPU-1"), (1024,), rounds=3, p2p="on")
    with pytest.raises(TestbedError, match="failed"):
        measure(wanted, os.environ, lambda *_, **__: None, lambda line: None)
    assert not Path("/dev/shm", name).exists()


def test_a_rank_that_is_killed_ends_the_measurement_with_its_name(python: Path) -> None:
    wanted = Wanted(python, (), (64 << 20,), rounds=10_000, p2p="none")

    def note(*_: object, **__: object) -> None:
        ranks = ranks_below(os.getpid())
        if len(ranks) == 2:
            processes.send(max(ranks, key=lambda rank: (rank.start_ticks, rank.pid)), signal.SIGKILL)

    with pytest.raises(TestbedError, match=r"rank [01]"):
        measure(wanted, os.environ, note, lambda line: None)


def test_a_wrong_sum_is_no_measurement(python: Path) -> None:
    """A collective that moves nothing, against the real torch."""
    code = f"""
import runpy, torch
class Idle:
    @staticmethod
    def all_reduce(tensor): pass
check = runpy.run_path({str(Path(allreduce.__file__))!r})["check_sum"]
try:
    check(torch, Idle, 100, 1, 2, torch.device("cpu"))
except ArithmeticError as error:
    print(error)
"""
    done = subprocess.run([str(python), "-I", "-c", code], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert done.stdout.strip().endswith("of 100 elements of the sum are wrong")
