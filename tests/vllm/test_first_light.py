"""The whole of Poise on a real tensor-parallel vLLM: exporter, checklist, rules, Prometheus, Alertmanager, webhook, through every fault.

One deployment, one load and one monitoring for all cases. All faults on all shapes are in tests/soak/test_faults.py.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from poise.testbed import faults
from poise.testbed.deployment import Deployment

from tests.fault_runs import beside
from tests.monitoring import Alert, Monitoring, monitoring
from tests.vllm.deploying import progress_of, samples
from tests.vllm.watching import PATIENCE, checklist, exporter_page, loaded, when
from tests.waiting import wait_until

#: Five minutes become 15 seconds, which hold three polls of an engine; twenty minutes of loading become one, which is longer than a start.
FACTOR = 1 / 20
#: What the page and `poise doctor` may take to name a configuration fault, from the first load on (seconds).
NAMED_WITHIN = 15.0


@dataclass(frozen=True)
class Case:
    """A fault, and the check that must name it in these words. Which alerts must come, and may come with them, the fault declares."""

    fault: str
    check: str
    sentence: str


CASES = (
    Case("slow-clock", "rank_clock", r"GPU 1 runs at \d+ MHz while its group reaches \d+ MHz"),
    Case("link-down", "nvlink_links", r"link \d+ of GPU \d is down|links? .* of GPU 1 (is|are) down"),
    Case("card-lost", "cards", r"GPU 1 does not answer"),
    Case("rank-gone", "parallel_size", r"the engine has processes on 1 of the 2 cards that its ranks need"),
    Case("kill-rank", "engine_answers", r"the engine's process went"),
    Case("one-visible", "idle_unowned_card", r"GPU 1 is idle \(\d %\) while GPU 0 is (saturated|busy) \(\d+ %\), mean of 10 s"),
    Case("one-card", "parallel_size", r"the engine has processes on 1 of its 2 visible GPUs; GPU 1 is unused"),
)


@dataclass
class Scene:
    """The deployment under load, and what watches it."""

    deployment: Deployment
    watch: Monitoring
    load: contextlib.ExitStack

    def load_on(self) -> None:
        """Endless requests from now on."""
        self.load.enter_context(loaded(self.deployment))

    def load_off(self) -> None:
        """The requests under way are finished, and none follow."""
        self.load.close()

    def notified(self, name: str, status: str, since: int) -> Alert | None:
        """The notification of this alert that came after the first `since`; None when Alertmanager holds it back because another explains it."""
        found: list[Alert] = []

        def told() -> bool:
            found[:] = [alert for alert in self.watch.receiver.alerts()[since:] if alert.name == name and alert.status == status]
            return bool(found) or (status == "firing" and name in self.watch.inhibited())

        self.watch.wait_until(told, PATIENCE, f"{name} {status} is told, or held back")
        return found[0] if found else None

    def firing(self) -> set[str]:
        """What fires now and is for people: not the Watchdog, nor sources of inhibition."""
        return {labels["alertname"] for labels, _ in self.watch.query('ALERTS{alertstate="firing",severity!="none"}')}


@pytest.fixture(scope="module")
def scene(_shared: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    faults.undo(_shared, progress_of("mending", []))
    address = (_shared.plan.exporter_url or "").removeprefix("http://")
    folder = tmp_path_factory.mktemp("watch")
    with monitoring(folder, {"node1": address}, factor=FACTOR) as watch, contextlib.ExitStack() as load:
        scene = Scene(_shared, watch, load)
        scene.load_on()
        yield scene


def test_healthy_pair_under_load_is_busy_on_both_cards_and_joined_by_pid_rank_and_card(scene: Scene) -> None:
    workers = {str(worker.pid): worker for worker in scene.deployment.workers()}

    def joined(_: Mapping[str, Any]) -> dict[str, str] | None:
        page = exporter_page(scene.deployment)
        held = {labels["pid"]: labels["gpu"] for labels, _value in samples(page, "poise_gpu_process_memory_bytes") if labels["engine"]}
        return held if set(held) == set(workers) else None

    held, _ = when(scene.deployment, joined, "both workers on cards")
    assert held == {pid: str(worker.local_rank) for pid, worker in workers.items()}
    page = exporter_page(scene.deployment)
    cards = [labels for labels, _ in samples(page, "poise_engine_gpu_info")]
    assert [(card["gpu"], card["tp_rank"], card["use"], card["role"]) for card in cards] == [
        ("0", "0", "own", "mixed"),
        ("1", "1", "own", "mixed"),
    ]
    (node,) = [labels for labels, _ in samples(page, "poise_node_info")]
    assert node["simulated"] == "true"

    def both_busy() -> bool:
        busy = scene.watch.query("rate(poise_gpu_busy_seconds_total[15s])")
        return len(busy) == 2 and all(value > 0.5 for _, value in busy)

    scene.watch.wait_until(both_busy, PATIENCE, "both cards busy for more than half of the time")
    when(scene.deployment, lambda page: page["verdict"]["state"] == "ok", "a calm verdict")
    assert scene.firing() == set()


def change(scene: Scene, fault: faults.Fault, action: Callable[[], object]) -> None:
    """Put a fault on or take it back. A server is restarted without load: the seconds to a line count from a server that has answered and
    clients that ask it, not from clients that wait before they try a dead one again."""
    if fault.restarts:
        scene.load_off()
        action()
        scene.load_on()
    else:
        action()


@pytest.mark.parametrize("case", CASES, ids=[case.fault for case in CASES])
def test_fault_is_named_with_its_cause_alerts_as_it_should_and_is_resolved(scene: Scene, case: Case) -> None:
    deployment = scene.deployment
    scene.watch.wait_until(lambda: scene.firing() == set(), PATIENCE, "quiet before the fault")
    before, began = len(scene.watch.receiver.alerts()), time.time()
    fault = faults.find(case.fault)
    change(scene, fault, lambda: faults.apply(deployment, fault, progress_of(case.fault, [])))

    def named(page: Mapping[str, Any]) -> Any:
        lines = [line for line in page["checks"] if line["check"] == case.check and line["status"] == "fail"]
        return next((line for line in lines if re.search(case.sentence, line["sentence"])), None)

    line, seconds = when(deployment, named, f"{case.check}: {case.sentence}")
    assert line["cause"]
    assert line["fix"]
    if case.fault in ("one-visible", "one-card"):
        assert "GPU 1" in line["line"]
        assert "CUDA_VISIBLE_DEVICES" in line["cause"]
        assert seconds < NAMED_WITHIN + 30, "far beyond what was promised even for a slow machine"

    told: list[str] = []
    for name in sorted(fault.raises.alerts):
        alert = scene.notified(name, "firing", before)
        if alert is None:
            continue
        told.append(name)
        assert alert.labels["instance"] == "node1"
        assert alert.labels["simulated"] == "true"
        assert alert.labels["node"] == checklist(deployment)["node"]
        assert alert.annotations["runbook_url"].endswith(name)
        if name.startswith(("Engine", "NodeGPUUnowned")):
            assert alert.labels["engine"] == line["engine"] or line["engine"] == ""
        if "gpu" in alert.labels:
            assert alert.labels["gpu"] == "1"
    fired = {
        labels["alertname"]
        for labels, _ in scene.watch.query(
            f'count_over_time(ALERTS{{alertstate="firing",severity!="none"}}[{int(time.time() - began) + 1}s])'
        )
    }
    assert set(fault.raises.alerts) <= fired
    assert fired - set(fault.raises.alerts) <= beside(fault)

    change(scene, fault, lambda: faults.undo(deployment, progress_of("undo", [])))
    assert told, "one of them has to reach a person"
    for name in told:
        scene.notified(name, "resolved", before)
    wait_until(lambda: len(deployment.workers()) == 2, "two workers again", PATIENCE)
