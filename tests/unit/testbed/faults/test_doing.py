"""Putting faults on and taking them back, as far as no running server is needed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from poise.testbed import faults, plan, teardown
from poise.testbed.deployment import Deployment
from poise.testbed.errors import TestbedError
from poise.testbed.faults import settings
from poise.testbed.faults.cards import last_card
from poise.testbed.plan import EnginePlan
from poise.testbed.progress import Progress
from poise.testbed.records import Role

from tests.unit.testbed.deployments import layout_in, ours, start, start_family
from tests.unit.testbed.test_plan import PLAN, SPLIT
from tests.waiting import wait_until

HEALTHY = EnginePlan("server", 8000, 2, None, ())


def deployment(folder: Path, **changes: object) -> Deployment:
    layout = layout_in(folder)
    wanted = replace(PLAN, engines=(HEALTHY,), healthy=(), fault=None)
    plan.write(layout.plan, replace(wanted, **{"healthy": (), **changes}))  # type: ignore[arg-type]  # each test gives fields of it
    return Deployment(layout, os.environ)


def apply(target: Deployment, name: str) -> None:
    faults.apply(target, faults.find(name), Progress("x", [], [], lambda: 0.0))


@pytest.mark.parametrize(
    ("change", "visible", "after"),
    [
        (settings.one_visible, None, "0"),
        (settings.one_visible, "2,3", "2"),
        (settings.one_card, None, None),
        (settings.one_card, "2,3", "2,3"),
    ],
)
def test_what_an_engine_is_started_with_under_a_fault(
    change: Callable[[EnginePlan], EnginePlan], visible: str | None, after: str | None
) -> None:
    changed = change(replace(HEALTHY, cuda_visible_devices=visible))
    assert (changed.tensor_parallel_size, changed.cuda_visible_devices, changed.port) == (1, after, 8000)


def test_an_unknown_fault_names_those_that_are_there() -> None:
    with pytest.raises(TestbedError, match="there is no fault 'gremlin': choose from one-visible, one-card"):
        faults.find("gremlin")


def test_a_second_fault_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="the fault link-down is in force: `poise testbed fault --undo` first"):
        apply(deployment(tmp_path, fault="link-down"), "one-card")


def test_a_fault_of_two_ranks_is_refused_on_one(tmp_path: Path) -> None:
    target = deployment(tmp_path, engines=(replace(HEALTHY, tensor_parallel_size=1),))
    with pytest.raises(TestbedError, match="one-visible needs an engine with 2 ranks or more and shape tp has none"):
        apply(target, "one-visible")


@pytest.mark.parametrize("name", ["kill-prefill", "kill-decode", "kill-router"])
def test_a_fault_of_prefill_and_decode_is_refused_where_they_are_one(tmp_path: Path, name: str) -> None:
    with pytest.raises(TestbedError, match=f"{name} needs a deployment of prefill and decode and shape tp is none: use one with a router"):
        apply(deployment(tmp_path), name)


@pytest.mark.parametrize(("name", "part", "role"), [("kill-decode", "decode", "engine"), ("kill-router", "router", "router")])
def test_the_part_that_a_fault_names_is_killed_whole_and_its_record_stays(tmp_path: Path, name: str, part: str, role: Role) -> None:
    target = deployment(tmp_path, engines=SPLIT.engines, router=SPLIT.router, shape="pd")
    dead, other = start_family(target.layout, part, role), start(target.layout, "prefill", "engine")
    wait_until(lambda: len(ours(target.layout)) == 3, "the part, its child and another")
    apply(target, name)
    assert ours(target.layout) == [other.pid]
    assert target.record(part) == dead
    assert target.plan.fault == name
    teardown.take_down(target.layout)


def test_a_fault_of_a_card_is_on_the_card_of_the_last_rank_that_the_engine_has() -> None:
    prefill = replace(HEALTHY, cuda_visible_devices="0,1")
    assert last_card(HEALTHY, 3) == 1
    assert last_card(prefill, 3) == 1
    assert last_card(replace(prefill, cuda_visible_devices="2,0"), 3) == 0
    assert last_card(replace(prefill, cuda_visible_devices="2"), 3) is None


def test_a_fault_of_a_card_is_refused_on_real_ones(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="card-lost can only be shown on simulated cards"):
        apply(deployment(tmp_path, build="gpu", simulated_cards=0), "card-lost")


def test_killing_a_rank_of_a_server_that_is_dead_says_so(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="server has no worker that could be killed"):
        apply(deployment(tmp_path), "kill-rank")


def test_a_black_hole_goes_with_its_deployment(tmp_path: Path) -> None:
    target = deployment(tmp_path)
    apply(target, "scrape-blackhole")
    assert target.layout.blackhole("server").exists()
    teardown.take_down(target.layout)
    assert not target.layout.blackhole("server").exists()


def test_servers_that_are_started_anew_wait_for_a_request_through_the_router_only_when_all_are_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = deployment(tmp_path, engines=SPLIT.engines, router=SPLIT.router, shape="pd", simulated_cards=0, exporter_port=None)
    done: list[tuple[str, bool]] = []

    def restart(self: Deployment, changed: EnginePlan, fault: str | None, progress: Progress, through_router: bool = True) -> None:
        done.append((changed.name, through_router))

    monkeypatch.setattr(Deployment, "restart_engine", restart)
    monkeypatch.setattr(Deployment, "start_router", lambda self, progress: done.append(("router", True)))
    assert faults.undo(target, Progress("x", [], [], lambda: 0.0)) == ["prefill", "decode", "router"]
    assert done == [("prefill", False), ("decode", True), ("router", True)]
