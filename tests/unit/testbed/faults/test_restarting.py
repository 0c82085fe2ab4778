"""Faults that restart a server, on a stand-in for `vllm` that answers every request: what it is started with, and that undoing brings it back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from poise.testbed import faults, plan, processes, teardown
from poise.testbed.deployment import Deployment
from poise.testbed.faults import requests, transfer
from poise.testbed.model import TINY, make_tiny
from poise.testbed.progress import Progress

from tests.monitoring import free_port
from tests.unit.testbed import stand_in
from tests.unit.testbed.deployments import layout_in
from tests.unit.testbed.test_plan import PLAN, SPLIT


def progress() -> Progress:
    return Progress("x", [], [], lambda: 0.0)


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment in which `vllm` is the stand-in."""
    folder = tmp_path / "cache" / "environment"
    stand_in.make(folder)
    return folder


def up(environment: Path, wanted: plan.DeploymentPlan, *running: str) -> Deployment:
    """A deployment by the plan of which these engines run; the router does not, so that nobody waits for it."""
    layout = layout_in(environment.parent.parent)
    engines = tuple(replace(engine, port=free_port()) for engine in wanted.engines)
    common = {"environment": environment, "simulated_cards": 0, "exporter_port": None, "fault": None, "healthy": ()}
    plan.write(layout.plan, replace(wanted, engines=engines, **common))  # type: ignore[arg-type]  # fields of the plan by name
    deployment = Deployment(layout, os.environ)
    for name in running:
        deployment.restart_engine(deployment.engine(name), None, progress())
    return deployment


@pytest.fixture
def tp(environment: Path) -> Iterator[Deployment]:
    deployment = up(environment, replace(PLAN, engines=PLAN.engines[:1], model="/models/qwen"), "server")
    yield deployment
    teardown.take_down(deployment.layout)


@pytest.fixture
def pd(environment: Path) -> Iterator[Deployment]:
    """Of which prefill runs."""
    deployment = up(environment, replace(SPLIT, model="/models/qwen"), "prefill")
    yield deployment
    teardown.take_down(deployment.layout)


def command_line(deployment: Deployment, name: str) -> list[str]:
    record = deployment.record(name)
    assert record is not None
    assert record.lives
    return processes.command_line(record.pid)


def environ(deployment: Deployment, name: str) -> dict[str, str]:
    record = deployment.record(name)
    assert record is not None
    return processes.environment(record.pid)


def test_a_small_cache_comes_with_clients_and_both_go(tp: Deployment) -> None:
    healthy = command_line(tp, "server")
    faults.apply(tp, faults.find("kv-exhausted"), progress())
    assert set(command_line(tp, "server")) - set(healthy) == {f"--num-gpu-blocks-override={requests.SMALL_CACHE_TOKENS // 128}"}
    clients = tp.record(requests.PROCESS)
    assert clients is not None
    assert clients.lives
    assert faults.undo(tp, progress()) == ["server"]
    assert command_line(tp, "server") == healthy
    assert not clients.lives
    assert tp.record(requests.PROCESS) is None
    assert (tp.plan.fault, tp.plan.engines) == (None, tp.plan.healthy)


def test_a_fault_that_was_interrupted_half_way_is_undone_by_another_process(tp: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = command_line(tp, "server")
    with monkeypatch.context() as interrupted:

        def stop(*arguments: object, **named: object) -> None:
            raise KeyboardInterrupt

        interrupted.setattr(Deployment, "_spawn_engine", stop)
        with pytest.raises(KeyboardInterrupt):
            faults.apply(tp, faults.find("one-card"), progress())
    assert tp.record("server") is None
    assert tp.plan.fault == "one-card"
    found = Deployment.open(tp.layout.root)
    assert faults.undo(found, progress()) == ["server"]
    assert command_line(tp, "server") == healthy
    assert faults.undo(found, progress()) == []


def test_prefill_names_a_device_where_its_address_belongs(pd: Deployment) -> None:
    assert environ(pd, "prefill")["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "127.0.0.1"
    faults.apply(pd, faults.find("kv-transfer-broken"), progress())
    assert environ(pd, "prefill")["VLLM_NIXL_SIDE_CHANNEL_HOST"] == transfer.NOT_AN_ADDRESS


def test_prefill_comes_back_under_the_id_that_decode_knows(pd: Deployment) -> None:
    before = pd.record("prefill")
    faults.apply(pd, faults.find("stale-peer"), progress())
    words = command_line(pd, "prefill")
    assert json.loads(words[words.index("--kv-transfer-config") + 1])["engine_id"] == "id-of-prefill"
    assert pd.record("prefill") != before


def test_decode_serves_other_weights_of_the_same_form_under_the_same_name(environment: Path) -> None:
    deployment = up(environment, replace(SPLIT, model=TINY))
    faults.apply(deployment, faults.find("model-mismatch"), progress())
    words = command_line(deployment, "decode")
    other, usual = Path(words[words.index("serve") + 1]), make_tiny(environment.parent / "models")
    assert words[words.index("--served-model-name") + 1] == deployment.plan.served_name
    weights = [(folder / "model.safetensors").read_bytes() for folder in (other, usual)]
    assert weights[0] != weights[1]
    assert len(weights[0]) == len(weights[1])
    teardown.take_down(deployment.layout)
