"""Which cards are measured: paths and links as the simulated driver tells them, and choices that cannot be."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import pytest
from poise.exporter import metrics as m
from poise.exporter.nvml.state import COLLECTOR as STATE
from poise.exporter.snapshot import Gpu, GpuProcess, Reason
from poise.testbed.errors import TestbedError
from poise.testbed.hardware import has_nvidia_driver
from poise.testbed.interconnect.cards import COLLECTORS, Group, group_of, look
from poise.testbed.nvml.node import SimulatedNode

from tests.scenes import card
from tests.simulated import run_python
from tests.simulated_cards import bench


def real(gpu: Gpu) -> Gpu:
    return dataclasses.replace(gpu, simulated=False)


def group(profile: str, *numbers: int) -> Group:
    """The cards of a simulated node, taken for real ones."""
    with bench(profile, collectors=COLLECTORS) as cards:
        for _ in range(2):  # the topology names links that the first round found
            gpus = [real(cards.read_all_tiers(position)) for position in range(len(cards.node.gpus))]
    return group_of(gpus, "570.1", numbers or None)


def test_cards_behind_switches_have_all_their_links() -> None:
    found = group("h100x8")
    assert (found.path, found.indices, found.driver) == ("NV18", tuple(range(8)), "570.1")
    assert found.nominal == pytest.approx(18 * 26.562e9)
    assert found.name == "GPUs 0, 1, 2, 3, 4, 5, 6 and 7"
    assert len(set(found.uuids)) == 8


def test_two_of_eight_in_the_order_that_was_asked_for() -> None:
    found = group("h100x8", 5, 2)
    assert (found.indices, found.path) == ((5, 2), "NV18")
    assert found.nominal == pytest.approx(18 * 26.562e9)


def test_cards_without_links_have_a_path_and_no_nominal() -> None:
    found = group("pcie-x2")
    assert not found.path.startswith("NV")
    assert found.nominal is None


def linked(index: int, links: dict[int, int], up: int) -> Gpu:
    """A card with `up` links of 25 GB/s, of which so many lead to each other card."""
    gpu = card(index, links=dict.fromkeys(range(up), True))
    pairs = {(str(other), f"GPU-{other}", f"NV{count}", "ok"): 1.0 for other, count in links.items()}
    speeds = {(str(link),): 25e9 for link in range(up)}
    return dataclasses.replace(gpu, readings={**gpu.readings, m.GPU_PAIR_INFO: pairs, m.GPU_NVLINK_BANDWIDTH: speeds})


def test_of_cards_joined_directly_only_the_links_to_the_others_count_and_the_card_with_fewest_decides() -> None:
    gpus = [linked(0, {1: 4, 2: 2}, 6), linked(1, {0: 4, 2: 4}, 8), linked(2, {0: 2, 1: 4}, 6)]
    assert group_of(gpus, "", None).nominal == pytest.approx(6 * 25e9)
    assert group_of(gpus, "", None).path == "NV2"
    assert group_of(gpus, "", [0, 2]).nominal == pytest.approx(2 * 25e9)


def test_a_link_that_is_down_carries_nothing() -> None:
    gpu = linked(0, {1: 4}, 4)
    down = dataclasses.replace(gpu, readings={**gpu.readings, m.GPU_NVLINK_UP: {("0",): 0.0, ("1",): 1.0, ("2",): 1.0, ("3",): 1.0}})
    assert group_of([down, linked(1, {0: 4}, 4)], "", None).nominal == pytest.approx(3 * 25e9)


def test_one_pair_without_links_makes_the_group_one_without() -> None:
    gpus = [linked(0, {1: 4}, 4), linked(1, {0: 4}, 4), card(2)]
    found = group_of(gpus, "", None)
    assert (found.path, found.nominal) == ("unknown", None)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([0], "needs two cards or more, each once; --gpus gives 0"),
        ([0, 0], "needs two cards or more"),
        ([0, 7], r"there is no GPU 7; there are 0, 1, 2, 3"),
        ([0, 2], r"GPU 2 does not answer \(gpu_lost\)"),
        ([0, 3], "GPU 3 is a simulated card, which moves no bytes"),
    ],
)
def test_choices_that_cannot_be_are_refused(numbers: list[int], words: str) -> None:
    gpus = [card(0), card(1), card(2, up=False, reason=Reason.GPU_LOST), dataclasses.replace(card(3), simulated=True)]
    with pytest.raises(TestbedError, match=words):
        group_of(gpus, "", numbers)


def test_no_cards_at_all() -> None:
    with pytest.raises(TestbedError, match="gives none"):
        group_of([], "", None)


def test_work_of_others_is_said() -> None:
    held = dataclasses.replace(card(0), processes=(GpuProcess(4242, 1), GpuProcess(4243, None)))
    busy = dataclasses.replace(card(1), processes=(), readings={m.GPU_UTILIZATION: {(): 0.4}})
    assert group_of([held, busy], "", None).busy == ("GPU 0 holds process 4242, 4243", "GPU 1 is 40 % busy")


LOOK = """
from poise.testbed.errors import TestbedError
from poise.testbed.interconnect.cards import look
try:
    print(look(None))
except TestbedError as error:
    print(error)
"""


def test_the_driver_is_asked_and_simulated_cards_are_refused(make_node: Callable[[str], SimulatedNode]) -> None:
    assert run_python(make_node("h20x2"), LOOK) == "GPU 0 is a simulated card, which moves no bytes\n"


@pytest.mark.skipif(has_nvidia_driver(), reason="there is a driver here")
def test_a_driver_that_is_not_there_is_said_at_once() -> None:
    with pytest.raises(TestbedError, match="the NVIDIA driver cannot be asked: "):
        look(None, wait=lambda seconds: time.sleep(seconds / 10))


def test_every_collector_that_is_needed_runs_and_no_other() -> None:
    given = {metric for collector in COLLECTORS for metric in collector.metrics}
    assert {m.GPU_PAIR_INFO, m.GPU_NVLINK_UP, m.GPU_NVLINK_BANDWIDTH, m.GPU_UTILIZATION} <= given
    assert STATE not in COLLECTORS


PATHS = """
from poise.testbed.interconnect import cards
cards.group_of = lambda gpus, driver, numbers: [sorted(path for _, _, path, _ in gpu.readings[cards.m.GPU_PAIR_INFO]) for gpu in gpus]
print(cards.look(None))
"""


def test_a_look_ends_once_each_card_has_told_its_path_to_each_other_one(make_node: Callable[[str], SimulatedNode]) -> None:
    assert run_python(make_node("h100x8"), PATHS) == f"{[['NV18'] * 7] * 8}\n"
