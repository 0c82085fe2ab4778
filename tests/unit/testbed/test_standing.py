"""What `up` makes of what stands already: the same, something else, or remains that may be cleared away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest
from poise.testbed import environment, model, plan, planning, processes, records, shapes, standing, startup, teardown
from poise.testbed.errors import TestbedError
from poise.testbed.hardware import Gpu, Hardware
from poise.testbed.paths import StateLayout
from poise.testbed.plan import DeploymentPlan
from poise.testbed.planning import Machine, Request
from poise.testbed.processes import ProcessIdentity
from poise.testbed.records import Record, Role
from poise.testbed.resources import Resources
from poise.testbed.shapes import EngineShape, RouterShape, Shape
from poise.testbed.sizing import Sizes, resize

from tests.unit.testbed.deployments import layout_in, start

GIB = 1024**3
NO_GPUS = Machine(Hardware(), Resources(cores=(0, 1), memory_bytes=64 * GIB, shared_memory_bytes=32 * GIB))
PD = Request(shapes.load("pd"), Path("/state"), Path("/cache"), any_ports=True)
#: No pid is as high.
GONE = 2**22 + 1


@pytest.fixture(autouse=True)
def _room_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of whoever runs the tests is not to decide them."""
    monkeypatch.setattr(environment, "NEEDED_BYTES", {"cpu": 0, "gpu": 0})


def brought_up(wanted: Request, machine: Machine = NO_GPUS) -> DeploymentPlan:
    return planning.make_plan(wanted, machine, lambda _: None)


UP = brought_up(replace(PD, fixed_ports={"router": 47_001, "prefill": 47_002}))


def differences(wanted: Request) -> list[str]:
    return standing.differences(UP, wanted, NO_GPUS)


def prefill(**changes: object) -> Request:
    first, *others = PD.shape.engines
    changed: EngineShape = replace(first, **changes)  # type: ignore[arg-type]  # fields of it by name
    return replace(PD, shape=replace(PD.shape, engines=(changed, *others)))


def router(**changes: object) -> Request:
    assert PD.shape.router is not None
    changed: RouterShape = replace(PD.shape.router, **changes)  # type: ignore[arg-type]  # fields of it by name
    return replace(PD, shape=replace(PD.shape, router=changed))


#: What can be asked for → a request in which it is something else, and what is said of it; None where it may be anything.
REQUESTS: dict[str, tuple[Request, str | None]] = {
    "shape": (replace(PD, shape=shapes.load("hybrid")), "other servers than are asked for (shape hybrid)"),
    "model": (replace(PD, model="/nonexist"), "model tiny (/nonexist is asked for)"),
    "fixed_ports": (replace(PD, fixed_ports={"router": 80}), "router port 47001 (80 is asked for)"),
    "arguments": (replace(PD, arguments=("--max-num-seqs=4",)), "prefill arguments none (--max-num-seqs=4 is asked for)"),
    "watched": (replace(PD, watched=False), "exporter port"),
    "cache_directory": (replace(PD, cache_directory=Path("/other")), "environment /cache/"),
    "state_directory": (replace(PD, state_directory=Path("/other")), None),  # it is the one that is looked into
    "any_ports": (replace(PD, any_ports=False), None),  # ports that are not fixed may be any
    "indexes": (replace(PD, indexes=("https://example.org",)), None),  # where the same packages are fetched from
}
SHAPES: dict[str, tuple[Request, str | None]] = {
    "name": (replace(PD, shape=replace(PD.shape, name="mine")), "other servers than are asked for (shape mine)"),
    "gpus": (replace(PD, shape=replace(PD.shape, gpus=5)), "simulated cards 2 (5 is asked for)"),
    "engines": (replace(PD, shape=resize(PD.shape, Sizes(prefill=2))), "other servers than are asked for (shape pd)"),
    "router": (router(name="front"), "router name router (front is asked for)"),
    "title": (replace(PD, shape=replace(PD.shape, title="another")), None),  # words
}
ENGINES: dict[str, tuple[Request, str | None]] = {
    "name": (prefill(name="first"), "other servers"),
    "tensor_parallel_size": (prefill(tensor_parallel_size=2), "other servers"),
    "pipeline_parallel_size": (prefill(pipeline_parallel_size=2), "other servers"),
    "role": (prefill(role="decode"), "other servers"),
    "arguments": (prefill(arguments=("--seed=1", "--x")), "prefill arguments none (--seed=1 --x is asked for)"),
    "cuda_visible_devices": (prefill(cuda_visible_devices="1"), "prefill cuda visible devices 0 (1 is asked for)"),
    "kv_connector": (prefill(kv_connector="Other"), "prefill kv connector NixlConnector (Other is asked for)"),
    "side_channel_port": (prefill(side_channel_port=None), None),  # as ports
    "port": (prefill(port=8123), None),  # a preferred port may give way
}


@pytest.mark.parametrize(
    ("kind", "cases"), [(Request, REQUESTS), (Shape, SHAPES), (EngineShape, ENGINES)], ids=["request", "shape", "engine"]
)
def test_all_that_can_be_asked_for_is_compared(kind: type, cases: dict[str, tuple[Request, str | None]]) -> None:
    assert {field.name for field in fields(kind)} == set(cases)
    for name, (wanted, said) in cases.items():
        found = differences(wanted)
        assert (found == []) == (said is None), (name, found)
        assert said is None or any(entry.startswith(said) for entry in found), (name, found)


def test_the_same_request_finds_no_difference_whatever_ports_and_cards_were_chosen() -> None:
    assert differences(PD) == []
    assert differences(replace(PD, fixed_ports={"router": 47_001, "exporter": 0})) == []
    moved = replace(UP, healthy=tuple(replace(engine, cuda_visible_devices="5", cpu_binding="7") for engine in UP.engines))
    assert standing.differences(moved, PD, NO_GPUS) == []


def test_what_is_up_is_compared_as_it_was_brought_up_and_not_as_a_fault_has_it() -> None:
    changed = replace(UP, engines=tuple(replace(engine, arguments=("--x",)) for engine in UP.engines), healthy=UP.engines, fault="one-card")
    assert standing.differences(changed, PD, NO_GPUS) == []


def test_gpus_that_are_in_use_by_what_is_up_are_no_reason_to_refuse() -> None:
    free = Machine(Hardware((Gpu(144_000, "GPU-0"), Gpu(144_000, "GPU-1"))), NO_GPUS.resources, user_visible="1")
    used = Machine(Hardware(tuple(replace(gpu, used_mib=130_000) for gpu in free.hardware.gpus)), free.resources)
    wanted = replace(PD, shape=shapes.load("single"))
    assert standing.differences(brought_up(wanted, free), wanted, used) == []
    found = standing.differences(brought_up(wanted, free), replace(wanted, model=model.SMALL_MODEL), used)
    assert found == [f"model {model.BIG_MODEL} ({model.SMALL_MODEL} is asked for)", *found[1:]]


def test_a_port_for_a_part_that_is_not_there_is_said_whatever_is_up() -> None:
    with pytest.raises(TestbedError, match="no part 'nope' to give a port: choose from router, prefill, decode"):
        differences(replace(PD, fixed_ports={"nope": 1}))


# ---------------------------------------------------------------- with processes

SINGLE = Request(shapes.load("single"), Path("/state"), Path("/cache"), any_ports=True)
OTHER = replace(SINGLE, shape=shapes.load("tp"))


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[StateLayout]:
    found = layout_in(tmp_path)
    yield found
    teardown.take_down(found)


class Answering:
    """Which parts answer, by port."""

    def __init__(self) -> None:
        self.ports: set[int] = set()

    def __call__(self, port: int, path: str) -> bool:
        return port in self.ports


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Answering:
    found = Answering()
    monkeypatch.setattr("poise.testbed.spawning.answers", found)
    return found


def half_up(layout: StateLayout, *living: str, released: bool = True) -> DeploymentPlan:
    """A deployment of `single`, of whose parts these live; not `released`: its launcher and keeper were killed before it was whole."""
    current = brought_up(SINGLE)
    plan.write(layout.plan, current)
    roles: dict[str, Role] = {"server": "engine", "exporter": "exporter", "mirror": "mirror"}
    for name, role in roles.items():
        if name in living:
            start(layout, name, role)
        else:
            records.write(layout.records, Record(name, role, GONE, 1, 0.0))
    if not released:
        records.write(layout.records, Record("keeper", "keeper", GONE, 1, 0.0))
    return current


def whole(layout: StateLayout, wanted: Request = SINGLE) -> bool:
    return standing.whole(layout, wanted, lambda: NO_GPUS)


def lives(layout: StateLayout, name: str) -> bool:
    return any(record.name == name and record.lives for record in records.read_all(layout.records))


def test_where_nothing_lives_anything_may_be_brought_up(layout: StateLayout) -> None:
    assert not whole(layout)
    half_up(layout)
    assert not whole(layout)
    assert not whole(layout, OTHER)


def test_a_deployment_of_which_all_parts_live_and_answer_is_whole_though_its_keeper_was_killed(
    layout: StateLayout, answering: Answering
) -> None:
    current = half_up(layout, "server", "exporter", "mirror", released=False)
    answering.ports = {current.engines[0].port, current.exporter_port or 0}
    assert whole(layout)


@pytest.mark.parametrize("missing", ["exporter", "mirror"])
def test_a_server_that_answers_is_not_taken_down_because_something_beside_it_is_dead(
    layout: StateLayout, answering: Answering, missing: str
) -> None:
    current = half_up(layout, *({"server", "exporter", "mirror"} - {missing}))
    answering.ports = {current.engines[0].port, current.exporter_port or 0}
    with pytest.raises(TestbedError, match=rf"not whole \({missing} is dead\): `poise testbed fault --undo` starts what is missing"):
        whole(layout)
    with pytest.raises(
        TestbedError, match=r"shape single \(.*\) is up in .* with other servers than are asked for \(shape tp\): `poise te"
    ):
        whole(layout, OTHER)


@pytest.mark.parametrize("released", [True, False])
def test_a_server_that_served_and_is_silent_now_is_not_taken_down(layout: StateLayout, answering: Answering, released: bool) -> None:
    half_up(layout, "server", "exporter", "mirror", released=released)
    if not released:
        layout.log("server").write_text(f"INFO: {startup.PHASES[-1].mark}.\n")
    with pytest.raises(TestbedError, match=r"not whole \(server does not answer, exporter does not answer\): `poise testbed fault --undo`"):
        whole(layout)


@pytest.mark.parametrize("living", [("server", "mirror"), ("exporter", "mirror"), ("mirror",)])
def test_what_a_killed_launcher_left_may_be_cleared_for_the_same_request_alone(
    layout: StateLayout, answering: Answering, living: tuple[str, ...]
) -> None:
    half_up(layout, *living, released=False)
    assert not whole(layout)
    with pytest.raises(TestbedError, match=r"with other servers than are asked for \(shape tp\): `poise testbed down` first"):
        whole(layout, OTHER)


def test_a_deployment_whose_launcher_still_works_with_it_is_not_cleared(layout: StateLayout, answering: Answering) -> None:
    half_up(layout, "exporter", "mirror")
    keeper = start(layout, "keeper", "keeper")
    with pytest.raises(
        TestbedError, match=r"not whole \(server is dead, .*the process that brought it up still works with it: end that, or `po"
    ):
        whole(layout)
    assert processes.is_alive(ProcessIdentity(keeper.pid, keeper.start_ticks))


def test_where_no_server_lives_any_more_the_same_is_brought_up_anew(layout: StateLayout, answering: Answering) -> None:
    half_up(layout, "exporter", "mirror")
    assert not whole(layout)


def test_one_with_a_fault_names_the_way_to_mend_it(layout: StateLayout, answering: Answering) -> None:
    plan.write(layout.plan, replace(half_up(layout, "mirror"), fault="kill-rank"))
    with pytest.raises(
        TestbedError, match=r"single \(.*\) with the fault kill-rank is up in .*: `poise testbed fault --undo` mends it, or `po"
    ):
        whole(layout)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("{")], ids=["removed", "cut short"])
def test_processes_of_an_unknown_deployment_are_named_with_what_ends_them(layout: StateLayout, damage: Callable[[Path], object]) -> None:
    half_up(layout, "server")
    damage(layout.plan)
    with pytest.raises(TestbedError, match=r"server of a deployment in .* still run, .*: `poise testbed down` ends them"):
        whole(layout)
    assert lives(layout, "server")
