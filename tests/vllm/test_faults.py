"""The faults of a simulated card, on the card itself: what each changes, that it changes nothing else, and its undoing; and a hang.

What exporter, checklist and alerts make of every fault, those that restart or kill a server included, is in test_first_light.py.
"""

from __future__ import annotations

import pytest
from poise.testbed import faults, status
from poise.testbed.deployment import Deployment
from poise.testbed.errors import TestbedError
from poise.testbed.nvml.node import SimulatedNode

from tests import fault_runs
from tests.fault_runs import Loaded
from tests.fault_watch import watching
from tests.vllm.deploying import progress_of
from tests.vllm.watching import SATURATING_CLIENTS, drive
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
def test_a_fault_of_a_card_shows_on_the_last_card_alone_and_is_undone_without_a_restart_of_the_server(tp: Deployment, name: str) -> None:
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
    assert undo(tp) == (["exporter"] if name == "card-lost" else [])
    assert tp.plan.fault is None
    assert tp.workers() == ranks
    wait_until(lambda: healthy(tp), "the healthy deployment")


def test_workers_that_stand_still_are_named_while_the_server_answers_and_go_on_when_it_is_undone(tp: Deployment) -> None:
    ranks, load = tp.workers(), Loaded(tp, SATURATING_CLIENTS)
    with watching(tp) as watch:
        try:
            row = fault_runs.run(faults.find("hang"), tp, watch, load)
        finally:
            load.off()
        assert row.troubles + row.missing == []
    assert tp.plan.fault is None
    assert tp.workers() == ranks
    assert drive(tp, 4).failed == 0
