"""The checks of what cards report of themselves and of how they are joined."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pytest
from poise.exporter import metrics as m
from poise.exporter.checks.result import State, Status
from poise.exporter.metrics import Metric
from poise.exporter.snapshot import Engine, Gpu, Libraries, NodeSnapshot, Reason

from tests.check_lines import Scene, line, lines
from tests.scenes import LIBRARIES, START, card, engine, node

WELL: dict[Metric, dict[tuple[str, ...], float]] = {
    m.GPU_REMAP_PENDING: {(): 0.0},
    m.GPU_REMAP_FAILED: {(): 0.0},
    m.GPU_RECOVERY_ACTION: {(): 0.0},
    m.GPU_ECC_ERRORS: {("corrected",): 3.0, ("uncorrected",): 0.0},
    m.GPU_XID_ERRORS: {("79",): 0.0},
}


def with_readings(gpu: Gpu, more: Mapping[Metric, Mapping[tuple[str, ...], float]]) -> Gpu:
    return dataclasses.replace(gpu, readings={**gpu.readings, **more})


def reporting(**changed: object) -> NodeSnapshot:
    """Two cards of which the second reports something: by metric name, the value or its labelled values."""
    readings = {getattr(m, name): value if isinstance(value, dict) else {(): value} for name, value in changed.items()}
    return node([with_readings(card(0), WELL), with_readings(card(1), {**WELL, **readings})], expected=2)


# ------------------------------------------------------------------------------------------------------------------ health
def test_well_cards_are_one_line() -> None:
    found = line(reporting(), "card_health")
    assert (found.status, found.sentence, found.uuid) == (Status.PASS, "2 cards report no error", "")


@pytest.mark.parametrize(
    ("changed", "state", "sentence"),
    [
        ({"GPU_RECOVERY_ACTION": 1.0}, State.PROBLEM, "the driver asks for a reset of the card"),
        ({"GPU_RECOVERY_ACTION": 3.0}, State.WATCH, "the driver asks to drain peer-to-peer traffic"),
        ({"GPU_RECOVERY_ACTION": 44.0}, State.PROBLEM, "the driver asks for recovery action 44"),
        ({"GPU_REMAP_FAILED": 1.0}, State.PROBLEM, "a memory row could not be replaced"),
        ({"GPU_REMAP_PENDING": 1.0}, State.WATCH, "a memory row waits to be replaced"),
        ({"GPU_ECC_ERRORS": {("uncorrected",): 2.0}}, State.WATCH, "2 uncorrected memory errors since the driver was loaded"),
        ({"GPU_XID_LAST": {("79",): START - 120}}, State.WATCH, "it reported XID 79 (card has fallen off the bus) 2 min ago"),
    ],
)
def test_card_that_reports_something_is_named_with_it(changed: dict[str, object], state: State, sentence: str) -> None:
    found = line(reporting(**changed), "card_health")
    assert (found.status, found.state, found.sentence, found.gpu) == (Status.FAIL, state, f"GPU 1: {sentence}", "1")
    assert found.fix


def test_fatal_xid_is_a_problem_where_the_driver_does_not_tell_that_nothing_is_to_be_done() -> None:
    old = {metric: value for metric, value in WELL.items() if metric is not m.GPU_RECOVERY_ACTION}
    gpu = with_readings(card(0), {**old, m.GPU_XID_LAST: {("119",): START}})
    found = line(node([gpu], expected=1), "card_health")
    assert (found.state, found.sentence) == (State.PROBLEM, "GPU 0: it reported XID 119 (GSP does not answer) 0 min ago")
    wanted = line(reporting(GPU_RECOVERY_ACTION=1.0, GPU_XID_LAST={("119",): START}), "card_health")
    assert wanted.sentence == "GPU 1: the driver asks for a reset of the card"
    assert wanted.evidence["XID 119"] == "GSP does not answer, 0 min ago"


def test_worst_of_several_is_said_and_all_are_evidence() -> None:
    found = line(reporting(GPU_REMAP_PENDING=1.0, GPU_REMAP_FAILED=0.0, GPU_RECOVERY_ACTION=1.0), "card_health")
    assert found.sentence == "GPU 1: the driver asks for a reset of the card"
    assert found.evidence == {"recovery action": "a reset of the card", "row remapping": "pending"}


@pytest.mark.parametrize("last", [{("31",): START - 60}, {("79",): START - 7200}, {("x",): START}])
def test_xid_of_a_program_or_of_long_ago_fails_nothing(last: dict[tuple[str, ...], float]) -> None:
    assert line(reporting(GPU_XID_LAST=last), "card_health").status is Status.PASS


def test_partitioned_card_is_said() -> None:
    found = next(result for result in lines(reporting(GPU_MIG_MODE=1.0), "card_health") if result.uuid)
    assert (found.status, found.state) == (Status.UNKNOWN, State.OK)
    assert "is partitioned (MIG)" in found.sentence


def test_cards_without_such_readings_have_no_line_and_refused_ones_are_unknown() -> None:
    assert lines(node([card(0)], expected=1), "card_health") == []
    plain = dataclasses.replace(card(0), absent=dict.fromkeys(WELL, Reason.NOT_SUPPORTED))
    assert lines(node([plain], expected=1), "card_health") == []
    refused = dataclasses.replace(card(0), absent={**plain.absent, m.GPU_ECC_ERRORS: Reason.NO_PERMISSION})
    assert line(node([refused], expected=1), "card_health").sentence == "no card tells its errors (no_permission)"


# ------------------------------------------------------------------------------------------------------------------ fabric
def registered(*states: str) -> list[Gpu]:
    known = ("not_supported", "not_started", "in_progress", "completed", "failed")
    return [
        with_readings(card(index, busy=0), {m.GPU_FABRIC_STATE: {(name,): float(name == state) for name in known}})
        for index, state in enumerate(states)
    ]


def test_registered_cards_pass_and_cards_without_a_fabric_have_no_line() -> None:
    assert line(node(registered("completed", "completed")), "fabric").sentence == "2 cards registered"
    assert lines(node(registered("not_supported", "not_supported")), "fabric") == []
    assert lines(node([card(0)]), "fabric") == []


@pytest.mark.parametrize(
    ("state", "engines", "judged", "words"),
    [
        ("in_progress", [], State.WATCH, "is not done"),
        ("not_started", [engine()], State.PROBLEM, "has not begun"),
        ("failed", [], State.PROBLEM, "failed"),
    ],
)
def test_card_that_is_not_registered_is_named(state: str, engines: Sequence[Engine], judged: State, words: str) -> None:
    found = line(node(registered("completed", state), engines), "fabric")
    assert (found.state, found.sentence) == (judged, f"registration of GPU 1 with the NVLink fabric {words}")


# ------------------------------------------------------------------------------------------------------------ interconnect
def joined(paths: Mapping[tuple[int, int], str], cards: int = 4, *, moved: float | None = None, links: bool = True) -> list[Gpu]:
    """Cards with the path of each pair (SYS where none is given) and the NVLink bytes that they have moved."""
    gpus = []
    for index in range(cards):
        pairs = {
            (str(peer), f"GPU-{peer}", paths.get((min(index, peer), max(index, peer)), "SYS"), "ok"): 1.0
            for peer in range(cards)
            if peer != index
        }
        more: dict[Metric, dict[tuple[str, ...], float]] = {m.GPU_PAIR_INFO: pairs}
        if moved is not None:
            more |= {m.GPU_NVLINK_TOTAL_TX: {(): moved}, m.GPU_NVLINK_TOTAL_RX: {(): moved}}
        gpus.append(with_readings(card(index, busy=0, links={0: links, 1: links}), more))
    return gpus


NEAR = {(0, 1): "NV18", (2, 3): "NV18"}


def test_ranks_joined_by_nvlink_pass_with_their_path() -> None:
    found = line(node(joined(NEAR), [engine(environment="0,1")]), "interconnect")
    assert (found.status, found.sentence) == (Status.PASS, "ranks are joined by NVLink (NV18)")
    assert found.evidence == {"GPU 0 – GPU 1": "NV18"}


def test_ranks_on_far_cards_beside_near_ones_are_watched_with_the_better_pair() -> None:
    found = line(node(joined(NEAR), [engine(cards=[0, 2], environment="0,2")]), "interconnect")
    assert (found.state, found.sentence) == (
        State.WATCH,
        "GPUs 0 and 2 are joined by the link between CPU sockets only (SYS), while GPUs 0 and 1 are by NV18",
    )
    assert found.fix == "start it with CUDA_VISIBLE_DEVICES=0,1"


def test_better_pair_that_another_engine_has_does_not_count() -> None:
    others = engine("n1:8001", cards=[1, 3], environment="1,3")
    found = lines(node(joined(NEAR), [engine(cards=[0, 2], environment="0,2"), others]), "interconnect")
    assert {result.status for result in found} == {Status.PASS}
    assert found[0].sentence.endswith("this node has no better path")


def test_node_with_pcie_only_passes_and_says_so() -> None:
    found = line(node(joined({(0, 1): "PHB"}, 2, links=False), [engine()]), "interconnect")
    assert found.sentence == "GPUs 0 and 1 are joined by the CPU's PCIe bridge only (PHB); their NVLinks lead nowhere (no bridge)"


def flowing(rate: float, *, libraries: Libraries = LIBRARIES, tokens: float = 500.0, **told: str) -> Scene:
    """A pair joined by NVLink that generates `tokens` a second and moves `rate` bytes a second over its links."""

    def scene(second: float) -> NodeSnapshot:
        one = engine(environment="0,1", tokens=tokens * second, libraries=libraries, communication=told)
        return node(joined(NEAR, moved=rate * second), [one])

    return scene


def test_tokens_without_bytes_over_the_links_are_watched_and_the_variable_that_does_it_is_named() -> None:
    found = line(flowing(0.0, NCCL_P2P_DISABLE="1"), "interconnect", 60)
    assert (found.state, found.sentence) == (State.WATCH, "500 tokens/s and no bytes over the NVLinks between the ranks, 60 s")
    assert found.cause == "peer-to-peer is switched off (NCCL_P2P_DISABLE=1)"
    assert "NCCL_DEBUG=INFO" in line(flowing(0.0), "interconnect", 12).fix


@pytest.mark.parametrize(
    "scene", [flowing(5e7), flowing(0.0, tokens=1.0), flowing(0.0, libraries=Libraries()), lambda second: flowing(0.0)(min(second, 1))]
)
def test_bytes_that_move_idle_engines_and_builds_without_cuda_are_quiet(scene: Scene) -> None:
    assert line(scene, "interconnect", 60).status is Status.PASS


def test_paths_that_cannot_be_read_are_unknown_and_not_supported_ones_have_no_line() -> None:
    half = [joined(NEAR, 2)[0], card(1)]
    assert (
        line(
            node([dataclasses.replace(gpu, readings={}, absent={m.GPU_PAIR_INFO: Reason.ERROR}) for gpu in half], [engine()]),
            "interconnect",
        ).status
        is Status.UNKNOWN
    )
    assert lines(node([card(0), card(1)], [engine()]), "interconnect") == []
