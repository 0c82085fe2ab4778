"""Every rule about engines, cards, links and balance over constructed hours: noise, restarts, lost scrapes, shared and partly used nodes.

Evaluated by our engine, which is held against the real Prometheus elsewhere, in the semantics of Prometheus 2 and 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from poise.alerts import shipped
from poise.alerts.durations import parse_duration
from poise.exporter import metrics as m
from poise.history.promql.evaluate import Semantics
from poise.history.promql.labels import changed
from poise.history.promql.series import STALE, StoredSeries

from tests.rule_outcomes import Outcome, evaluate, rules_for, shipped_rules
from tests.rule_replay import expand, series_of
from tests.rule_scenes import GIB, MEMORY, Node, Over, Scene, steps

pytestmark = pytest.mark.contract

FILES = ("recording", "imbalance", "engine", "gpu", "interconnect")
BOTH = (Semantics.PROMETHEUS_2, Semantics.PROMETHEUS_3)
#: Seconds: when a fault begins in the hour, and the distance of scrapes and of evaluations.
FAULT, STEP = 900.0, 15.0
ONE = {"gpu": "1", "uuid": "n1-GPU-1"}


def hour() -> Scene:
    """An hour with noise, scraped beside the evaluations."""
    return Scene(minutes=60, interval=STEP, jitter=7.0, noise=0.02)


def outcome(scene: Scene, semantics: Semantics = Semantics.PROMETHEUS_3) -> Outcome:
    return evaluate(scene.series(), minutes=scene.minutes, step=STEP, rules=shipped_rules(*FILES), semantics=semantics)


def fault(before: float, after: float) -> Over:
    return steps((0, before), (FAULT, after))


# ----------------------------------------------------------------------------------------------------------- what is healthy
def busy_pair(node: Node) -> None:
    node.pair()


def idle_pair(node: Node) -> None:
    node.pair(busy=0.0, tokens=0, running=0)


def work_that_comes_and_goes(node: Node) -> None:
    """Bursts of four minutes with pauses of six."""

    def on(value: float) -> Over:
        return lambda t: value if t % 600 < 240 else 0.0

    node.pair(busy=on(0.95), tokens=on(500), running=on(8))


def loading(node: Node) -> None:
    """Eighteen minutes of loading, one rank busier than the other, then load."""
    node.card(0, steps((0, 0.9), (1080, 0.95)), nvlink=2e8)
    node.card(1, steps((0, 0.0), (1080, 0.95)), memory=steps((0, 2 * GIB), (1080, 0.9 * MEMORY)), nvlink=2e8)
    node.engine("qwen", up=steps((0, 0), (1080, 1)), start=0.0, tokens=steps((0, 0), (1100, 500)), discovered="config")


def restarted(node: Node) -> None:
    """Three restarts in the hour, each with four minutes of loading."""
    times = (600.0, 1500.0, 2400.0)

    def down(t: float) -> bool:
        return any(since <= t < since + 240 for since in times)

    def start(t: float) -> float:
        return max([since for since in times if since <= t], default=-86_400.0)

    node.pair(
        busy=lambda t: 0.3 if down(t) else 0.95,
        tokens=lambda t: 0.0 if down(t) else 500.0,
        up=lambda t: 0.0 if down(t) else 1.0,
        start=start,
        resets=times,
        discovered="config",
    )


def sleeping(node: Node) -> None:
    """Asleep from the fault's second on, with requests that wait for it to wake."""
    engine = node.pair(busy=fault(0.95, 0.0), tokens=fault(500, 0), running=fault(8, 0), waiting=fault(0, 3))
    node.gauge(m.ENGINE_SLEEPING, fault(0, 1), **engine, model="qwen", dp_rank="0", level="weights_offloaded")
    node.replace(m.GPU_MEMORY_USED, fault(0.9 * MEMORY, 3 * GIB), **ONE)
    node.replace(m.GPU_MEMORY_USED, fault(0.9 * MEMORY, 4 * GIB), gpu="0")


def pipeline(node: Node) -> None:
    """Two stages of two ranks: the second is idle half of the time and holds less."""
    for index, (busy, memory) in enumerate(((0.95, 0.9), (0.95, 0.9), (0.4, 0.6), (0.4, 0.6))):
        node.card(index, busy, memory=memory * MEMORY, nvlink=2e8)
    node.engine("deep", cards=(0, 1, 2, 3), pipeline_parallel=2)


def data_parallel(node: Node) -> None:
    """Four ranks of one card each, NVLink silent, one with less to do."""
    for index, busy in enumerate((0.95, 0.9, 0.92, 0.3)):
        node.card(index, busy)
    node.engine("wide", cards=(0, 1, 2, 3), data_parallel=4)


def shared_cards(node: Node) -> None:
    """Two engines on both cards, one of them without work since the fault's second."""
    for index in (0, 1):
        node.card(index, 0.95, nvlink=2e8, memory=(0.9, 0.7)[index] * MEMORY)
    node.engine("a", tokens=fault(500, 0), running=fault(8, 0))
    node.engine("b")


def two_engines(node: Node) -> None:
    """One card each, both visible to both, unequal load."""
    node.card(0, 0.95)
    node.card(1, 0.03)
    node.engine("a", cards=(0,), other=(1,))
    node.engine("b", cards=(1,), other=(0,), tokens=3, running=0)


def partly_used(node: Node) -> None:
    """Two of four cards for the engine, the others with a program of somebody else."""
    node.card(0, 0.95, nvlink=2e8)
    node.card(1, 0.95, nvlink=2e8)
    node.card(2, 0.0, foreign=20 * GIB, memory=20 * GIB)
    node.card(3, 0.9, foreign=60 * GIB, memory=60 * GIB)
    node.engine("qwen")


def without_nvlink(node: Node) -> None:
    """Cards on PCIe only."""
    for index in (0, 1):
        node.card(index, 0.95, links=0, pcie=2e9)
    node.engine("qwen")


def long_prefills(node: Node) -> None:
    """Prompts that take eight minutes each."""
    for index in (0, 1):
        node.card(index, 0.99, power=440, nvlink=2e9)
    node.engine("qwen", tokens=lambda t: 500.0 if t % 600 < 120 else 0.0, running=1, kv=lambda t: 0.1 + (t % 600) / 1000)


HEALTHY: tuple[Callable[[Node], None], ...] = (
    busy_pair,
    idle_pair,
    work_that_comes_and_goes,
    loading,
    restarted,
    sleeping,
    pipeline,
    data_parallel,
    shared_cards,
    two_engines,
    partly_used,
    without_nvlink,
    long_prefills,
)


@pytest.mark.parametrize("semantics", BOTH, ids=lambda one: one.name.lower())
@pytest.mark.parametrize("build", HEALTHY, ids=lambda build: build.__name__)
def test_healthy_hour_raises_nothing_although_scrapes_are_lost(build: Callable[[Node], None], semantics: Semantics) -> None:
    scene = hour()
    build(scene.node(cards=4))
    scene.lose("n1:9747", 450, 1200, 1215, 2700)
    assert outcome(scene, semantics).names() == set()


# -------------------------------------------------------------------------------------------------------------- what is not
def article(node: Node) -> None:
    node.card(0, fault(0.02, 0.95))
    node.card(1, 0.02)
    node.engine("qwen", cards=(0,), free=(1,), tokens=fault(0, 500), running=fault(0, 8))


def hidden_card(node: Node) -> None:
    node.card(0, fault(0.02, 0.95))
    node.card(1, 0.02)
    node.engine("qwen", cards=(0,), tokens=fault(0, 500), running=fault(0, 8))


def slow_clock(node: Node) -> None:
    node.pair()
    node.replace(m.GPU_CLOCK, fault(1.98e9, 1.1e9), **ONE, clock="sm")


def workers_stopped(node: Node) -> None:
    node.pair(busy=fault(0.95, 0.0), tokens=fault(500, 0))


def ranks_spin(node: Node) -> None:
    for index in (0, 1):
        node.card(index, fault(0.95, 1.0), power=fault(430, 130), nvlink=fault(2e8, 0))
    node.engine("qwen", tokens=fault(500, 0))


def process_gone(node: Node) -> None:
    node.pair(busy=fault(0.95, 0.0), tokens=fault(500, 0), up=fault(1, 0), process=fault(1, 0), discovered="config")
    node.drop(m.ENGINE_GPU_INFO, m.ENGINE_GPUS_USED, m.ENGINE_LOCAL_WORLD_SIZE, since=FAULT)


def crash_loop(node: Node) -> None:
    """Started anew every two minutes and never there."""
    node.pair(
        busy=fault(0.95, 0.1),
        tokens=fault(500, 0),
        up=fault(1, 0),
        start=lambda t: -86_400.0 if t < FAULT else FAULT + (t - FAULT) // 120 * 120,
    )


def rank_gone(node: Node) -> None:
    engine = node.pair(tokens=500)
    node.replace(m.ENGINE_GPUS_USED, fault(2, 1), engine=engine["engine"])


def foreign_process(node: Node) -> None:
    node.pair()
    node.replace(m.GPU_MEMORY_USED, 60 * GIB, gpu="0")
    node.replace(m.GPU_MEMORY_USED, fault(60 * GIB, 80 * GIB), **ONE)
    node.replace(m.GPU_FOREIGN_MEMORY, fault(0, 20 * GIB), **ONE)


def silent_links(node: Node) -> None:
    for index in (0, 1):
        node.card(index, 0.95, nvlink=fault(2e8, 0))
    node.engine("qwen")


def card_lost(node: Node) -> None:
    node.pair()
    node.replace(m.GPU_UP, fault(1, 0), **ONE)
    node.replace(m.NODE_GPUS_VISIBLE, fault(2, 1))
    node.replace(m.GPU_NVLINK_UP, fault(1, 0), gpu="0")
    node.gauge(m.GPU_XID_LAST, steps((FAULT, FAULT)), **ONE, xid="79")
    node.drop(
        *(metric for metric in m.ALL if metric not in (m.GPU_UP, m.GPU_XID_LAST, m.ENGINE_GPU_INFO, m.GPU_LAST_SAMPLE)),
        since=FAULT,
        gpu="1",
    )


def ecc(node: Node) -> None:
    node.pair()
    node.replace(m.GPU_ECC_ERRORS, fault(2, 5), **ONE)
    node.replace(m.GPU_REMAP_PENDING, fault(0, 1), **ONE)
    node.gauge(m.GPU_XID_LAST, steps((FAULT, FAULT)), **ONE, xid="48")


def hot(node: Node) -> None:
    node.pair()
    node.replace(m.GPU_CLOCKS_EVENT_SECONDS, lambda t: 5.0 + max(0.0, t - FAULT) * 0.6, **ONE, reason="hw_thermal_slowdown")
    node.replace(m.GPU_TEMPERATURE_MARGIN, fault(25, -1), **ONE)


def narrow_link(node: Node) -> None:
    node.pair()
    node.replace(m.GPU_PCIE_LINK_WIDTH, fault(16, 4), **ONE)


#: The fault, the alerts that it raises within the hour, and the longest that the first of them may take (seconds).
FAULTS: tuple[tuple[Callable[[Node], None], set[str], float], ...] = (
    (article, {"EngineGPUsUnused", "EngineSaturatedAndIdle", "EngineImbalanceHigh"}, 960),
    (hidden_card, {"NodeGPUUnowned"}, 960),
    (slow_clock, {"EngineRankStraggler"}, 1020),
    (workers_stopped, {"EngineStalled"}, 375),
    (ranks_spin, {"EngineHungInCollective", "EngineStalled"}, 375),
    (process_gone, {"EngineDown"}, 135),
    (crash_loop, {"EngineDown"}, 720),
    (rank_gone, {"EngineRankMissing"}, 195),
    (foreign_process, {"EngineForeignProcess"}, 615),
    (silent_links, {"NVLinkSilent"}, 960),
    (card_lost, {"GPULost", "GPUXidFatal", "NVLinkLinkDown"}, 15),
    (ecc, {"GPUXidFatal", "GPUEccUncorrected", "GPURowRemapPending"}, 15),
    (hot, {"GPUHwThermalSlowdown", "GPUTemperatureMarginLow"}, 240),
    (narrow_link, {"GPUPcieLinkDegraded"}, 1230),
)


@pytest.mark.parametrize(("build", "alerts", "within"), FAULTS, ids=[build.__name__ for build, _, _ in FAULTS])
def test_fault_raises_its_alerts_and_no_other_in_time_on_both_generations(
    build: Callable[[Node], None], alerts: set[str], within: float
) -> None:
    scene = hour()
    build(scene.node())
    found = [outcome(scene, semantics) for semantics in BOTH]
    for one in found:
        assert one.names() == alerts
        since = 0.0 if build is article else FAULT  # a configuration needs no load
        assert min(one.first(alert) for alert in alerts) - since <= within
    for alert in alerts:
        assert abs(found[0].first(alert) - found[1].first(alert)) <= STEP, alert


@pytest.mark.parametrize(
    ("build", "alerts"), [(build, alerts) for build, alerts, _ in FAULTS], ids=[build.__name__ for build, _, _ in FAULTS]
)
def test_one_lost_scrape_never_delays_or_ends_an_alert_by_more_than_an_interval(build: Callable[[Node], None], alerts: set[str]) -> None:
    whole = hour()
    build(whole.node())
    expected = outcome(whole)
    for lost in (FAULT + 15, FAULT + 390):
        scene = hour()
        build(scene.node())
        scene.lose("n1:9747", lost)
        found = outcome(scene)
        assert found.names() == alerts, lost
        for alert in alerts:
            assert abs(found.first(alert) - expected.first(alert)) <= STEP, (alert, lost)
            assert abs(found.last(alert) - expected.last(alert)) <= STEP, (alert, lost)


@pytest.mark.parametrize(
    ("build", "alerts"), [(build, alerts) for build, alerts, _ in FAULTS], ids=[build.__name__ for build, _, _ in FAULTS]
)
def test_no_rule_gives_two_results_with_one_identity_beside_others(build: Callable[[Node], None], alerts: set[str]) -> None:
    """Two scrape jobs for one exporter, a second node with engines of the same names, and a third with shared cards and several ranks."""
    scene = hour()
    build(scene.node(job="poise"))
    build(scene.node(job="again"))
    second = scene.node("n2:9747", cards=4)
    second.pair()
    shared_cards(scene.node("n3:9747"))
    data_parallel(scene.node("n4:9747", cards=4))
    found = outcome(scene)
    assert found.names() == alerts
    for alert in alerts:
        assert {one["instance"] for one in found.identities(alert)} == {"n1:9747"}


# ------------------------------------------------------------------------------------------------ promtool's cases, on both
@pytest.mark.parametrize("path", shipped.rule_test_files(), ids=lambda path: path.stem)
def test_promtools_cases_come_out_alike_on_prometheus_2_and_3(path: Path) -> None:
    document = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)
    step = parse_duration(document["evaluation_interval"])
    for test in document["tests"]:
        questions = test.get("alert_rule_test", [])
        if not questions:
            continue
        series = list(_series(test))
        rules = rules_for(frozenset(question["alertname"] for question in questions))
        minutes = max(parse_duration(question["eval_time"]) for question in questions) / 60
        for semantics in BOTH:
            found = evaluate(series, minutes=minutes, step=step, rules=rules, semantics=semantics)
            for question in questions:
                at, alert = parse_duration(question["eval_time"]), question["alertname"]
                expected = [expectation["exp_labels"] for expectation in question["exp_alerts"]]
                assert sorted(map(sorted_items, found.at(alert, at))) == sorted(map(sorted_items, expected)), (test["name"], at, semantics)


def sorted_items(labels: dict[str, str]) -> list[tuple[str, str]]:
    return sorted((name, str(value)) for name, value in labels.items())


def _series(test: dict[str, Any]) -> Iterator[StoredSeries]:
    interval = parse_duration(str(test["interval"]))
    for one in test.get("input_series", ()):
        values = expand(one["values"])
        kept = [(round(index * interval * 1000), value) for index, value in enumerate(values) if value is not None]
        if kept:
            times, numbers = zip(*kept, strict=True)
            yield StoredSeries(changed(series_of(one["series"]), []), np.array(times, dtype=np.int64), np.array(numbers))


def test_a_stale_marker_is_one_in_both_notations() -> None:
    assert np.array(expand("1 stale")[1:], dtype=float).view(np.int64)[0] == np.array([STALE]).view(np.int64)[0]
