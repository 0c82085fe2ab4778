"""Faults of cards as the exporter sees them: mirror, simulated library, real collectors, join, checklist and page, without vLLM.

Time moves only when a test says so, except where a thread hangs in the driver.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from poise.exporter import metrics as m
from poise.exporter.checks.result import Status
from poise.exporter.checks.runner import CheckOutcome, Runner
from poise.exporter.exposition import Build, Exposition
from poise.exporter.nvml import registry
from poise.exporter.nvml.sampler import Sampler
from poise.exporter.nvml.worker import Timing
from poise.exporter.pid_namespace import PidNamespace
from poise.exporter.snapshot import NodeSnapshot, Reason
from poise.testbed import cards, launch, plan, records, teardown
from poise.testbed.deployment import Deployment
from poise.testbed.errors import TestbedError
from poise.testbed.faults import FAULTS, Fault, find, on_cards, signs
from poise.testbed.faults.fault import Target, nothing
from poise.testbed.faults.signs import Page
from poise.testbed.nvml.node import SimulatedNode
from poise.testbed.plan import DeploymentPlan, EnginePlan
from poise.testbed.progress import Progress
from poise.testbed.records import Record, Role

from tests.full_node import node_of, page_engine
from tests.simulated_cards import INTERVAL, START, Bench, simulated_library
from tests.unit.testbed.deployments import layout_in, ours
from tests.unit.testbed.test_mirror import FIRST, SECOND_RANK, World
from tests.unit.testbed.test_plan import PLAN
from tests.waiting import wait_until

ENGINE = EnginePlan("server", 8000, 2, None, ())
DEPLOYMENT = dataclasses.replace(PLAN, engines=(ENGINE,), simulated_cards=2, exporter_port=1, fault=None)
#: Three intervals: the longest gap that counters bridge.
STEP_SECONDS = 3 * INTERVAL
#: Enough for a card to heat up and to cool down, and for a check to be sure.
STEPS = 10
#: Between the two pages that are compared: more than the ten seconds after which a collector reads errors again.
APART = 4
FOREIGN_PID = 900
#: A hanging call is said after so many seconds.
FAST = Timing(deadline=0.3, look=0.05, backoff=0.05, leave=1.0)

#: Those that a thread must run into: a card that is lost or hangs.
DOWN = ("card-lost", "xid-79", "driver-hang")
SHOWN = [fault for fault in FAULTS if fault.group == "cards" and fault.name not in DOWN]


class StandIn:
    """What faults of cards need of a deployment. Its processes are in the World's /proc."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.layout = world.layout
        self.plan: DeploymentPlan = DEPLOYMENT
        self.exporter_restarts = 0

    def spawn(self, name: str, role: Role, command: list[str], facts: dict[str, str]) -> None:
        self.world.proc.add(FOREIGN_PID, command, ticks=5)
        records.write(self.layout.records, Record(name, role, FOREIGN_PID, 5, 0.0, facts))

    def restart_exporter(self) -> None:
        self.exporter_restarts += 1


class Scene:
    """A tensor-parallel server under load on two cards, and an exporter that reads them."""

    def __init__(self, folder: Path, bench: Bench, library: str) -> None:
        self.world = World(folder, bench.node)
        self.deployment = StandIn(self.world)
        self.bench, self.library = bench, library
        self.ran = 0.0
        self.runner = Runner()
        self.exposition = Exposition(Build("1.2.3", "3.11"))
        self.engine = page_engine(0, "tp2-server-during07.prom", 2)

    def put_on(self, fault: Fault) -> None:
        fault.apply(Target(cast(Deployment, self.deployment), ENGINE, Progress("x", [], [], lambda: 0.0)))

    def take_off(self, fault: Fault) -> None:
        """As faults.undo does, without servers."""
        for record in records.read_all(self.world.layout.records):
            if record.role == "fault":
                records.remove(self.world.layout.records, record.name)
                self.world.proc.remove(record.pid)
        restarted = fault.undo(cast(Deployment, self.deployment))
        cards.want_faults(self.world.layout, [])
        self.runner = Runner()  # checks look back a minute; that they forget what is older is not this test's business
        if restarted:
            self.bench.close()
            self.bench = new_bench(self.bench.node, self.library, self.bench.now)

    def work(self, seconds: float) -> None:
        """Both ranks work for nine tenths of the time."""
        self.ran += 0.9 * seconds
        for pid in (FIRST, SECOND_RANK):
            self.world.worked(pid, self.ran, 0.0)
        self.world.now += seconds
        self.bench.now += seconds
        self.world.mirror.tick(self.world.now, self.bench.now)

    def settle(self) -> None:
        """Until temperatures no longer change under this load."""
        for seconds in (1.0, 1.0, 600.0):
            self.work(seconds)

    def pass_time(self, steps: int) -> tuple[tuple[Page, Page], CheckOutcome]:
        """So many steps under load; two pages of it, and what the checklist says at the end."""
        pages: list[Page] = []
        for step in range(steps):
            self.work(STEP_SECONDS)
            self.bench.deliver()
            gpus = [self.bench.read(position) for position in range(2)]
            snapshot = node_of(self.bench.driver.info, gpus, [self.engine], self.bench.now)
            outcome = self.runner.observe(snapshot)
            if step in (steps - 1 - APART, steps - 1):
                pages.append(self.page(snapshot, outcome))
        return (pages[0], pages[-1]), outcome

    def page(self, snapshot: NodeSnapshot, outcome: CheckOutcome) -> Page:
        text = self.exposition.render(snapshot, outcome.results, snapshot.taken_at).decode()
        return signs.read(text, snapshot.taken_at)


def new_bench(node: SimulatedNode, library: str, now: float) -> Bench:
    made = Bench(node, library, registry.enabled({}), PidNamespace.HOST)
    made.now = now
    return made


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    # Whoever asks the mirror for a fault waits for it, and this mirror moves only when the test lets it.
    monkeypatch.setattr(cards, "_wait", lambda *_: None)
    with simulated_library(cards.profile(2)) as (node, library):
        made = Scene(tmp_path, new_bench(node, library, START), library)
        made.settle()
        yield made
        node.release()
        made.bench.close()


def failing(outcome: CheckOutcome) -> set[str]:
    return {result.check for result in outcome.results if result.status is Status.FAIL}


@pytest.mark.parametrize("fault", SHOWN, ids=[fault.name for fault in SHOWN])
def test_a_fault_of_a_card_moves_its_series_fails_its_checks_and_is_gone_when_it_is_undone(scene: Scene, fault: Fault) -> None:
    before, well = scene.pass_time(APART + 1)
    assert not failing(well) & set(fault.raises.checks)
    scene.put_on(fault)
    during, ill = scene.pass_time(STEPS)
    for sign in fault.raises.series:
        seen = signs.look(sign, DEPLOYMENT, before, during)
        assert seen.moved, str(seen)
    assert set(fault.raises.checks) <= failing(ill)
    scene.take_off(fault)
    scene.settle()
    after, mended = scene.pass_time(STEPS)
    assert not failing(mended) & set(fault.raises.checks)
    for sign in fault.raises.series:
        seen = signs.look(sign, DEPLOYMENT, before, after)
        assert not seen.moved, str(seen)
    assert scene.deployment.exporter_restarts == 0 or fault.undo is not nothing


def value(scene: Scene, metric: m.Metric, *labels: str, card: int = 1) -> float | None:
    return scene.bench.readers[card].tick().value(metric, *labels)


def test_heat_halves_the_clock_only_once_the_slowdown_point_is_passed_and_power_falls_with_it(scene: Scene) -> None:
    scene.pass_time(2)
    hot = value(scene, m.GPU_POWER)
    scene.put_on(find("thermal"))
    scene.pass_time(STEPS)
    assert value(scene, m.GPU_TEMPERATURE, "core") == 94
    assert value(scene, m.GPU_TEMPERATURE_MARGIN) == -2
    assert value(scene, m.GPU_CLOCK, "sm") == 990e6
    power = value(scene, m.GPU_POWER)
    assert power is not None
    assert hot is not None
    assert power < 0.7 * hot
    assert value(scene, m.GPU_CLOCKS_EVENT, "hw_slowdown") == 1
    assert value(scene, m.GPU_CLOCKS_EVENT, "hw_thermal_slowdown", card=0) == 0


def test_uncorrectable_errors_are_counted_once_and_a_reset_keeps_those_of_the_cards_life(scene: Scene) -> None:
    scene.pass_time(2)
    scene.put_on(find("ecc"))
    scene.pass_time(STEPS)
    assert value(scene, m.GPU_ECC_ERRORS, "uncorrected") == 2
    assert value(scene, m.GPU_XID_ERRORS, "48") == value(scene, m.GPU_XID_ERRORS, "63") == 1
    scene.world.mirror = scene.world.make_mirror()  # one that was killed and started anew finds the card as it is
    scene.pass_time(2)
    assert value(scene, m.GPU_ECC_ERRORS, "uncorrected") == 2
    scene.take_off(find("ecc"))
    scene.pass_time(2)
    lifetime = [value(scene, m.GPU_ECC_ERRORS_LIFETIME, "uncorrected"), value(scene, m.GPU_ECC_ERRORS, "uncorrected")]
    assert (lifetime, value(scene, m.GPU_XID_ERRORS, "48")) == ([2, 0], 0)


def test_the_foreign_process_is_named_with_what_it_holds(scene: Scene) -> None:
    scene.put_on(find("foreign-process"))
    _, ill = scene.pass_time(2)
    (result,) = [result for result in ill.results if result.check == "foreign_process"]
    assert "24.0 GiB of GPU 1" in result.sentence
    assert f"pid {FOREIGN_PID}" in result.evidence["GPU 1"]


def test_errors_are_on_one_link_of_one_card(scene: Scene) -> None:
    scene.put_on(find("link-errors"))
    scene.pass_time(STEPS)
    found = [scene.bench.readers[place].tick().readings[m.GPU_NVLINK_ERRORS] for place in (0, 1)]
    assert not any(found[0].values())
    assert {link for (link, _), count in found[1].items() if count} == {"0"}


# ------------------------------------------------------------------------------------------------- cards that do not answer
@contextmanager
def sampling(scene: Scene) -> Iterator[Sampler]:
    sampler = Sampler(registry.enabled({}), INTERVAL / 10, library=scene.library, timing=FAST)
    sampler.start()
    try:
        yield sampler
    finally:
        scene.bench.node.release()
        sampler.stop()
        assert sampler.join(60.0)


def states(sampler: Sampler) -> Callable[[], list[Reason | None]]:
    return lambda: [gpu.down_reason if not gpu.up else None for gpu in sampler.view().gpus]


@pytest.mark.parametrize(("name", "reason"), [("card-lost", Reason.GPU_LOST), ("xid-79", Reason.GPU_LOST), ("driver-hang", Reason.TIMEOUT)])
def test_a_card_that_does_not_answer_is_down_with_its_reason_and_comes_back(scene: Scene, name: str, reason: Reason) -> None:
    fault = find(name)
    with sampling(scene) as sampler:

        def page() -> tuple[CheckOutcome, Page]:
            view = sampler.view()
            snapshot = node_of(view.driver, view.gpus, [scene.engine], scene.bench.now)
            outcome = scene.runner.observe(snapshot)
            return outcome, scene.page(snapshot, outcome)

        wait_until(lambda: states(sampler)() == [None, None], "both cards up")
        wait_until(lambda: scene.bench.node.calls("nvmlDeviceRegisterEvents", 1), "the card registered for events")
        scene.work(1.0)
        well, before = page()
        assert not failing(well) & set(fault.raises.checks)
        scene.put_on(fault)
        scene.work(1.0)
        wait_until(lambda: states(sampler)() == [None, reason], f"the card down: {reason}")
        lost = reason is Reason.GPU_LOST
        wait_until(lambda: not lost or sampler.view().gpus[1].value(m.GPU_XID_LAST, "79"), "its XID")
        ill, during = page()
        for sign in fault.raises.series:
            seen = signs.look(sign, DEPLOYMENT, (before, before), (during, during))
            assert seen.moved, str(seen)
        assert set(fault.raises.checks) <= failing(ill)
        cards.want_faults(scene.world.layout, [])
        scene.work(1.0)
        wait_until(lambda: states(sampler)() == [None, None], "both cards up again")
        mended, _ = page()
        assert not failing(mended) & set(fault.raises.checks)


def test_a_mirror_that_is_started_anew_holds_no_call_of_an_earlier_one(scene: Scene) -> None:
    scene.put_on(find("driver-hang"))
    scene.work(1.0)
    scene.world.layout.faults.write_text(json.dumps({"faults": []}))
    scene.world.mirror = scene.world.make_mirror()
    scene.work(1.0)
    assert [gpu.value(m.GPU_MEMORY_TOTAL) is not None for gpu in (scene.bench.read(0), scene.bench.read(1))] == [True, True]


def test_with_a_real_mirror_the_foreign_process_is_a_real_one_and_ends_with_the_deployment(tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    plan.write(layout.plan, dataclasses.replace(DEPLOYMENT, exporter_port=None))
    with SimulatedNode.create(layout.cards, cards.profile(2)) as node:
        deployment = Deployment(layout, os.environ)
        deployment.spawn("mirror", "mirror", launch.mirror_command(layout))
        try:
            cards.wait_mirrored(layout)
            progress = Progress("x", [], [], lambda: 0.0)
            find("foreign-process").apply(Target(deployment, ENGINE, progress))
            wait_until(lambda: node.gpus[1]._card.process_count == 1, "the foreign process on its card")
            record = deployment.record("fault_foreign")
            assert record is not None
            assert record.lives
            assert node.gpus[1]._card.processes[0].pid == record.pid
            assert [gpu._card.memory_used_bytes for gpu in node.gpus] == [0, on_cards.FOREIGN_BYTES]
            find("ecc").apply(Target(deployment, ENGINE, progress))
            assert node.gpus[1].remap_pending
            cards.want_faults(layout, [])
            assert not node.gpus[1].remap_pending
            deployment.end(["fault_foreign"])
            wait_until(lambda: node.gpus[1]._card.process_count == 0, "the card without it")
        finally:
            teardown.take_down(layout)
    assert ours(layout) == []


def test_a_foreign_process_needs_a_card_to_sit_on(tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    plan.write(layout.plan, DEPLOYMENT)
    narrow = dataclasses.replace(ENGINE, cuda_visible_devices="0")
    with pytest.raises(TestbedError, match="server sees fewer cards than it has ranks"):
        find("foreign-process").apply(Target(Deployment(layout, os.environ), narrow, Progress("x", [], [], lambda: 0.0)))
