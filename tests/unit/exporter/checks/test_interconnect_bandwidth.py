"""The check of measured all-reduces: what of a measurement condemns the links, what does not, and what is said without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from poise.exporter import metrics as m
from poise.exporter.checks.interconnect_bandwidth import judge
from poise.exporter.checks.result import State, Status
from poise.exporter.interconnect_results import Measurement, Run, Size, Usable
from poise.exporter.snapshot import Engine, Gpu, NodeSnapshot

from tests.check_lines import line, lines
from tests.scenes import START, card, engine, node

NAME = "interconnect_bandwidth"
MIB = 1 << 20
LARGE = 256 * MIB


def linked(index: int, path: str = "NV18", of: int = 2) -> Gpu:
    """A card that this path joins with the others."""
    gpu = card(index, links={0: True})
    pairs = {(str(other), f"GPU-{other}", path, "ok"): 1.0 for other in range(of) if other != index}
    return replace(gpu, readings={**gpu.readings, m.GPU_PAIR_INFO: pairs})


def run(p2p: str, rate: float, size: int = LARGE, ranks: int = 2) -> Run:
    """A run whose largest message has this bus bandwidth, in bytes per second."""
    seconds = size * 2 * (ranks - 1) / ranks / rate
    return Run(p2p, (Size(1024, 2e-5, 2e-5, 3e-5), Size(size, seconds, seconds, seconds)))


def measured(*runs: Run, cards: Sequence[int] = (0, 1), path: str = "NV18", nominal: float | None = 450e9) -> Measurement:
    uuids = tuple(f"GPU-{index}" for index in cards)
    return Measurement("nccl", len(uuids), uuids, path, nominal, "2.27.3", "570.1", "b", START - 7200, runs)


def scene(*measurements: Measurement, gpus: Sequence[Gpu] | None = None, engines: Sequence[Engine] = (), refused: str = "") -> NodeSnapshot:
    usable = Usable(measurements, (refused,) if refused else ())
    return replace(node(list(gpus or [linked(0), linked(1)]), list(engines)), interconnect=usable)


GOOD = measured(run("on", 362e9), run("off", 18e9))


def test_fast_links_pass_with_their_share() -> None:
    found = line(scene(GOOD, engines=[engine()]), NAME)
    assert (found.status, found.engine) == (Status.PASS, "n1:8000")
    assert found.sentence == "all-reduce over GPUs 0 and 1 (NV18) reaches 362 GB/s, 80 % of the 450 GB/s that the links carry"
    assert found.evidence == {
        "peer-to-peer on": "362 GB/s, 20 µs",
        "peer-to-peer off": "18 GB/s, 20 µs",
        "measured": "2 h ago with nccl 2.27.3",
    }


@pytest.mark.parametrize(("engines", "state"), [([engine()], State.PROBLEM), ([], State.WATCH)])
def test_no_faster_with_peer_to_peer_than_without_means_that_nvlink_is_not_used(engines: list[Engine], state: State) -> None:
    found = line(scene(measured(run("on", 18.5e9), run("off", 18e9)), engines=engines), NAME)
    assert (found.status, found.state) == (Status.FAIL, state)
    assert found.sentence == ("all-reduce over GPUs 0 and 1 (NV18) reaches 18 GB/s, and without peer-to-peer 18 GB/s: NVLink is not used")
    assert "NCCL_DEBUG=INFO poise testbed interconnect" in found.fix


def test_a_third_of_what_the_links_carry_fails() -> None:
    found = line(scene(measured(run("on", 150e9), run("off", 18e9)), engines=[engine()]), NAME)
    assert found.status is Status.FAIL
    assert "33 % of the 450 GB/s that the links carry" in found.sentence


def test_small_messages_condemn_no_link() -> None:
    found = line(scene(measured(run("on", 30e9, MIB), run("off", 5e9, MIB)), engines=[engine()]), NAME)
    assert (found.status, found.fix) == (Status.UNKNOWN, "poise testbed interconnect --sizes 1K..256M")


@pytest.mark.parametrize("path", ["PIX", "SYS"])
def test_cards_without_nvlink_are_not_held_against_anything(path: str) -> None:
    gpus = [linked(0, path), linked(1, path)]
    found = line(scene(measured(run("on", 18e9), run("off", 18e9), path=path, nominal=None), gpus=gpus), NAME)
    assert (found.status, found.sentence) == (
        Status.PASS,
        f"all-reduce over GPUs 0 and 1 ({path}) reaches 18 GB/s; there is no NVLink to hold it against",
    )


def test_an_unknown_nominal_is_said() -> None:
    assert line(scene(measured(run("on", 362e9), nominal=None)), NAME).sentence.endswith(
        "the driver does not tell what the links can carry"
    )


def test_without_a_measurement_it_is_unknown_and_the_command_is_named() -> None:
    found = line(scene(engines=[engine()]), NAME)
    assert (found.status, found.state) == (Status.UNKNOWN, State.OK)
    assert found.sentence == "nobody has measured an all-reduce over these cards since the node was booted"
    assert found.fix.startswith("`poise testbed interconnect --gpus 0,1`")


def test_why_a_measurement_does_not_count_is_said() -> None:
    reason = "the measurement of 2 days ago does not count: the driver was 1 and is 2"
    assert line(scene(engines=[engine()], refused=reason), NAME).sentence == reason


def test_a_measurement_over_more_cards_speaks_for_some_of_them_and_the_closest_one_is_taken() -> None:
    gpus = [linked(index, of=4) for index in range(4)]
    four = measured(run("on", 100e9, ranks=4), run("off", 10e9, ranks=4), cards=(0, 1, 2, 3))
    one = engine(cards=(0, 1))
    assert "over GPUs 0, 1, 2 and 3" in line(scene(four, gpus=gpus, engines=[one]), NAME).sentence
    found = lines(scene(four, GOOD, gpus=gpus, engines=[one]), NAME)
    assert [(result.engine, result.status, result.state) for result in found] == [
        ("n1:8000", Status.PASS, State.OK),
        ("", Status.FAIL, State.WATCH),
    ]
    other = measured(run("on", 362e9), cards=(2, 3))
    assert [result.status for result in lines(scene(other, gpus=gpus, engines=[one]), NAME)] == [Status.UNKNOWN, Status.PASS]


def test_no_line_for_one_card_pcie_simulated_cards_or_a_dead_engine() -> None:
    assert lines(scene(engines=[engine(cards=[0])]), NAME) == []
    assert lines(scene(gpus=[linked(0, "SYS"), linked(1, "SYS")], engines=[engine()]), NAME) == []
    assert lines(scene(engines=[engine(process_up=False)]), NAME) == []
    simulated = [replace(linked(index), simulated=True) for index in (0, 1)]
    assert lines(scene(GOOD, gpus=simulated, engines=[engine()]), NAME) == []


def test_what_was_measured_without_cards_judges_none() -> None:
    loopback = replace(GOOD, backend="gloo", cards=(), path="loopback", nominal=None, runs=(run("none", 2.1e9),))
    assert lines(scene(loopback), NAME) == []
    assert line(scene(loopback, engines=[engine()]), NAME).status is Status.UNKNOWN
    assert judge(loopback, "") == (
        Status.UNKNOWN,
        "2 processes over main memory and loopback: 2.1 GB/s, 20 µs for the smallest message; that says nothing of NVLink",
        "",
        "",
    )
