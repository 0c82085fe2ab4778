"""Bytes between cards of every kind of node: over the links that join them, else over PCIe, and as many arrive as left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from poise.testbed.nvml.node import SimulatedNode
from poise.testbed.traffic import Flow
from poise.testbed.wiring import Carrier, links_between

WINDOW = 4.0


@contextmanager
def made(folder: Path, profile: str) -> Iterator[SimulatedNode]:
    with SimulatedNode.create(folder / "node", profile) as node:
        yield node


def nvlink(node: SimulatedNode, position: int) -> tuple[int, int]:
    card = node.gpus[position]._card
    return sum(link.payload_tx_bytes for link in card.links), sum(link.payload_rx_bytes for link in card.links)


def pcie(node: SimulatedNode, position: int) -> tuple[int, int]:
    card = node.gpus[position]._card
    return card.pcie_tx_bytes, card.pcie_rx_bytes


def test_cards_on_switches_are_joined_by_all_their_links_that_are_up(tmp_path: Path) -> None:
    with made(tmp_path, "h20x8") as node:
        node.gpus[3].set_link_up(5, up=False)
        here, there = links_between(node.gpus[0], node.gpus[3])
        assert (here, there) == (list(range(18)), [number for number in range(18) if number != 5])


def test_cards_that_are_wired_to_each_other_use_those_links(tmp_path: Path) -> None:
    with made(tmp_path, "driver535") as node:
        assert links_between(node.gpus[0], node.gpus[1]) == (list(range(12)), list(range(12)))


def test_bytes_leave_one_card_by_every_link_and_arrive_at_the_other(tmp_path: Path) -> None:
    with made(tmp_path, "h20x2") as node:
        Carrier(node.gpus, WINDOW).carry(Flow(0, 1, 1000.0), 0.0)
        assert (nvlink(node, 0), nvlink(node, 1)) == ((1000, 0), (0, 1000))
        assert sorted({link.payload_tx_bytes for link in node.gpus[0]._card.links[:18]}) == [55, 56]
        assert pcie(node, 0) == (0, 0)


def test_a_link_that_is_down_carries_nothing(tmp_path: Path) -> None:
    with made(tmp_path, "h20x2") as node:
        node.gpus[1].set_link_up(0, up=False)
        Carrier(node.gpus, WINDOW).carry(Flow(0, 1, 1000.0), 0.0)
        assert node.gpus[1]._card.links[0].payload_rx_bytes == 0
        assert (nvlink(node, 0), nvlink(node, 1)) == ((1000, 0), (0, 1000))


def test_without_a_link_that_is_up_the_bytes_take_pcie(tmp_path: Path) -> None:
    with made(tmp_path, "h20x2") as node:
        for link in range(18):
            node.gpus[0].set_link_up(link, up=False)
        Carrier(node.gpus, WINDOW).carry(Flow(0, 1, 1000.0), 0.0)
        assert (nvlink(node, 0), nvlink(node, 1)) == ((0, 0), (0, 0))
        assert (pcie(node, 0), pcie(node, 1)) == ((1000, 0), (0, 1000))


def test_cards_without_nvlink_show_their_pcie_rate_and_lose_it_when_nothing_moves(tmp_path: Path) -> None:
    with made(tmp_path, "pcie-x2") as node:
        carrier = Carrier(node.gpus, WINDOW)
        carrier.carry(Flow(0, 1, 8_000_000.0), 10.0)
        for gpu in node.gpus:
            carrier.show_rates(gpu, 10.0)
        rates = [(gpu._card.pcie_tx_kb_per_s, gpu._card.pcie_rx_kb_per_s) for gpu in node.gpus]
        assert rates == [(2000, 0), (0, 2000)]
        carrier.show_rates(node.gpus[0], 14.5)
        assert node.gpus[0]._card.pcie_tx_kb_per_s == 0


flows = st.builds(Flow, st.integers(0, 7), st.integers(0, 7), st.floats(0, 1e13)).filter(lambda flow: flow.source != flow.target)
down = st.sets(st.tuples(st.integers(0, 7), st.integers(0, 17)))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(flows, max_size=12), down)
def test_as_many_bytes_arrive_as_were_sent_whatever_links_are_down(
    shared: SimulatedNode, carried: list[Flow], broken: set[tuple[int, int]]
) -> None:
    before = [(*nvlink(shared, place), *pcie(shared, place)) for place in range(8)]
    for place, gpu in enumerate(shared.gpus):
        for link in range(18):
            gpu.set_link_up(link, (place, link) not in broken)
    carrier = Carrier(shared.gpus, WINDOW)
    for flow in carried:
        carrier.carry(flow, 0.0)
    moved = [
        [now - then for now, then in zip((*nvlink(shared, place), *pcie(shared, place)), before[place], strict=True)] for place in range(8)
    ]
    sent_nvlink, received_nvlink, sent_pcie, received_pcie = (sum(values) for values in zip(*moved, strict=True))
    assert (sent_nvlink, sent_pcie) == (received_nvlink, received_pcie)
    assert sent_nvlink + sent_pcie == sum(round(flow.count) for flow in carried)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SimulatedNode]:
    """One node for all examples: counters only grow, so each example looks at differences."""
    with made(tmp_path, "h20x8") as node:
        yield node
