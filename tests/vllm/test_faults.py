"""Every fault as a node exporter would see it on the cards and in /proc, and the healthy deployment after its undoing.

What the exporter, the page and the alerts make of them has tests of its own.
"""

from __future__ import annotations

import pytest
from poise.testbed import faults, processes, spawning, status
from poise.testbed.deployment import Deployment
from poise.testbed.errors import TestbedError
from poise.testbed.nvml.node import SimulatedNode

from tests.vllm.deploying import progress_of
from tests.waiting import wait_until


def apply(deployment: Deployment, name: str) -> None:
    faults.apply(deployment, faults.find(name), progress_of(name, []))


def undo(deployment: Deployment) -> list[str]:
    return faults.undo(deployment, progress_of("undo", []))


def pids_on_cards(deployment: Deployment) -> list[list[int]]:
    node = SimulatedNode.open(deployment.layout.cards)
    return [[gpu._card.processes[place].pid for place in range(gpu._card.process_count)] for gpu in node.gpus]


def healthy(deployment: Deployment) -> bool:
    pids = [[worker.pid] for worker in deployment.workers()]
    return len(pids) == 2 and pids_on_cards(deployment) == pids and status.look(deployment).ready


@pytest.mark.parametrize("name", ["rank-gone", "slow-clock", "link-down", "card-lost"])
def test_a_fault_of_a_card_shows_on_the_last_card_alone_and_is_undone_without_a_restart(tp: Deployment, name: str) -> None:
    wait_until(lambda: healthy(tp), "a healthy deployment")
    first, last = SimulatedNode.open(tp.layout.cards).gpus
    link_up = first._card.links[0].state
    apply(tp, name)
    ranks = tp.workers()
    assert tp.plan.fault == name
    assert pids_on_cards(tp) == [[ranks[0].pid], [] if name == "rank-gone" else [ranks[1].pid]]
    assert (last._card.links[0].state != link_up) == (name == "link-down")
    assert (last._card.condition != 0) == (name == "card-lost")
    assert bool(last._card.event_reasons & 0x4) == (name == "slow-clock")
    assert (first._card.links[0].state, first._card.condition, first._card.event_reasons & 0x4) == (link_up, 0, 0)
    with pytest.raises(TestbedError, match=f"the fault {name} is in force"):
        apply(tp, "kill-rank")
    assert undo(tp) == []
    assert tp.plan.fault is None
    assert tp.workers() == ranks
    wait_until(lambda: healthy(tp), "the healthy deployment")


def test_one_visible_hides_the_second_card_from_the_server_and_one_card_leaves_it_unused(tp: Deployment) -> None:
    port = tp.engine().port
    apply(tp, "one-visible")
    server = tp.record("server")
    assert server is not None
    assert processes.environment(server.pid)["CUDA_VISIBLE_DEVICES"] == "0"
    wait_until(lambda: [len(pids) for pids in pids_on_cards(tp)] == [1, 0], "one worker on the first card")
    assert undo(tp) == ["server"]
    assert "CUDA_VISIBLE_DEVICES" not in processes.environment(_server(tp))
    wait_until(lambda: healthy(tp), "the healthy deployment")
    apply(tp, "one-card")
    assert "CUDA_VISIBLE_DEVICES" not in processes.environment(_server(tp))
    arguments = processes.command_line(_server(tp))
    assert arguments[arguments.index("--tensor-parallel-size") + 1] == "1"
    wait_until(lambda: [len(pids) for pids in pids_on_cards(tp)] == [1, 0], "one worker on the first card")
    assert tp.engine().port == port


def test_a_killed_rank_takes_its_server_with_it_and_undo_brings_it_back(tp: Deployment) -> None:
    wait_until(lambda: healthy(tp), "a healthy deployment")
    engine = tp.engine()
    apply(tp, "kill-rank")
    assert not spawning.answers(engine.port, "/health")
    assert {part.name: part.state for part in status.look(tp).parts}["server"] == "dead"
    wait_until(lambda: pids_on_cards(tp) == [[], []], "empty cards")
    assert undo(tp) == ["server"]
    assert tp.engine() == engine
    wait_until(lambda: healthy(tp), "the healthy deployment")
    assert undo(tp) == [], "a second time there is nothing to do"


def _server(deployment: Deployment) -> int:
    record = deployment.record("server")
    assert record is not None
    return record.pid
