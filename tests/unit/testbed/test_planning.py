"""From a request to a plan: ports, cards and model, and what is refused before anything starts."""

from __future__ import annotations

import socket
from itertools import pairwise
from pathlib import Path

import pytest
from poise.testbed import environment, launch, model, planning, shapes
from poise.testbed.errors import TestbedError
from poise.testbed.hardware import Gpu, Hardware
from poise.testbed.plan import DeploymentPlan
from poise.testbed.planning import Machine, Request
from poise.testbed.resources import Resources
from poise.testbed.sizing import Sizes, resize

GIB = 1024**3
PLENTY = Resources(cores=(0, 1), memory_bytes=64 * GIB, shared_memory_bytes=32 * GIB)
NO_GPUS = Machine(Hardware(), PLENTY)


def gpus(count: int, mib: int = 144_000) -> Machine:
    return Machine(Hardware(tuple(Gpu(mib, f"GPU-{number}") for number in range(count))), PLENTY)


def planned(shape: str, machine: Machine = NO_GPUS, any_ports: bool = True, sizes: Sizes | None = None, **ports: int) -> DeploymentPlan:
    wanted = Request(resize(shapes.load(shape), sizes or Sizes()), Path("/state"), Path("/cache"), any_ports=any_ports, fixed_ports=ports)
    return planning.make_plan(wanted, machine, lambda _: None)


@pytest.fixture(autouse=True)
def _room_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of whoever runs the tests is not to decide them."""
    monkeypatch.setattr(environment, "NEEDED_BYTES", {"cpu": 0, "gpu": 0})


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


def test_more_cards_than_can_be_simulated_are_refused_before_anything_starts() -> None:
    with pytest.raises(TestbedError, match="9 cards are asked for and the profile h20x8 has 8"):
        planned("pd", sizes=Sizes(prefill=8))


@pytest.mark.parametrize(("shape", "cards"), [("single", 1), ("tp", 2), ("pp", 2), ("pair", 2), ("pd", 2), ("hybrid", 3)])
def test_each_shape_gets_the_cards_that_it_needs(shape: str, cards: int) -> None:
    assert planned(shape).simulated_cards == cards
    assert planned(shape, gpus(cards)).simulated_cards == 0


@pytest.mark.parametrize(
    ("shape", "chosen"),
    [
        ("tp", model.BIG_MODEL),
        ("pp", model.BIG_MODEL),
        ("pair", model.SMALL_MODEL),
        ("pd", model.SMALL_MODEL),
        ("hybrid", model.SMALL_MODEL),
    ],
)
def test_a_model_has_to_fit_on_the_cards_of_each_server_not_on_all_together(shape: str, chosen: str) -> None:
    assert planned(shape, gpus(3, 46_000)).model == chosen


def test_too_few_gpus_are_said() -> None:
    with pytest.raises(TestbedError, match="shape hybrid needs 3 GPUs and this machine has 2"):
        planned("hybrid", gpus(2))


def test_several_servers_of_a_role_have_names_ports_side_channels_and_cards_of_their_own_and_the_router_knows_all() -> None:
    plan = planned("pd", any_ports=False, sizes=Sizes(prefill=2, decode=3))
    assert [engine.name for engine in plan.engines] == ["prefill_1", "prefill_2", "decode_1", "decode_2", "decode_3"]
    assert [engine.cuda_visible_devices for engine in plan.engines] == ["0", "1", "2", "3", "4"]
    assert plan.simulated_cards == 5
    ports = [port for engine in plan.engines for port in (engine.port, engine.side_channel_port)]
    assert len(set(ports)) == 10
    assert plan.router is not None
    words = launch.router_command(plan, plan.router)
    behind = [(flag, url) for flag, url in pairwise(words) if flag in ("--prefill", "--decode")]
    assert behind == [(f"--{engine.role}", engine.url) for engine in plan.engines]


def test_stages_and_ranks_take_a_card_each() -> None:
    (engine,) = planned("pp").engines
    assert (engine.pipeline_parallel_size, engine.tensor_parallel_size, engine.cuda_visible_devices) == (2, 1, None)
    hybrid = planned("hybrid", gpus(8)).engines
    assert [engine.cuda_visible_devices for engine in hybrid] == ["0,1", "2"]
    assert [engine.cuda_visible_devices for engine in planned("tp", gpus(8)).engines] == ["0,1"]


def test_cards_that_are_in_use_are_left_alone() -> None:
    busy = Machine(Hardware((Gpu(144_000, "GPU-0", 40_213, (4711,)), *(Gpu(144_000, f"GPU-{n}") for n in (1, 2)))), PLENTY)
    assert [engine.cuda_visible_devices for engine in planned("pd", busy).engines] == ["1", "2"]
    with pytest.raises(
        TestbedError,
        match=r"shape hybrid needs 3 free GPUs and 2 of 3 are \(GPU 0 has 40213 MiB in use by process 4711\): end what uses them",
    ):
        planned("hybrid", busy)


def test_the_cards_that_a_user_hides_are_not_used() -> None:
    some = Machine(gpus(4).hardware, PLENTY, user_visible="3,2")
    assert [engine.cuda_visible_devices for engine in planned("pd", some).engines] == ["2", "3"]
    with pytest.raises(TestbedError, match=r"needs 3 free GPUs and 2 of 4 are \(CUDA_VISIBLE_DEVICES hides 2\)"):
        planned("hybrid", some)


SHARED = shapes.parse("shared", {"engine": [{"name": name, "cuda_visible_devices": "0"} for name in "ab"]})


def test_servers_on_one_card_share_its_memory_on_gpus_alone() -> None:
    real, simulated = (
        planning.make_plan(Request(SHARED, Path("/state"), Path("/cache"), any_ports=True), m, print) for m in (gpus(1), NO_GPUS)
    )
    assert [engine.arguments for engine in real.engines] == [("--gpu-memory-utilization=0.46",)] * 2
    assert [engine.arguments for engine in simulated.engines] == [()] * 2


def test_a_share_that_is_asked_for_all_servers_counts_for_each() -> None:
    asked = Request(SHARED, Path("/state"), Path("/cache"), any_ports=True, arguments=("--gpu-memory-utilization", "0.6"))
    with pytest.raises(TestbedError, match="a, b share GPU 0 and their --gpu-memory-utilization leaves nothing for all of them: lower it"):
        planning.make_plan(asked, gpus(1), print)


def test_too_little_memory_is_said_before_anything_starts() -> None:
    with pytest.raises(TestbedError, match=r"shape pd needs about \d\.\d GB of main memory and 2\.1 GB are available"):
        planned("pd", Machine(Hardware(), Resources((0, 1), 2 * GIB, GIB)))
    with pytest.raises(TestbedError, match=r"shape tp needs about \d+ MiB in /dev/shm and 7 MiB are free: give the container more"):
        planned("tp", Machine(Hardware(), Resources((0, 1), 64 * GIB, 7 * 1024**2)))


def test_too_little_disk_for_the_install_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "NEEDED_BYTES", {"cpu": 10**18, "gpu": 10**18})
    with pytest.raises(TestbedError, match="installing vLLM needs about 1000000000 GB and /cache has"):
        planned("tp")


def test_ranks_are_bound_to_cores_where_there_are_enough() -> None:
    assert [engine.cpu_binding for engine in planned("tp").engines] == [None]
    many = Machine(Hardware(), Resources(tuple(range(0, 32, 2)), 64 * GIB, GIB))
    assert [engine.cpu_binding for engine in planned("tp", many).engines] == ["28|30"]
    assert [engine.cpu_binding for engine in planned("hybrid", many).engines] == ["26|28", "30"]
    assert [engine.cpu_binding for engine in planned("tp", Machine(gpus(2).hardware, many.resources)).engines] == [None]
