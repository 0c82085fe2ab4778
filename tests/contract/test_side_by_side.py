"""The built-in evaluator of `poise up` beside a real Prometheus: the same pages, the same rules, each with its own Alertmanager. The same alerts fire
and end, at nearly the same time.
"""

from __future__ import annotations

import contextlib
import json
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from poise.exporter import metrics as m

from tests.alert_nodes import one_card, one_visible, restart_with_both_cards, tensor_parallel
from tests.both_sides import compare, page_api, spans
from tests.contract_page import ContractPage, served
from tests.monitoring import Monitoring, Receiver, monitoring
from tests.poise_up import get
from tests.second_evaluator import INTERVAL, evaluating, instance_of

pytestmark = pytest.mark.contract

FACTOR = 1 / 30
PATIENCE = 240.0
NODES = ("one-card", "one-visible", "lost", "busy")
#: By how many evaluations the two may differ: one, and what two busy cores add to both.
MOST_INTERVALS = 6.0
#: Seconds for which an alert has to have fired to be looked for on the other side: `keep_firing_for` and two windows.
SHORT = 20.0
#: What the nodes' faults raise at least; what else comes (pages without all series) has to be the same on both sides.
WANTED = {
    ("EngineSaturatedAndIdle", "one-card"),
    ("EngineGPUsUnused", "one-card"),
    ("NodeGPUUnowned", "one-visible"),
    ("GPULost", "lost"),
}


@dataclass(frozen=True)
class Sides:
    pages: dict[str, ContractPage]
    prometheus: Monitoring
    page: str
    told: Receiver

    def firing(self, ask: Callable[[str], list[dict[str, dict[str, str]]]]) -> set[tuple[str, str]]:
        found = ask('ALERTS{alertstate="firing",alertname!="Watchdog"}')
        return {(one["metric"]["alertname"], one["metric"]["instance"]) for one in found}

    def ask_prometheus(self, query: str) -> list[dict[str, dict[str, str]]]:
        result: list[dict[str, dict[str, str]]] = self.prometheus.prometheus.get("/api/v1/query", query=query)["data"]["result"]
        return result

    def ask_poise(self, query: str) -> list[dict[str, dict[str, str]]]:
        result: list[dict[str, dict[str, str]]] = json.loads(
            get(f"{self.page}/api/v1/query?{urllib.parse.urlencode({'query': query})}")[1]
        )["data"]["result"]
        return result

    def until(self, holds: Callable[[set[tuple[str, str]]], bool], what: str) -> None:
        """Waits until it holds of what fires, on both sides."""
        end = time.monotonic() + PATIENCE
        while not all(holds(self.firing(ask)) for ask in (self.ask_prometheus, self.ask_poise)):
            told = f"Prometheus has {sorted(self.firing(self.ask_prometheus))}, poise {sorted(self.firing(self.ask_poise))}"
            assert time.monotonic() < end, f"not within {PATIENCE:.0f} s: {what}; {told}"
            time.sleep(0.1)  # two other processes, which offer no event


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    folder = tmp_path_factory.mktemp("sides")
    with contextlib.ExitStack() as stack:
        pages = {name: stack.enter_context(served(ContractPage())) for name in NODES}
        for name, page in pages.items():
            page.node(f"{name}.example")
        for name in NODES:
            tensor_parallel(pages[name], busy=0.95, tokens=500)
        scraped = {name: page.address for name, page in pages.items()} | {instance_of(pages["busy"].address): pages["busy"].address}
        prometheus = stack.enter_context(monitoring(folder, scraped, factor=FACTOR))
        targets = [word for name, page in pages.items() for word in ("--target", f"{name}=http://{page.address},interval=1s,timeout=1s")]
        # The node that the page itself shows is one of them under another name, so that nothing is missing.
        url, told = stack.enter_context(evaluating(folder / "ours", pages["busy"].address, factor=FACTOR, more=targets))
        yield Sides(pages, prometheus, url, told)


def test_the_same_alerts_fire_and_end_on_both_sides_at_nearly_the_same_time(sides: Sides) -> None:
    # Both have looked on for as long as the rules look back.
    began = time.time()
    end = time.monotonic() + PATIENCE
    while not all(
        ask('ALERTS{alertname="Watchdog"} and on () count_over_time(up{instance="busy"}[20s]) > 15')
        for ask in (sides.ask_prometheus, sides.ask_poise)
    ):
        assert time.monotonic() < end, "both evaluate"
        time.sleep(0.2)
    one_card_page, one_visible_page, lost = (sides.pages[name] for name in ("one-card", "one-visible", "lost"))
    for page in (one_card_page, one_visible_page):
        page.drop(engine="tp")
    one_card(one_card_page)
    one_visible(one_visible_page)
    lost.drop(gpu="1")
    lost.gauge(m.GPU_UP, 0, gpu="1", uuid="GPU-1")
    lost.gauge(m.NODE_GPUS_VISIBLE, 1)
    sides.until(lambda firing: firing >= WANTED, "the alerts of the faults")
    long_enough = time.monotonic() + SHORT  # to be looked for on the other side
    sides.until(lambda firing: firing >= WANTED and time.monotonic() >= long_enough, "the alerts go on while the faults do")

    restart_with_both_cards(one_card_page, "qwen", "chat")
    restart_with_both_cards(one_visible_page, "sim:8000", "sim:8000")
    tensor_parallel(lost, busy=0.95, tokens=500)
    lost.gauge(m.NODE_GPUS_VISIBLE, 2)
    sides.until(lambda firing: not firing & WANTED, "the end of all of them")

    ended = time.time()
    apart = compare(*(spans(ask, began, ended) for ask in (sides.prometheus.prometheus.get, page_api(sides.page))), SHORT)
    assert (apart.only_there, apart.only_here) == ([], [])
    wanted = {(dict(one.key)["alertname"], dict(one.key)["instance"]) for one in apart.both} & WANTED
    assert wanted == WANTED
    print("\nseconds apart (began, ended):", {dict(one.key)["alertname"]: (one.began, one.ended) for one in apart.both})
    assert apart.most() <= MOST_INTERVALS * INTERVAL, apart.both


def test_both_told_their_alertmanagers_the_same(sides: Sides) -> None:
    def told(receiver: Receiver) -> set[tuple[str, str, str]]:
        found = {(alert.name, alert.labels.get("instance", ""), alert.status) for alert in receiver.alerts()}
        return {one for one in found if one[:2] in WANTED}

    end = time.monotonic() + PATIENCE
    while told(sides.prometheus.receiver) != told(sides.told):
        assert time.monotonic() < end, (told(sides.prometheus.receiver), told(sides.told))
        time.sleep(0.1)
    assert ("GPULost", "lost", "resolved") in told(sides.told)
    assert sides.told.alerts(alertname="Watchdog")


def test_why_an_alert_does_not_fire_is_answered_and_its_history_is_kept(sides: Sides) -> None:
    status, text = get(f"{sides.page}/api/poise/v1/alerts/explain/GPULost?instance=busy", timeout=PATIENCE)
    explained = json.loads(text)
    assert (status, explained["alert"], explained["rules"][0]["state"]) == (200, "GPULost", "inactive")
    assert explained["rules"][0]["clause"]["holds"] is False
    changes = json.loads(get(f"{sides.page}/api/poise/v1/alerts/history?name=GPULost")[1])["changes"]
    assert [(change["before"], change["after"]) for change in changes if change["labels"]["instance"] == "lost"] == [
        (None, "pending"),
        ("pending", "firing"),
        ("firing", "inactive"),
    ]
    assert get(f"{sides.page}/api/poise/v1/alerts/explain/NoSuch")[0] == 404
    (line,) = json.loads(get(f"{sides.page}/api/poise/v1/alerts/notifications")[1])["alertmanagers"]
    assert (line["error"], line["waiting"]) == ("", 0)
    rules = json.loads(get(f"{sides.page}/api/v1/rules")[1])["data"]["groups"]
    assert {rule["lastError"] for group in rules for rule in group["rules"] if rule.get("lastError")} == set()
