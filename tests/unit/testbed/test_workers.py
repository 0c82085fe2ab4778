"""Ranks from process titles, cards from CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.testbed import processes, workers
from poise.testbed.processes import ProcessIdentity
from poise.testbed.workers import Worker

from tests.fake_proc import FakeProc

UUIDS = ("GPU-af49eae4-a841", "GPU-152456fc-616e", "GPU-af49eae5-0000")


@pytest.mark.parametrize(
    ("title", "size", "rank", "stages"),
    [
        ("VLLM::Worker_TP0", 2, 0, 1),
        ("VLLM::Worker_TP1", 2, 1, 1),
        ("VLLM::Worker_PP1_TP0", 2, 2, 2),
        ("VLLM::Worker_PP1", 1, 1, 2),
        ("VLLM::Worker", 1, 0, 1),
        ("VLLM::Worker", 2, None, 1),
        ("lab::Worker_TP1_EP1", 2, 1, 1),
        ("VLLM::EngineCore", 1, None, 1),
        ("/env/bin/python /env/bin/vllm serve VLLM::Worker_TP0", 2, None, 1),
        ("", 1, None, 1),
        ("VLLM::Worker", 1, None, 2),
        ("VLLM::Worker_TP0", 2, None, 2),
        ("VLLM::Worker_PP0_TP1", 2, 1, 2),
        ("VLLM::Worker_PP0", 1, 0, 2),
    ],
)
def test_the_rank_is_in_the_title(title: str, size: int, rank: int | None, stages: int) -> None:
    assert workers.local_rank_of(title, size, stages) == rank


@pytest.mark.parametrize(
    ("value", "visible"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("0", [0]),
        ("1,0", [1, 0]),
        (" 1 , 2 ", [1, 2]),
        ("0,2,-1,1", [0, 2]),
        ("0,7,1", [0]),
        ("0,0", []),
        ("GPU-1", [1]),
        ("GPU-af49eae4", [0]),
        ("GPU-af49eae", []),
        ("1,GPU-af49eae5-0000", [1, 2]),
        ("MIG-1", []),
        ("0,\N{SUPERSCRIPT ONE}", [0]),
        ("0,\N{ARABIC-INDIC DIGIT ONE}", [0]),
        ("1," + 5000 * "1", [1]),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(value: str | None, visible: list[int]) -> None:
    assert workers.visible_devices(value, UUIDS) == visible


@given(st.text(max_size=40))
def test_visible_devices_are_always_different_cards_that_exist(value: str) -> None:
    found = workers.visible_devices(value, UUIDS)
    assert len(set(found)) == len(found)
    assert set(found) <= {0, 1, 2}


def test_rank_n_sits_on_the_nth_visible_card_and_a_rank_beyond_them_on_none() -> None:
    ranks = [Worker(ProcessIdentity(100 + rank, 1), f"VLLM::Worker_TP{rank}", rank) for rank in range(3)]
    assert {card: worker.pid for card, worker in workers.cards_of(ranks, [1, 0]).items()} == {1: 100, 0: 101}


def test_workers_of_data_parallel_ranks_sit_behind_those_of_the_ranks_before(tmp_path: Path) -> None:
    """As vLLM's CPU build names them: without a rank of their own (recorded: dp2-proctree.txt)."""
    proc = FakeProc(tmp_path)
    proc.add(10, ["/env/bin/python", "/env/bin/vllm", "serve", "tiny", "--data-parallel-size", "2"])
    for rank in (0, 1):
        proc.add(20 + rank, f"VLLM::EngineCore_DP{rank}".encode() + b"\0\0", ppid=10)
        proc.add(40 - rank, b"VLLM::Worker\0\0", ppid=20 + rank)
    found = workers.workers_of(10, 1, processes.all_stats(tmp_path), tmp_path)
    assert [(worker.pid, worker.local_rank) for worker in found] == [(40, 0), (39, 1)]
    assert workers.local_rank_of("VLLM::Worker_DP1_PP1_TP0", 2, 2) == 6


def test_workers_are_found_below_their_server_alone(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.add(10, ["/env/bin/python", "/env/bin/vllm", "serve", "tiny"])
    proc.add(11, b"VLLM::EngineCore\0\0\0\0", ppid=10)
    proc.add(13, b"VLLM::Worker_TP1\0\0\0\0", ppid=11)
    proc.add(12, b"VLLM::Worker_TP0\0\0\0\0", ppid=11)
    proc.add(14, b"VLLM::Worker_TP1\0\0\0\0", ppid=11, state="Z")
    proc.add(22, b"VLLM::Worker_TP0\0\0\0\0", ppid=20)
    found = workers.workers_of(10, 2, processes.all_stats(tmp_path), tmp_path)
    assert [(worker.pid, worker.local_rank) for worker in found] == [(12, 0), (13, 1)]


def test_stages_lie_on_the_cards_one_behind_the_other_with_their_ranks_side_by_side(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.add(10, ["/env/bin/python", "/env/bin/vllm", "serve", "tiny"])
    for pid, title in ((11, "PP0_TP0"), (12, "PP0_TP1"), (13, "PP1_TP0"), (14, "PP1_TP1")):
        proc.add(pid, f"VLLM::Worker_{title}\0\0".encode(), ppid=10)
    found = workers.workers_of(10, 2, processes.all_stats(tmp_path), tmp_path, pipeline_parallel_size=2)
    assert {card: worker.pid for card, worker in workers.cards_of(found, [3, 2, 1, 0]).items()} == {3: 11, 2: 12, 1: 13, 0: 14}
