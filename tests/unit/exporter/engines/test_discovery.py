"""Engines found in process trees that were recorded from real deployments, and in trees that are no engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from poise.exporter.engines.discovery import FoundEngine, find_engines
from poise.exporter.engines.table import ProcessTable
from poise.exporter.procfs import ProcFs

from tests.fake_proc import FakeProc
from tests.recorded import INFO


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def found(fake: FakeProc) -> tuple[FoundEngine, ...]:
    return find_engines(ProcessTable(ProcFs(fake.root, ticks_per_second=100)).scan())


def ranks(engine: FoundEngine) -> list[tuple[int, int | None, int | None, int | None]]:
    return [(rank.pid, rank.dp_rank, rank.pp_rank, rank.tp_rank) for rank in engine.ranks]


def test_tensor_parallel_workers_are_the_ranks(fake: FakeProc) -> None:
    fake.replay(INFO / "tp2-proctree.txt")
    (engine,) = found(fake)
    assert engine.key.pid == 2765
    assert engine.config.tensor_parallel_size == 2
    assert ranks(engine) == [(2985, None, None, 0), (2986, None, None, 1)]
    assert engine.pids == {2765, 2885, 2886, 2985, 2986}
    assert engine.listeners == (2765,)


def test_prefill_and_decode_are_two_engines_and_the_router_none(fake: FakeProc) -> None:
    fake.replay(INFO / "hybrid-proctree.txt")
    prefill, decode = found(fake)
    assert (prefill.config.kv_role, prefill.config.port, len(prefill.ranks)) == ("kv_producer", 18100, 2)
    assert (decode.config.kv_role, decode.config.port, len(decode.ranks)) == ("kv_consumer", 18200, 1)
    assert not prefill.pids & decode.pids


def test_workers_below_a_data_parallel_core_have_its_rank(fake: FakeProc) -> None:
    fake.replay(INFO / "dp2-proctree.txt")
    (engine,) = found(fake)
    assert ranks(engine) == [(21932, 0, None, None), (21939, 1, None, None)]
    assert engine.listeners == (21800, 21865, 21866)
    assert engine.config.data_parallel_size == 2


@pytest.mark.parametrize("name", ["api2", "dp2api1", "pd", "tp2", "hybrid", "dp2"])
def test_every_recorded_tree_has_its_engines_once(fake: FakeProc, name: str) -> None:
    fake.replay(INFO / f"{name}-proctree.txt")
    engines = found(fake)
    assert len(engines) == (2 if name in ("pd", "hybrid") else 1)
    assert all(len(engine.ranks) == engine.config.world_size for engine in engines)


def test_on_a_gpu_with_one_rank_the_core_has_the_card(fake: FakeProc) -> None:
    fake.add(10, ["vllm", "serve", "m"])
    fake.add(11, ["VLLM::EngineCore"], ppid=10)
    (engine,) = found(fake)
    assert ranks(engine) == [(11, None, None, None)]


def test_each_core_of_a_data_parallel_gpu_server_has_a_card(fake: FakeProc) -> None:
    fake.add(10, ["vllm", "serve", "m", "-dp", "2"])
    fake.add(11, ["VLLM::EngineCore_DP0"], ppid=10)
    fake.add(12, ["VLLM::EngineCore_DP1"], ppid=10)
    (engine,) = found(fake)
    assert ranks(engine) == [(11, 0, None, None), (12, 1, None, None)]


def test_a_core_whose_workers_are_yet_to_come_is_no_rank(fake: FakeProc) -> None:
    fake.add(10, ["vllm", "serve", "m", "-tp", "2"])
    fake.add(11, ["VLLM::EngineCore"], ppid=10)
    (engine,) = found(fake)
    assert engine.ranks == ()


def test_a_shell_around_a_server_does_not_count_it_twice(fake: FakeProc) -> None:
    fake.add(9, ["bash", "-c", "vllm serve m --port 8000 | tee log"])
    fake.add(10, ["python3", "/usr/bin/vllm", "serve", "m", "--port", "8000"], ppid=9)
    fake.add(12, ["tee", "log"], ppid=9)
    (engine,) = found(fake)
    assert engine.pids == {10}


def test_children_that_have_no_title_yet_are_part_of_their_server(fake: FakeProc) -> None:
    fake.add(10, ["vllm", "serve", "m", "-tp", "2"])
    fake.add(11, ["vllm", "serve", "m", "-tp", "2"], ppid=10)
    fake.add(12, ["vllm", "serve", "m", "-tp", "2"], ppid=11)
    (engine,) = found(fake)
    assert engine.key.pid == 10
    assert engine.pids == {10, 11, 12}


def test_titled_processes_without_a_server_are_nobodys(fake: FakeProc) -> None:
    fake.add(11, ["VLLM::EngineCore"])
    fake.add(12, ["VLLM::Worker_TP0"], ppid=11)
    assert found(fake) == ()


def test_editors_and_searches_are_no_engines(fake: FakeProc) -> None:
    fake.add(10, ["vim", "vllm", "serve"])
    fake.add(11, ["grep", "-r", "vllm serve"])
    fake.add(12, ["bash", "-c", "while sleep 1; do vllm serve m; done"])
    assert found(fake) == ()


def test_parents_that_go_round_in_circles_end(fake: FakeProc) -> None:
    fake.add(10, ["a"], ppid=11)
    fake.add(11, ["b"], ppid=10)
    fake.add(12, ["vllm", "serve", "m"], ppid=12)
    (engine,) = found(fake)
    assert engine.pids == {12}


def test_sizes_that_only_a_file_sets_are_read_from_the_titles(fake: FakeProc) -> None:
    fake.add(10, ["vllm", "serve", "--config", "/etc/vllm.yaml"])
    fake.add(11, ["VLLM::EngineCore"], ppid=10)
    for rank in range(4):
        fake.add(20 + rank, [f"VLLM::Worker_TP{rank}"], ppid=11)
    (engine,) = found(fake)
    assert engine.config.tensor_parallel_size == 4
    assert len(engine.ranks) == 4
