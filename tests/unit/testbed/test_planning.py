"""From a request to a plan: ports, cards and model, and what is refused before anything starts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from poise.testbed import model, planning, shapes
from poise.testbed.errors import TestbedError
from poise.testbed.hardware import Hardware
from poise.testbed.plan import DeploymentPlan
from poise.testbed.planning import Request

NO_GPUS = Hardware(())


def planned(shape: str, machine: Hardware = NO_GPUS, any_ports: bool = True, **ports: int) -> DeploymentPlan:
    wanted = Request(shapes.load(shape), Path("/state"), Path("/cache"), any_ports=any_ports, fixed_ports=ports)
    return planning.make_plan(wanted, machine, lambda _: None)


def test_everything_that_listens_in_a_split_deployment_gets_a_port_of_its_own() -> None:
    plan = planned("pd")
    assert plan.router is not None
    given = [plan.exporter_port, plan.router.port, plan.router.metrics_port]
    for engine in plan.engines:
        given += [engine.port, engine.side_channel_port]
    assert None not in given
    assert len(set(given)) == 7


def test_a_side_channel_that_is_taken_is_said_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(TestbedError, match=f"port {port} for decode_side_channel is taken"):
            planned("pd", decode_side_channel=port)


def test_a_port_for_a_part_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(TestbedError, match="no part 'server' to give a port: choose from router, prefill, decode, prefill_side_channel"):
        planned("pd", server=8000)
    with pytest.raises(TestbedError, match="no part 'router' to give a port: choose from server, exporter"):
        planned("tp", router=8000)


@pytest.mark.parametrize(("shape", "cards"), [("single", 1), ("tp", 2), ("pair", 2), ("pd", 2), ("hybrid", 3)])
def test_each_shape_gets_the_cards_that_it_needs(shape: str, cards: int) -> None:
    assert planned(shape).simulated_cards == cards
    assert planned(shape, Hardware((144_000,) * cards)).simulated_cards == 0


@pytest.mark.parametrize(
    ("shape", "chosen"), [("tp", model.BIG_MODEL), ("pair", model.SMALL_MODEL), ("pd", model.SMALL_MODEL), ("hybrid", model.SMALL_MODEL)]
)
def test_a_model_has_to_fit_on_the_cards_of_each_server_not_on_all_together(shape: str, chosen: str) -> None:
    assert planned(shape, Hardware((46_000,) * 3)).model == chosen


def test_too_few_gpus_are_said() -> None:
    with pytest.raises(TestbedError, match="shape hybrid needs 3 GPUs and this machine has 2"):
        planned("hybrid", Hardware((144_000,) * 2))
