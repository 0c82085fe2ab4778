"""The path of an alert through real programs: a page in the contract's words, Prometheus, the shipped rules with their time scaled,
Alertmanager with the shipped routes, a webhook. One run, in which each node is a case of its own, so that the cases take their time together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from poise.exporter import metrics as m

from tests.alert_nodes import loading, one_card, one_visible, pair, restart_with_both_cards, tensor_parallel
from tests.contract_page import ContractPage, served
from tests.monitoring import Alert, Monitoring, monitoring

pytestmark = pytest.mark.contract

#: Ten minutes become 20 s, two minutes 4 s: short enough for a test, long enough for a lost scrape at one a second.
FACTOR = 1 / 30
#: Everything that should arrive does within half a minute; this is for a machine that is out of breath.
PATIENCE = 240.0

NODES = ("one-card", "one-visible", "lost", "gone", "idle", "loading", "pair", "busy")


@dataclass(frozen=True)
class Path:
    """The nodes of the run by name, and what watches them."""

    pages: dict[str, ContractPage]
    watch: Monitoring

    def arrives(self, instance: str, name: str, status: str = "firing") -> Alert:
        """The notification about this alert of this node."""
        return self.watch.receiver.wait_for(
            lambda alert: alert.name == name and alert.labels.get("instance") == instance and alert.status == status, PATIENCE
        )

    def names(self, instance: str) -> set[str]:
        """All alerts of this node that have been notified so far."""
        return {alert.name for alert in self.watch.receiver.alerts(instance=instance)}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with contextlib.ExitStack() as stack:
        pages = {name: stack.enter_context(served(ContractPage())) for name in NODES}
        for name, page in pages.items():
            page.node(f"{name}.example", simulated=name == "one-visible")
        one_card(pages["one-card"])
        one_visible(pages["one-visible"])
        tensor_parallel(pages["lost"], busy=0.95, tokens=500)
        tensor_parallel(pages["gone"], busy=0.95, tokens=500, discovered="config")
        tensor_parallel(pages["idle"], busy=0.01, tokens=0)
        loading(pages["loading"], age=-2 * PATIENCE)
        pair(pages["pair"])
        tensor_parallel(pages["busy"], busy=0.97, tokens=500)
        targets = {name: page.address for name, page in pages.items()}
        watch = stack.enter_context(monitoring(tmp_path_factory.mktemp("path"), targets, factor=FACTOR))
        yield Path(pages, watch)


def test_one_card_of_two_visible_reaches_the_webhook_with_all_that_a_person_needs_although_scrapes_are_lost(path: Path) -> None:
    path.pages["one-card"].lose(1)
    unused = path.arrives("one-card", "EngineGPUsUnused")
    idle = path.arrives("one-card", "EngineSaturatedAndIdle")
    for alert in (unused, idle):
        assert alert.receiver == "ticket"
        assert alert.labels["engine"] == "qwen"
        assert (alert.labels["gpu"], alert.labels["uuid"]) == ("1", "GPU-1")
        assert (alert.labels["node"], alert.labels["simulated"]) == ("one-card.example", "false")
        assert alert.grouped_by == {"instance": "one-card", "deployment": "chat"}
        assert alert.annotations["runbook_url"] == f"http://localhost:9748/runbooks/{alert.name}"
        assert alert.annotations["action"]
    assert "2% of the last 5 minutes" in idle.annotations["description"]
    assert "multiplies them by 0.033" in idle.annotations["time_scale"]
    assert path.names("one-card") == {"EngineGPUsUnused", "EngineSaturatedAndIdle"}


def test_one_visible_card_on_simulated_hardware_reaches_its_receiver_and_never_the_pager(path: Path) -> None:
    alert = path.arrives("one-visible", "NodeGPUUnowned")
    assert alert.receiver == "simulated"
    assert alert.labels["engine"] == "sim:8000"
    assert (alert.labels["gpu"], alert.labels["uuid"]) == ("1", "GPU-1")
    assert (alert.labels["node"], alert.labels["simulated"]) == ("one-visible.example", "true")
    assert alert.annotations["runbook_url"].endswith("/NodeGPUUnowned")
    assert path.names("one-visible") == {"NodeGPUUnowned"}


def test_lost_card_pages_once_and_mutes_what_follows_from_it(path: Path) -> None:
    page = path.pages["lost"]
    page.drop(gpu="1")
    page.gauge(m.GPU_UP, 0, gpu="1", uuid="GPU-1")
    page.gauge(m.NODE_GPUS_VISIBLE, 1)
    page.gauge(m.ENGINE_GPUS_USED, 1, engine="tp", deployment="tp", role="mixed")
    for link in range(4):
        page.gauge(m.GPU_NVLINK_UP, 0, gpu="0", uuid="GPU-0", link=str(link))
    alert = path.arrives("lost", "GPULost")
    assert alert.receiver == "page"
    assert (alert.labels["gpu"], alert.labels["node"]) == ("1", "lost.example")
    muted = {"NVLinkLinkDown", "EngineRankMissing"}
    path.watch.wait_until(lambda: path.watch.inhibited(instance="lost") == muted, PATIENCE, f"{muted} held back")
    assert path.names("lost") == {"GPULost"}

    tensor_parallel(page, busy=0.95, tokens=500)
    page.gauge(m.NODE_GPUS_VISIBLE, 2)
    path.arrives("lost", "GPULost", "resolved")


def test_engine_that_is_gone_pages_and_its_cards_are_not_blamed(path: Path) -> None:
    page = path.pages["gone"]
    labels = {"engine": "tp", "deployment": "tp", "role": "mixed"}
    page.drop(engine="tp")
    nothing = dict.fromkeys(m.ENGINE_INFO.labels, "")
    page.gauge(m.ENGINE_INFO, 1, **labels, **(nothing | {"discovered": "config"}))
    page.gauge(m.ENGINE_UP, 0, **labels)
    page.gauge(m.ENGINE_PROCESS_UP, 0, **labels)
    page.counter(m.GPU_BUSY_SECONDS, 0, gpu="0", uuid="GPU-0")
    alert = path.arrives("gone", "EngineDown")
    assert (alert.receiver, alert.labels["severity"], alert.labels["node"]) == ("page", "critical", "gone.example")
    assert path.names("gone") == {"EngineDown"}


def test_both_are_resolved_after_a_restart_with_both_cards(path: Path) -> None:
    path.arrives("one-card", "EngineSaturatedAndIdle")
    path.arrives("one-visible", "NodeGPUUnowned")
    restart_with_both_cards(path.pages["one-card"], "qwen", "chat")
    restart_with_both_cards(path.pages["one-visible"], "sim:8000", "sim:8000")
    path.arrives("one-card", "EngineGPUsUnused", "resolved")
    path.arrives("one-card", "EngineSaturatedAndIdle", "resolved")
    path.arrives("one-visible", "NodeGPUUnowned", "resolved")


@pytest.mark.parametrize("instance", ["idle", "loading", "pair", "busy"])
def test_healthy_node_is_quiet_for_as_long_as_the_others_needed_to_fire(path: Path, instance: str) -> None:
    path.arrives("one-card", "EngineSaturatedAndIdle")
    assert path.watch.ever_fired(instance=instance) == set()
    assert path.names(instance) == set()


def test_watchdog_keeps_coming_to_the_dead_man_receiver(path: Path) -> None:
    first = len(path.watch.receiver.alerts(alertname="Watchdog"))
    path.watch.wait_until(lambda: len(path.watch.receiver.alerts(alertname="Watchdog")) > first + 1, PATIENCE, "two more Watchdogs")
    assert {alert.receiver for alert in path.watch.receiver.alerts(alertname="Watchdog")} == {"deadman"}


def test_no_rule_failed_to_evaluate(path: Path) -> None:
    path.arrives("one-card", "EngineSaturatedAndIdle")
    assert path.watch.rule_errors() == {}
