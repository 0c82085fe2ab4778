"""Undoing by what is there, on a deployment that the real launcher brought up with a stand-in for `vllm`: mirror, exporter, keeper are real.

One deployment for all tests, which each leave whole.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from poise.testbed import cards, command, lock, plan, processes, shapes, spawning, status
from poise.testbed.deployment import Deployment
from poise.testbed.errors import TestbedError
from poise.testbed.faults import FAULTS, Fault, Target, apply, find, undo
from poise.testbed.files import write_json
from poise.testbed.nvml.node import SimulatedNode
from poise.testbed.planning import Request
from poise.testbed.progress import Progress

from tests.unit.testbed import stand_in
from tests.waiting import wait_until


def progress() -> Progress:
    return Progress("x", [], [], lambda: 0.0)


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> Request:
    folder = tmp_path_factory.mktemp("mending")
    stand_in.install(folder / "cache")
    return Request(shapes.load("pair"), folder / "state", folder / "cache", any_ports=True)


@pytest.fixture(scope="module")
def up(request_: Request) -> Iterator[Deployment]:
    with Deployment.up(request_, progress()) as found:
        yield found


@pytest.fixture
def pair(up: Deployment) -> Iterator[Deployment]:
    """Whole, and left so."""
    yield up
    undo(up, progress())
    assert (up.plan.fault, up.plan.engines) == (None, up.plan.healthy)
    assert not list(up.layout.root.glob("*.blackhole"))
    assert {part.state for part in status.look(up).parts} == {"ready"}


def pids(deployment: Deployment) -> dict[str, int]:
    return {part.name: part.pid or 0 for part in status.look(deployment).parts}


def kill(deployment: Deployment, name: str) -> None:
    record = deployment.record(name)
    assert record is not None
    processes.send(record.identity, signal.SIGKILL)
    assert processes.wait_gone([record.identity], 30.0) == []


def restarted(before: dict[str, int], after: dict[str, int]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


def test_undoing_on_a_healthy_deployment_restarts_nothing_whichever_fault_is_noted_that_left_no_trace(pair: Deployment) -> None:
    before = pids(pair)
    for name in (None, "thermal", "scrape-blackhole", "hang"):
        pair.note_fault(name)
        assert undo(pair, progress()) == []
    assert restarted(before, pids(pair)) == set()


def test_traces_of_faults_that_nobody_noted_are_removed(pair: Deployment) -> None:
    """As an earlier deployment, or a second fault at the same time, left them."""
    before = pids(pair)
    for engine in pair.plan.engines:
        pair.layout.blackhole(engine.name).touch()
    cards.want_faults(pair.layout, ["link-down"])
    record = pair.record(pair.plan.engines[1].name)
    assert record is not None
    processes.send(record.identity, signal.SIGSTOP)
    wait_until(lambda: (stat := processes.read_stat(record.pid)) is not None and stat.state == "T", "a server that is stopped")
    assert pair.plan.fault is None
    assert undo(pair, progress()) == []
    assert not any(pair.layout.blackhole(engine.name).exists() for engine in pair.plan.engines)
    assert cards.wanted_faults(pair.layout).faults == ()
    assert restarted(before, pids(pair)) == set()


@pytest.mark.parametrize(("noted", "shown"), [(None, ["card-lost"]), (None, ["ecc"]), ("xid-79", [])])
def test_an_exporter_that_remembers_an_xid_is_restarted_on_healthy_cards_whoever_put_it_there(
    pair: Deployment, noted: str | None, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.note_fault(noted)
    cards.want_faults(pair.layout, shown)
    found: list[tuple[str, ...]] = []
    monkeypatch.setattr(Deployment, "restart_exporter", lambda self: found.append(cards.wanted_faults(self.layout).faults))
    assert undo(pair, progress()) == ["exporter"]
    assert found == [()]


def test_the_undoing_of_each_fault_leaves_a_healthy_deployment_alone(pair: Deployment) -> None:
    before = pids(pair)
    assert {fault.name: fault.undo(pair) for fault in FAULTS} == {fault.name: [] for fault in FAULTS}
    assert restarted(before, pids(pair)) == set()


def test_a_dead_mirror_is_started_anew_and_takes_from_the_cards_what_the_dead_one_showed(pair: Deployment) -> None:
    before = pids(pair)
    cards.want_faults(pair.layout, ["link-down"])
    with SimulatedNode.open(pair.layout.cards) as node:
        last = node.gpus[-1]._card.links[0]
        down = last.state
        kill(pair, "mirror")
        write_json(pair.layout.faults, {"faults": [], "card": None})  # an undoing that got no further
        assert undo(pair, progress()) == ["mirror"]
        wait_until(lambda: last.state != down, "the link up again")
    assert restarted(before, pids(pair)) == {"mirror"}
    apply(pair, find("thermal"), progress())
    assert undo(pair, progress()) == []


def test_a_fault_of_a_card_is_refused_and_not_noted_while_nothing_shows_it(pair: Deployment) -> None:
    kill(pair, "mirror")
    with pytest.raises(
        TestbedError, match="the mirror, which would show thermal on its card, is dead: `poise testbed fault --undo` starts it"
    ):
        apply(pair, find("thermal"), progress())
    assert pair.plan.fault is None


def test_a_mirror_that_is_killed_without_a_word_is_said_to_have_been(pair: Deployment) -> None:
    kill(pair, "mirror")
    with pytest.raises(TestbedError, match=r"the mirror ended by itself; the end of its log:\n\(empty, as when it was killed\)"):
        cards.want_faults(pair.layout, ["thermal"])


def test_dead_parts_are_started_anew_and_the_others_are_not(pair: Deployment) -> None:
    before = pids(pair)
    first, second = (engine.name for engine in pair.plan.engines)
    for name in ("exporter", second):
        kill(pair, name)
    assert undo(pair, progress()) == ["exporter", second]
    assert restarted(before, pids(pair)) == {"exporter", second}
    assert spawning.answers(pair.engine(first).port, "/health")


def test_up_finds_what_is_up_and_neither_ends_nor_overlooks_what_is_half_up(pair: Deployment, request_: Request) -> None:
    before, said = pids(pair), []
    tp = replace(request_, shape=shapes.load("tp"))

    def again(wanted: Request) -> None:
        Deployment.up(wanted, progress(), say=said.append)

    again(request_)
    assert said == ["shape pair is up already"]
    with pytest.raises(TestbedError, match=r"is up in .* with model tiny \(/nonexist is asked for\): `poise testbed down` first"):
        again(replace(request_, model="/nonexist"))
    kill(pair, "mirror")
    with pytest.raises(TestbedError, match=r"is up in .* with other servers than are asked for \(shape tp\)"):
        again(tp)
    with pytest.raises(TestbedError, match=r"not whole \(mirror is dead\)"):
        again(request_)
    assert restarted(before, pids(pair)) == set()


def test_what_undoing_cannot_start_is_named(pair: Deployment, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    words = parser.parse_args(["fault", "--undo", "--state-dir", str(pair.layout.root)])
    pair.spawn("page", "dashboard", ["sleep", "600"])
    kill(pair, "page")
    assert command.run(words) == 1
    assert "poise: the fault is undone, but page is dead: `poise testbed down`, then up again\n" in capsys.readouterr().err
    pair.end(["page"])
    assert command.run(words) == 0
    assert capsys.readouterr().out == "healthy again\n"


# ---------------------------------------------------------------- one at a time


def test_a_fault_that_waited_while_another_was_noted_is_refused_and_leaves_no_trace(pair: Deployment) -> None:
    failures: list[str] = []

    def second() -> None:
        try:
            apply(Deployment.open(pair.layout.root), find("scrape-blackhole"), progress())
        except TestbedError as error:
            failures.append(str(error))

    thread = threading.Thread(target=second)
    with lock.held(pair.layout.lock, "another fault"):
        thread.start()
        wait_until(lambda: opened(pair.layout.lock) == 2, "the second one waiting")
        plan.write(pair.layout.plan, replace(pair.plan, fault="thermal"))
    thread.join(60)
    assert failures == ["the fault thermal is in force: `poise testbed fault --undo` first"]
    assert pair.plan.fault == "thermal"
    assert not pair.layout.blackhole(pair.plan.engines[0].name).exists()


def opened(path: Path) -> int:
    """How often this process has a file open."""
    folder = Path("/proc/self/fd")
    return sum(os.path.realpath(folder / name) == str(path.resolve()) for name in os.listdir(folder))


def test_nobody_undoes_or_adds_a_fault_while_one_is_being_put_on(pair: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise.testbed.deployment.LOCK_SECONDS", 0.0)
    refused: list[str] = []
    others = Deployment.open(pair.layout.root)

    def meddle(target: Target) -> None:
        for other in (lambda: apply(others, find("scrape-blackhole"), progress()), lambda: undo(others, progress())):
            with pytest.raises(TestbedError) as caught:
                other()
            refused.append(str(caught.value))
        target.deployment.restart_mirror()  # the fault itself may change what it likes

    fault: Fault = replace(find("thermal"), name="meddled", apply=meddle)
    apply(pair, fault, progress())
    assert pair.plan.fault == "meddled"
    assert len(refused) == 2
    assert all(f"process {os.getpid()} (fault meddled) is working on the deployment" in text for text in refused)
