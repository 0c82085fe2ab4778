"""Rules about pools, replicas, routers, objectives and what is seen at all, over constructed hours: noise, restarts, lost scrapes, two deployments.

Evaluated by our engine, which is held against the real Prometheus elsewhere, in the semantics of Prometheus 2 and 3. Rules about engines, cards and
links have hours of their own (`test_rule_scenes.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from poise.exporter import metrics as m
from poise.history.promql.evaluate import Semantics

from tests.rule_deployments import PROMPT, REQUESTS, decode, prefill, router
from tests.rule_outcomes import Outcome, evaluate, shipped_rules
from tests.rule_scenes import Node, Over, Scene, steps

pytestmark = pytest.mark.contract

FILES = ("recording", "recording_pool", "recording_slo", "pd", "replica", "router", "slo", "meta")
BOTH = (Semantics.PROMETHEUS_2, Semantics.PROMETHEUS_3)
#: Seconds: when a fault begins in the hour, and the distance of scrapes and of evaluations.
FAULT, STEP = 900.0, 30.0
LIST = {"p": "prefill", "d": "decode"}


def hour() -> Scene:
    """Three quarters of an hour with noise, scraped beside the evaluations."""
    return Scene(minutes=45, interval=STEP, jitter=7.0, noise=0.02)


def outcome(scene: Scene, semantics: Semantics = Semantics.PROMETHEUS_3) -> Outcome:
    return evaluate(scene.series(), minutes=scene.minutes, step=STEP, rules=shipped_rules(*FILES), semantics=semantics)


@functools.cache
def told(build: Callable[[Node], None], semantics: Semantics = Semantics.PROMETHEUS_3, *lost: float) -> Outcome:
    """What comes of a node with four cards and what `build` puts on it, with these scrapes lost."""
    scene = hour()
    node = scene.node(cards=4)
    cards(node)
    build(node)
    scene.lose("n1:9747", *lost)
    return outcome(scene, semantics)


def fault(before: float, after: float) -> Over:
    return steps((0, before), (FAULT, after))


def cards(node: Node) -> None:
    for index in range(node.cards):
        node.card(index, 0.6)


# ----------------------------------------------------------------------------------------------------------- what is healthy
def under_load(node: Node) -> None:
    prefill(node, "p")
    decode(node, "d")
    router(node, "r", LIST)


def idle(node: Node) -> None:
    prefill(node, "p", requests=0)
    decode(node, "d", requests=0)
    router(node, "r", LIST, requests=0)


def load_that_comes_and_goes(node: Node) -> None:
    """Bursts of four minutes with a queue before prefill, then pauses of six."""

    def on(value: float) -> Over:
        return lambda t: value if t % 600 < 240 else 0.0

    prefill(node, "p", requests=on(6), waiting=on(20))
    decode(node, "d", requests=on(6), kv=on(0.95))
    router(node, "r", LIST, requests=on(6))


def loading(node: Node) -> None:
    """Eighteen minutes of loading of both, then load."""
    up = steps((0, 0), (1080, 1))
    for engine in (prefill(node, "p", up=up), decode(node, "d", up=up)):
        node.replace(m.ENGINE_PROCESS_UP, 1, engine=engine["engine"])
        node.replace(m.ENGINE_START_TIME, 0, engine=engine["engine"])
    router(node, "r", LIST)


def restarts(node: Node) -> None:
    """Decode starts anew twice, four minutes each; requests fail and KV expires for the first minute of each."""

    def since(t: float) -> float:
        return min((t - moment for moment in (600.0, 1800.0) if 0 <= t - moment < 240), default=-1.0)

    up: Over = lambda t: 0.0 if since(t) >= 0 else 1.0  # noqa: E731 - a function of time, as the others are written
    bad: Over = lambda t: 1.0 if 0 <= since(t) < 60 else 0.0  # noqa: E731
    prefill(node, "p", expired=bad)
    engine = decode(node, "d", up=up)
    node.replace(m.ENGINE_PROCESS_UP, 1, engine=engine["engine"])
    node.replace(m.ENGINE_START_TIME, lambda t: t - since(t) if since(t) >= 0 else -86_400.0, engine=engine["engine"])
    router(node, "r", LIST, errors=bad)


def asleep(node: Node) -> None:
    """One of two replicas sleeps; the other has all the load."""
    for name, card, load in (("a", 0, REQUESTS * 4), ("b", 1, 0.0)):
        engine = decode(node, name, card=card, requests=load, external=0, local=load * PROMPT)
        if name == "b":
            node.gauge(m.ENGINE_SLEEPING, 1, **engine, model="qwen", dp_rank="0", level="weights_offloaded")


def one_role_only(node: Node) -> None:
    """Decode engines whose prefill nobody here sees: local prompts, a full cache, failed transfers."""
    decode(node, "d", local=400, external=0, kv=0.97, failed=0.5, waiting=9)


def short_prompts(node: Node) -> None:
    """Most prompts are too short for prefill, on purpose: 75 tokens a second that decode computes."""
    prefill(node, "p", requests=0)
    decode(node, "d", requests=5, local=75, external=0)
    router(node, "r", LIST, requests=5)


def clients_that_leave(node: Node) -> None:
    """A tenth of the clients leave between prefill and decode: KV expires, late notifications come, nobody is to blame."""
    prefill(node, "p", expired=0.2, late=0.05)
    decode(node, "d", aborts=0.3)
    router(node, "r", LIST)


def rollout(node: Node) -> None:
    """Both roles get a new version one after the other, ten minutes apart."""
    prefill(node, "p")
    decode(node, "d")
    router(node, "r", LIST)
    for engine, role, moment in (("p", "prefill", 1200.0), ("d", "decode", 1800.0)):
        own = {"engine": engine, "deployment": "chat", "role": role}
        node.drop(m.ENGINE_INFO, since=moment, engine=engine)
        same = {"model": "qwen", "model_path": "Qwen/Qwen2.5-7B", "kv_connector": "NixlConnector", "discovered": "argv"}
        node.gauge(m.ENGINE_INFO, steps((0, None), (moment, 1)), **own, **same, version="0.33.0")


def replicas(node: Node) -> None:
    """Four engines with 5 to 11 requests each behind a router that routes at random."""
    for index, load in enumerate((2.5, 3.5, 4.5, 5.5)):
        decode(node, f"e{index}", card=index, deployment="whole", requests=load, external=0, local=load * PROMPT)
    router(node, "r", {f"e{index}": "decode" for index in range(4)}, deployment="whole", requests=16)


HEALTHY = (
    under_load,
    idle,
    load_that_comes_and_goes,
    loading,
    restarts,
    asleep,
    one_role_only,
    short_prompts,
    clients_that_leave,
    rollout,
    replicas,
)


@pytest.mark.parametrize("semantics", BOTH, ids=lambda one: one.name.lower())
@pytest.mark.parametrize("build", HEALTHY, ids=lambda build: build.__name__)
def test_healthy_hour_raises_nothing_although_scrapes_are_lost(build: Callable[[Node], None], semantics: Semantics) -> None:
    assert told(build, semantics, 450, 1200, 1230, 2600).names() == set()


# -------------------------------------------------------------------------------------------------------------- what is not
def slow_prefill(node: Node) -> None:
    prefill(node, "p", waiting=fault(0, 12))
    decode(node, "d", kv=0.05)
    router(node, "r", LIST)


def slow_decode(node: Node) -> None:
    prefill(node, "p", expired=fault(0, 0.4))
    decode(node, "d", kv=fault(0.4, 0.98), waiting=fault(0, 9))
    router(node, "r", LIST)


def handshake(node: Node) -> None:
    """The wrong side channel: each transfer fails, decode computes the prompts (kv_load_failure_policy=recompute)."""
    prefill(node, "p")
    decode(node, "d", failed=fault(0, REQUESTS), external=fault(REQUESTS * PROMPT, 0), local=fault(0, REQUESTS * PROMPT))
    router(node, "r", LIST)


def past_prefill(node: Node) -> None:
    prefill(node, "p", requests=fault(REQUESTS, 0))
    decode(node, "d", external=fault(REQUESTS * PROMPT, 0), local=fault(0, REQUESTS * PROMPT))
    router(node, "r", LIST)


def past_decode(node: Node) -> None:
    prefill(node, "p", tokens=fault(1, 60))
    decode(node, "d", requests=fault(REQUESTS, 0))
    router(node, "r", LIST)


def killed_decode(node: Node) -> None:
    prefill(node, "p", expired=fault(0, REQUESTS))
    decode(node, "d", up=fault(1, 0))
    router(node, "r", LIST, errors=fault(0, REQUESTS), requests=fault(REQUESTS, 0))


def killed_router(node: Node) -> None:
    prefill(node, "p", requests=fault(REQUESTS, 0))
    decode(node, "d", requests=fault(REQUESTS, 0))
    router(node, "r", LIST, up=fault(1, 0))


def stale_blocks(node: Node) -> None:
    prefill(node, "p", late=fault(0, 0.2))
    decode(node, "d")
    router(node, "r", LIST)


def other_weights(node: Node) -> None:
    prefill(node, "p", revision="one")
    decode(node, "d", revision="two")
    router(node, "r", LIST)


def exchanged(node: Node) -> None:
    prefill(node, "p")
    decode(node, "d")
    router(node, "r", {"p": "decode", "d": "prefill"})


def uneven(node: Node) -> None:
    """Three engines of four have nothing since the fault."""
    for index in range(4):
        load = 20.0 if index == 0 else fault(20, 0)
        decode(node, f"e{index}", card=index, deployment="whole", requests=load, external=0)


def errors(node: Node) -> None:
    prefill(node, "p")
    decode(node, "d", errors=fault(0, 0.3))
    router(node, "r", LIST)


#: The fault, the alerts that it raises within the hour, and the longest that the first of them may take (seconds).
FAULTS: tuple[tuple[Callable[[Node], None], set[str], float], ...] = (
    (slow_prefill, {"PDPrefillBottleneck"}, 960),
    (slow_decode, {"PDDecodeBottleneck", "PDKVExpired"}, 960),
    (handshake, {"PDKVTransferFailing", "PDKVTransferAbsent", "PDDecodeComputesPrompts"}, 300),
    (past_prefill, {"PDKVTransferAbsent", "PDDecodeComputesPrompts", "PDPoolStarved"}, 720),
    (past_decode, {"PDPrefillGenerates", "PDPoolStarved"}, 960),
    (killed_decode, {"PDRoleMissing", "PDKVExpired", "RouterErrors"}, 180),
    (killed_router, {"RouterDown"}, 180),
    (stale_blocks, {"PDKVLateNotifications"}, 180),
    (other_weights, {"PDModelMismatch"}, 240),
    (exchanged, {"RouterWrongRole"}, 360),
    (uneven, {"ReplicaLoadSkew"}, 1320),
    (errors, {"ErrorBudgetBurnFast", "ErrorBudgetBurnSlow"}, 600),
)
IDS = [build.__name__ for build, _, _ in FAULTS]
#: These are there from the beginning.
CONFIGURED = (other_weights, exchanged)


@pytest.mark.parametrize(("build", "alerts", "within"), FAULTS, ids=IDS)
def test_fault_raises_its_alerts_and_no_other_in_time_on_both_generations(
    build: Callable[[Node], None], alerts: set[str], within: float
) -> None:
    found = [told(build, semantics) for semantics in BOTH]
    for one in found:
        assert one.names() == alerts
        since = 0.0 if build in CONFIGURED else FAULT
        assert min(one.first(alert) for alert in alerts) - since <= within
    for alert in alerts:
        assert abs(found[0].first(alert) - found[1].first(alert)) <= STEP, alert


@pytest.mark.parametrize(("build", "alerts"), [(build, alerts) for build, alerts, _ in FAULTS], ids=IDS)
def test_one_lost_scrape_never_delays_or_ends_an_alert_by_more_than_an_interval(build: Callable[[Node], None], alerts: set[str]) -> None:
    expected, disturbed = told(build, Semantics.PROMETHEUS_3), told(build, Semantics.PROMETHEUS_3, FAULT + 30, FAULT + 390)
    assert disturbed.names() == alerts
    for alert in alerts:
        assert abs(disturbed.first(alert) - expected.first(alert)) <= 2 * STEP, alert
        assert abs(disturbed.last(alert) - expected.last(alert)) <= 2 * STEP, alert


@pytest.mark.parametrize(("build", "alerts"), [(build, alerts) for build, alerts, _ in FAULTS], ids=IDS)
def test_no_rule_gives_two_results_with_one_identity_beside_others(build: Callable[[Node], None], alerts: set[str]) -> None:
    """Two scrape jobs for one exporter, a healthy deployment on a second node, and one over two nodes."""
    scene = hour()
    for job in ("poise", "again"):
        node = scene.node(cards=4, job=job)
        cards(node)
        build(node)
    second, third = scene.node("n2:9747", cards=4), scene.node("n3:9747", cards=4)
    for node in (second, third):
        cards(node)
    prefill(second, "p", deployment="other")
    decode(second, "d", deployment="other")
    router(second, "r", LIST, deployment="other")
    for index in range(2):
        prefill(second, f"wide-p{index}", card=2 + index, deployment="wide")
        decode(third, f"wide-d{index}", card=index, deployment="wide")
    found = outcome(scene)
    assert found.names() == alerts
    for alert in alerts:
        assert not {one.get("deployment") for one in found.identities(alert)} & {"other", "wide"}
