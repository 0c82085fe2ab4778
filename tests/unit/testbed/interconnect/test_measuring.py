"""The all-reduce program as it is run and heard. The program itself runs in the stage vllm, where its torch is."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from poise.testbed.errors import TestbedError
from poise.testbed.interconnect import allreduce
from poise.testbed.interconnect.measuring import LEFT_OUT, Wanted, environment_of, measure

CARDS = ("GPU-b", "GPU-a")


def wanted(
    python: Path = Path("/venv/bin/python"), cards: tuple[str, ...] = (), p2p: str = "none", sizes: tuple[int, ...] = (1024,)
) -> Wanted:
    return Wanted(python, cards, sizes, rounds=3, p2p=p2p)


def test_cards_are_named_in_rank_order_and_only_the_second_run_goes_without_peer_to_peer() -> None:
    told = {"PATH": "/bin", "PYTHONPATH": "/x", "NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "3", **dict.fromkeys(LEFT_OUT, "1")}
    on, off = (environment_of(wanted(cards=CARDS, p2p=way), told) for way in ("on", "off"))
    assert on == {"PATH": "/bin", "NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a"}
    assert off == {**on, "NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}


def test_without_cards_it_stays_on_loopback_and_sees_none() -> None:
    assert environment_of(wanted(), {}) == {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def program(folder: Path, *lines: str, status: int = 0) -> Path:
    """Stands for the Python of vLLM's environment, and says these lines whatever it is told."""
    path = folder / "python"
    path.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines) + f"exit {status}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def say(**values: Any) -> str:
    return allreduce.MARK + json.dumps(values)


def heard(python: Path, sizes: tuple[int, ...] = (1024,)) -> tuple[Any, str, list[str], list[object]]:
    echoed: list[str] = []
    notes: list[object] = []
    run, library = measure(
        wanted(python, sizes=sizes), os.environ, lambda detail=None, fraction=None: notes.append((detail, fraction)), echoed.append
    )
    return run, library, echoed, notes


def test_rounds_become_median_and_spread_and_nccls_own_lines_are_passed_on(tmp_path: Path) -> None:
    python = program(
        tmp_path,
        say(library="2.27.3"),
        "host:1:1 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via P2P/CUMEM",
        "something of torch",
        say(size_bytes=1024, times=[3e-5, 1e-5, 2e-5, 9e-5]),
        say(size_bytes=4096, times=[4e-5]),
    )
    run, library, echoed, notes = heard(python, (1024, 4096))
    assert (library, run.p2p) == ("2.27.3", "none")
    assert [tuple(size) for size in run.sizes] == [(1024, 2.5e-5, 1e-5, 9e-5), (4096, 4e-5, 4e-5, 4e-5)]
    assert echoed == ["host:1:1 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via P2P/CUMEM"]
    assert ("4 KiB", 1.0) in notes


@pytest.mark.parametrize(
    ("lines", "status", "words"),
    [
        ([say(error="rank 1: OutOfMemoryError: CUDA out of memory. Tried")], 1, "the cards have no room"),
        ([say(error="rank 0: RuntimeError: No space left on device")], 1, "--ipc=host or --shm-size=1g"),
        ([say(error="rank 1: ArithmeticError: 3 of 9 elements of the sum are wrong")], 1, "3 of 9 elements of the sum are wrong"),
        (["ModuleNotFoundError: No module named torch"], 1, r"failed \(status 1\): ModuleNotFoundError"),
        ([], 0, "it said nothing"),
        (["poise-allreduce {half a li"], 0, "failed"),
        ([say(size_bytes=1024)], 0, "failed"),
    ],
)
def test_what_went_wrong_is_said_in_one_line(tmp_path: Path, lines: list[str], status: int, words: str) -> None:
    with pytest.raises(TestbedError, match=words) as raised:
        heard(program(tmp_path, *lines, status=status))
    assert "\n" not in str(raised.value)
