"""Engines over several nodes: each node's own process table gives the same engine, with the ranks that belong there."""

from __future__ import annotations

from pathlib import Path

import pytest
from poise.exporter import metrics as m
from poise.exporter.engines.source import EngineSource
from poise.exporter.ownership import join
from poise.exporter.snapshot import Engine

from tests.fake_proc import FakeProc

SERVE = ["python3", "/usr/bin/vllm", "serve", "m"]


def node(root: Path, name: str, flags: str, workers: list[str]) -> Engine:
    """The only engine of a node, as its exporter sees it."""
    fake = FakeProc(root / name)
    fake.add(100, [*SERVE, *flags.split()], environment={})
    fake.add(101, ["VLLM::EngineCore"], ppid=100)
    for number, title in enumerate(workers):
        fake.add(110 + number, [title], ppid=101)
    source = EngineSource(name, proc_root=fake.root, interval=60.0)
    source.scan_once()
    observed = source.latest().engines
    source.stop()
    (engine,) = join([], observed, lambda pid: "").engines
    return engine


def sizes(engine: Engine) -> tuple[float | None, float | None, int]:
    """World, local world, and ranks found here."""
    world = engine.readings[m.ENGINE_WORLD_SIZE][()]
    return world, engine.readings.get(m.ENGINE_LOCAL_WORLD_SIZE, {}).get(()), len(engine.observed.ranks)


def test_tensor_parallel_over_two_nodes(tmp_path: Path) -> None:
    group = "-tp 4 --nnodes 2 --master-addr 10.0.0.1"
    first = node(tmp_path, "node-a", f"{group} --node-rank 0 --port 9000", ["VLLM::Worker_TP0", "VLLM::Worker_TP1"])
    second = node(tmp_path, "node-b", f"{group} --node-rank 1 --headless --port 9000", ["VLLM::Worker_TP2", "VLLM::Worker_TP3"])
    assert first.identity == second.identity
    assert first.identity.engine == "10.0.0.1:9000"
    assert sizes(first) == sizes(second) == (4, 2, 2)
    assert [rank.tp_rank for rank in second.observed.ranks] == [2, 3]
    assert first.observed.url == "http://127.0.0.1:9000"
    assert (second.observed.url, m.ENGINE_UP in second.readings) == (None, False)
    assert second.readings[m.ENGINE_PROCESS_UP] == {(): 1}


def test_pipeline_parallel_over_two_nodes(tmp_path: Path) -> None:
    group = "-tp 2 -pp 2 --nnodes 2 --master-addr 10.0.0.1"
    first = node(tmp_path, "node-a", f"{group} --node-rank 0", ["VLLM::Worker_PP0_TP0", "VLLM::Worker_PP0_TP1"])
    second = node(tmp_path, "node-b", f"{group} --node-rank 1 --headless", ["VLLM::Worker_PP1_TP0", "VLLM::Worker_PP1_TP1"])
    assert first.identity.engine == second.identity.engine == "10.0.0.1:8000"
    assert sizes(first) == sizes(second) == (4, 2, 2)


def test_data_parallel_over_two_nodes_with_one_api(tmp_path: Path) -> None:
    group = "-dp 4 -dpl 2 -tp 2 --data-parallel-address 10.0.0.1 --data-parallel-rpc-port 13345"
    ranks = [f"VLLM::Worker_DP{dp}_TP{tp}" for dp in range(4) for tp in range(2)]
    first = node(tmp_path, "node-a", group, ranks[:4])
    second = node(tmp_path, "node-b", f"{group} --headless --data-parallel-start-rank 2", ranks[4:])
    assert first.identity == second.identity
    assert sizes(first) == sizes(second) == (8, 4, 4)
    assert [rank.dp_rank for rank in second.observed.ranks] == [2, 2, 3, 3]


def test_a_first_node_that_only_has_the_api(tmp_path: Path) -> None:
    group = "-dp 2 --data-parallel-address 10.0.0.1"
    first = node(tmp_path, "node-a", f"{group} -dpl 0", [])
    second = node(tmp_path, "node-b", f"{group} -dpl 2 --headless", ["VLLM::Worker_DP0", "VLLM::Worker_DP1"])
    assert first.identity == second.identity
    assert (sizes(first)[:2], sizes(second)) == ((2, 0), (2, 2, 2))


@pytest.mark.parametrize("balanced", ["--data-parallel-hybrid-lb", "--data-parallel-start-rank 2"])
def test_data_parallel_nodes_with_an_api_each_are_engines_of_their_own(tmp_path: Path, balanced: str) -> None:
    group = f"-dp 4 -dpl 2 --data-parallel-address 10.0.0.1 {balanced}"
    second = node(tmp_path, "node-b", group, ["VLLM::Worker_DP2", "VLLM::Worker_DP3"])
    assert second.identity.engine == "node-b:8000"
    assert sizes(second) == (4, 2, 2)


def test_ray_places_ranks_where_it_likes(tmp_path: Path) -> None:
    engine = node(tmp_path, "node-a", "-tp 8 --distributed-executor-backend ray", [])
    assert sizes(engine)[:2] == (8, None)
