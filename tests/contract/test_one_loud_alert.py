"""What comes together, through a real Alertmanager with the shipped configuration: for one cause one alert is sent to the pager.

Half an hour of constructed series holds all cases, each with nodes and a deployment of its own. The shipped rules say which alerts fire in it, and
all of them are given to Alertmanager at once; what is sent and what is held back is Alertmanager's own decision. So the cases show, too, that none
mutes another.
"""

from __future__ import annotations

import functools
import json
import urllib.request
from collections.abc import Iterator, Mapping

import pytest
from poise.exporter import metrics as m

from tests.monitoring import Receiver, Server, alertmanager, receiving
from tests.rule_deployments import PROMPT, REQUESTS, decode, prefill, router
from tests.rule_outcomes import evaluate
from tests.rule_scenes import Scene, steps
from tests.waiting import wait_until

pytestmark = pytest.mark.contract

#: When the fault comes, and how long the scene is, in seconds.
FAULT, MINUTES = 600.0, 30
PATIENCE = 120.0
BOTH = {"p": "prefill", "d": "decode"}
GONE = steps((0, 1), (FAULT, 0))

#: Case → the alert that is sent to the pager, and some of those that are held back because of it.
CASES: Mapping[str, tuple[str, set[str]]] = {
    "xid": ("GPUXidFatal", {"GPULost", "EngineDown"}),
    "xid-prefill": ("GPUXidFatal", {"GPULost", "EngineDown", "PDRoleMissing", "RouterErrors"}),
    "mismatch": ("PDModelMismatch", {"PDKVTransferFailing", "ErrorBudgetBurnFast", "RouterErrors"}),
    "handshake": ("PDKVTransferFailing", {"ErrorBudgetBurnFast", "RouterErrors"}),
    "exporter": ("ExporterDown", set()),
    "decode": ("PDRoleMissing", {"EngineDown", "RouterErrors"}),
    "router": ("RouterDown", set()),
    "direct": ("PDKVTransferAbsent", {"PDDecodeComputesPrompts", "PDPoolStarved"}),
    "replica": ("EngineDown", {"TTFTBudgetBurnFast"}),
}


def build() -> Scene:
    """All cases in one scene: instance `CASE:9747`, deployment CASE."""
    scene = Scene(minutes=MINUTES, interval=30)
    for case in CASES:
        node = scene.node(f"{case}:9747")
        if case == "xid":
            node.pair(discovered="config", deployment=case)
            _lose_card(scene, node.instance, "1")
            _end_engine(scene, node.instance, "qwen")
            continue
        broken = case in ("mismatch", "handshake")
        # Whose requests end with the fault; its card has nothing to do then.
        idle_prefill, idle_decode = case in ("direct", "router", "xid-prefill"), broken or case in ("xid-prefill", "router", "decode")
        served, working = steps((0, REQUESTS), (FAULT, 0)), steps((0, 0.6), (FAULT, 0.02))
        node.card(0, working if idle_prefill else 0.6)
        node.card(1, working if idle_decode else 0.6)
        if case == "replica":
            for name, card in (("a", 0), ("b", 1)):
                decode(node, name, card=card, deployment=case, up=GONE if name == "a" else 1, discovered="config")
            slow = steps((0, REQUESTS), (FAULT, 0))
            scene.drop(node.instance, engine="b", le="2.5")
            labels = {"engine": "b", "deployment": case, "role": "decode", "model": "qwen", "dp_rank": "0"}
            node.counter(f"{m.ENGINE_TTFT.name}_bucket", slow, start=1e5, **labels, le="2.5")
            continue
        prefill(
            node,
            "p",
            deployment=case,
            up=GONE if case == "xid-prefill" else 1,
            requests=served if idle_prefill else REQUESTS,
        )
        decode(
            node,
            "d",
            deployment=case,
            up=GONE if case == "decode" else 1,
            requests=served if idle_decode else REQUESTS,
            failed=steps((0, 0), (FAULT, REQUESTS)) if broken else 0,
            errors=steps((0, 0), (FAULT, REQUESTS)) if broken else 0,
            local=steps((0, 0), (FAULT, REQUESTS * PROMPT)) if case == "direct" else 0,
            external=steps((0, REQUESTS * PROMPT), (FAULT, 0)) if broken or case == "direct" else None,
            revision="abc" if case == "mismatch" else "",
        )
        if case == "mismatch":
            # It was restarted with another revision when the fault came.
            scene.drop(node.instance, m.ENGINE_INFO, engine="d", until=FAULT)
            same = {
                "engine": "d",
                "deployment": case,
                "role": "decode",
                "version": "0.32.0",
                "model": "qwen",
                "kv_connector": "NixlConnector",
            }
            node.gauge(m.ENGINE_INFO, steps((0, 1), (FAULT, None)), **same, model_path="Qwen/Qwen2.5-7B", discovered="argv")
        failing = steps((0, 0), (FAULT, REQUESTS)) if broken or case in ("decode", "xid-prefill") else 0
        router(
            node,
            "r",
            BOTH,
            deployment=case,
            up=GONE if case == "router" else 1,
            requests=REQUESTS if not failing else served,
            errors=failing,
        )
        if case == "xid-prefill":
            _lose_card(scene, node.instance, "0")
    scene.drop("exporter:9747", since=FAULT)
    for case in CASES:
        scene.gauge("up", GONE if case == "exporter" else 1, f"{case}:9747", job="poise")
        scene.gauge(m.BUILD_INFO, GONE_OR_ONE[case == "exporter"], f"{case}:9747", job="poise", version="1", python="3.11")
    return scene


GONE_OR_ONE = {True: steps((0, 1), (FAULT, None)), False: steps((0, 1))}


def _lose_card(scene: Scene, instance: str, gpu: str) -> None:
    """XID 79: the card falls off the bus; only that it is gone stays on the page."""
    uuid = f"{instance.partition(':')[0]}-GPU-{gpu}"
    scene.drop(instance, since=FAULT, uuid=uuid)
    scene.drop(instance, m.GPU_UP, uuid=uuid)
    scene.gauge(m.GPU_UP, GONE, instance, gpu=gpu, uuid=uuid)
    scene.gauge(m.GPU_XID_LAST, steps((0, None), (FAULT, FAULT)), instance, gpu=gpu, uuid=uuid, xid="79")
    scene.replace(instance, m.NODE_GPUS_VISIBLE, steps((0, 2), (FAULT, 1)))


def _end_engine(scene: Scene, instance: str, engine: str) -> None:
    """vLLM ends with its card: it keeps its identity and says that it is down."""
    for metric in (m.ENGINE_UP, m.ENGINE_PROCESS_UP):
        scene.replace(instance, metric, GONE, engine=engine)
    kept = (m.ENGINE_UP, m.ENGINE_PROCESS_UP, m.ENGINE_INFO)
    scene.drop(instance, *(metric for metric in m.ALL if metric not in kept), since=FAULT, engine=engine)


@functools.cache
def firing() -> tuple[Mapping[str, str], ...]:
    """The label sets of all alerts that fire in the scene at any time."""
    outcome = evaluate(build().series(), minutes=MINUTES, step=30)
    return tuple({**own, "alertname": alert} for alert in outcome.names() for own in outcome.identities(alert))


def of(case: str) -> list[Mapping[str, str]]:
    """The alerts of one case: of its node or its deployment."""
    return [own for own in firing() if own.get("instance") == f"{case}:9747" or own.get("deployment") == case]


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Receiver, Server]]:
    """A receiver and an Alertmanager that has been given all alerts and has decided about each."""
    with receiving() as receiver, alertmanager(tmp_path_factory.mktemp("loud"), receiver) as server:
        body = json.dumps([{"labels": own, "annotations": {"summary": own["alertname"]}} for own in firing()]).encode()
        request = urllib.request.Request(f"{server.url}/api/v2/alerts", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE):
            pass

        def decided() -> bool:
            came = {tuple(sorted(alert.labels.items())) for alert in receiver.alerts()}
            quiet = [own for own in firing() if own["severity"] == "none"]
            return all(tuple(sorted(own.items())) in came or own in quiet or own in held_back(server) for own in firing())

        wait_until(decided, "every alert is sent or held back", PATIENCE)
        yield receiver, server


def held_back(server: Server) -> list[Mapping[str, str]]:
    """The alerts that Alertmanager mutes because another explains them."""
    alerts = server.get("/api/v2/alerts", active="true", inhibited="true")
    return [alert["labels"] for alert in alerts if alert["status"]["inhibitedBy"]]


@pytest.mark.parametrize("case", CASES)
def test_one_cause_sends_one_alert_to_the_pager(case: str, sent: tuple[Receiver, Server]) -> None:
    receiver, server = sent
    loud, muted = CASES[case]
    paged = {alert.name for alert in receiver.alerts() if alert.receiver == "page" and dict(alert.labels) in of(case)}
    assert paged == {loud}, f"fired: {sorted(own['alertname'] for own in of(case))}"
    assert muted <= {own["alertname"] for own in held_back(server) if own in of(case)}


def test_nothing_fires_before_the_faults() -> None:
    outcome = evaluate(build().series(), minutes=FAULT / 60 - 1, step=30)
    assert outcome.names() == set()


def test_tickets_are_not_sent_for_what_the_pager_said(sent: tuple[Receiver, Server]) -> None:
    """Few are left: each is about something else than the loud alert."""
    receiver, _ = sent
    tickets = {
        (case, alert.name) for alert in receiver.alerts() if alert.receiver == "ticket" for case in CASES if dict(alert.labels) in of(case)
    }
    assert {name for _, name in tickets} <= {"EngineDown"}, tickets
