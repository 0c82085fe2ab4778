"""The plan of a deployment on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from poise.testbed import plan
from poise.testbed.errors import TestbedError
from poise.testbed.plan import DeploymentPlan, EnginePlan, RouterPlan

PLAN = DeploymentPlan(
    shape="tp",
    build="cpu",
    environment=Path("/cache/vllm-cpu-1"),
    model="tiny",
    served_name="tiny-qwen2",
    simulated_cards=2,
    engines=(EnginePlan("server", 8000, 2, None, ("--max-num-seqs=2",)), EnginePlan("other", 8001, 1, "1", ())),
    exporter_port=9747,
    fault="one-card",
)
SPLIT = replace(
    PLAN,
    shape="pd",
    engines=(
        EnginePlan("prefill", 8100, 1, "0", (), "prefill", "NixlConnector", 5600),
        EnginePlan("decode", 8200, 1, "1", (), "decode", "NixlConnector", 5700),
    ),
    fault=None,
    router=RouterPlan("router", "vllm-router", 8000, 29000),
    healthy=(),
)


#: Under the fault one-card: what runs is not what was brought up.
BROKEN = replace(PLAN, engines=(replace(PLAN.engines[0], tensor_parallel_size=1), PLAN.engines[1]))
STAGES = replace(PLAN, engines=(replace(PLAN.engines[0], pipeline_parallel_size=2),), healthy=())


@pytest.mark.parametrize("written", [PLAN, SPLIT, BROKEN, STAGES], ids=["tp", "pd", "under a fault", "pp"])
def test_a_plan_is_read_as_it_was_written(tmp_path: Path, written: DeploymentPlan) -> None:
    plan.write(tmp_path / "deployment.json", written)
    assert plan.read(tmp_path / "deployment.json") == written


def test_what_was_brought_up_is_kept_while_a_fault_changes_what_runs() -> None:
    assert PLAN.healthy == PLAN.engines
    assert BROKEN.healthy == PLAN.engines != BROKEN.engines
    assert STAGES.healthy[0].gpus == 4


def test_requests_go_to_the_router_and_without_one_to_the_first_server() -> None:
    assert (PLAN.url, SPLIT.url) == ("http://127.0.0.1:8000", "http://127.0.0.1:8000")
    assert replace(SPLIT, router=RouterPlan("router", "vllm-router", 8010, 29000)).url == "http://127.0.0.1:8010"


def test_without_a_plan_there_is_no_deployment(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="start one with `poise testbed up tp`"):
        plan.read(tmp_path / "deployment.json")


@pytest.mark.parametrize("text", ["", '{"sha', "[]", "\x00", "[" * 200_000])
def test_a_damaged_plan_is_told_from_none_and_the_way_out_is_down(tmp_path: Path, text: str) -> None:
    (tmp_path / "deployment.json").write_text(text)
    with pytest.raises(TestbedError, match=r"deployment.json cannot be read \(damaged\?\): `poise testbed down`"):
        plan.read(tmp_path / "deployment.json")


def test_a_folder_in_the_place_of_the_plan_is_a_damaged_one(tmp_path: Path) -> None:
    (tmp_path / "deployment.json").mkdir()
    with pytest.raises(TestbedError, match=r"deployment.json cannot be read"):
        plan.read(tmp_path / "deployment.json")


def test_a_lost_plan_of_what_is_recorded_is_told_from_none(tmp_path: Path) -> None:
    (tmp_path / "processes").mkdir()
    (tmp_path / "processes" / "server.json").touch()
    with pytest.raises(TestbedError, match=r"deployment.json is gone, but there are records of its processes: `poise testbed down`"):
        plan.read(tmp_path / "deployment.json")


@pytest.mark.parametrize("text", ['{"shape": "tp"}', '{"shape": 1, "build": "cpu", "engines": []}', '{"build": "x"}'])
def test_a_plan_of_another_version_says_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "deployment.json").write_text(text)
    with pytest.raises(TestbedError, match="was written by another version"):
        plan.read(tmp_path / "deployment.json")
