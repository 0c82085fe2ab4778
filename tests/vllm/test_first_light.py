"""The whole of Poise on a real tensor-parallel vLLM: exporter, checklist, rules, Prometheus, Alertmanager, webhook, through every fault.

One deployment, one load and one monitoring for all cases. POISE_FAULT_TABLE=FILE writes the table of docs/testbed.md (`make faults`).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from poise.testbed import faults, processes
from poise.testbed.deployment import Deployment

from tests.monitoring import Alert, Monitoring, monitoring
from tests.vllm.deploying import progress_of, read, samples, total
from tests.vllm.watching import PATIENCE, checklist, exporter_page, loaded, when
from tests.waiting import wait_until

#: Five minutes become 15 seconds, which hold three polls of an engine; twenty minutes of loading become one, which is longer than a start.
FACTOR = 1 / 20
#: What the page and `poise doctor` may take to name a configuration fault, from the first load on (seconds).
NAMED_WITHIN = 15.0


TABLE_HEAD = """\
# What each fault says

Measured by `make faults` on a real vLLM with tensor parallelism 2 under load, on simulated cards, two cores. *Seconds* run from the moment
the fault is in force (for `one-visible` and `one-card`: the restarted server has answered its first request under load) to the line on the
page and in `poise doctor`. Alerts wait for their `for` on top (docs/alerts.md); none but those named came.

| fault | the line | seconds | alerts |
| - | - | -: | - |
"""


@dataclass(frozen=True)
class Case:
    """A fault: the check that must name it in these words, the alerts that must come, and those that may come with them."""

    fault: str
    check: str
    sentence: str
    alerts: frozenset[str]
    tolerated: frozenset[str] = frozenset()


CASES = (
    Case("slow-clock", "rank_clock", r"GPU 1 runs at \d+ MHz while its group reaches \d+ MHz", frozenset({"EngineRankStraggler"})),
    Case("link-down", "nvlink_links", r"link \d+ of GPU \d is down|links? .* of GPU 1 (is|are) down", frozenset({"NVLinkLinkDown"})),
    Case("card-lost", "cards", r"GPU 1 does not answer", frozenset({"GPULost"})),
    Case(
        "rank-gone",
        "parallel_size",
        r"the engine has processes on 1 of the 2 cards that its ranks need",
        frozenset({"EngineRankMissing"}),
    ),
    Case("kill-rank", "engine_answers", r"the engine's process went", frozenset({"EngineDown"})),
    Case(
        "one-visible",
        "idle_unowned_card",
        r"GPU 1 is idle \(\d %\) while GPU 0 is (saturated|busy) \(\d+ %\), mean of 10 s",
        frozenset({"NodeGPUUnowned"}),
    ),
    Case(
        "one-card",
        "parallel_size",
        r"the engine has processes on 1 of its 2 visible GPUs; GPU 1 is unused",
        frozenset({"EngineGPUsUnused", "EngineSaturatedAndIdle"}),
    ),
)


@dataclass
class Scene:
    """The deployment under load, what watches it, and the rows for the documentation."""

    deployment: Deployment
    watch: Monitoring
    instance: str
    table: list[str]

    def notified(self, name: str, status: str, since: int) -> Alert:
        """The notification of this alert that came after the first `since`."""
        return self.watch.receiver.wait_for(
            lambda alert: alert.name == name and alert.status == status and alert in self.watch.receiver.alerts()[since:], PATIENCE
        )

    def firing(self) -> set[str]:
        """What fires now, the Watchdog aside."""
        return {labels["alertname"] for labels, _ in self.watch.query('ALERTS{alertstate="firing"}')} - {"Watchdog"}


@pytest.fixture(scope="module")
def scene(_shared: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    faults.undo(_shared, progress_of("mending", []))
    address = (_shared.plan.exporter_url or "").removeprefix("http://")
    folder = tmp_path_factory.mktemp("watch")
    with monitoring(folder, {"node1": address}, factor=FACTOR) as watch, loaded(_shared):
        scene = Scene(_shared, watch, "node1", [])
        yield scene
    if target := os.environ.get("POISE_FAULT_TABLE"):
        Path(target).write_text(TABLE_HEAD + "\n".join(scene.table) + "\n", encoding="utf-8")


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


@pytest.mark.parametrize("case", CASES, ids=[case.fault for case in CASES])
def test_fault_is_named_with_its_cause_alerts_as_it_should_and_is_resolved(scene: Scene, case: Case) -> None:
    deployment = scene.deployment
    scene.watch.wait_until(lambda: scene.firing() == set(), PATIENCE, "quiet before the fault")
    before, began = len(scene.watch.receiver.alerts()), time.time()
    faults.apply(deployment, faults.find(case.fault), progress_of(case.fault, []))

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
    scene.table.append(f"| `{case.fault}` | {line['line']} | {seconds:.0f} | {', '.join(sorted(case.alerts))} |")

    for name in sorted(case.alerts):
        alert = scene.notified(name, "firing", before)
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
        for labels, _ in scene.watch.query(f'count_over_time(ALERTS{{alertstate="firing"}}[{int(time.time() - began) + 1}s])')
    }
    assert fired - {"Watchdog"} - case.tolerated == set(case.alerts)

    faults.undo(deployment, progress_of("undo", []))
    for name in sorted(case.alerts):
        scene.notified(name, "resolved", before)
    wait_until(lambda: len(deployment.workers()) == 2, "two workers again", PATIENCE)


def test_counters_equal_what_the_engines_own_page_says(tp: Deployment) -> None:
    own = read(f"{tp.engine().url}/metrics")

    def settled() -> bool:
        nonlocal own
        page, own = exporter_page(tp), read(f"{tp.engine().url}/metrics")
        return total(own, "vllm:num_requests_running") == 0 and total(page, "poise_engine_generation_tokens_total") == total(
            own, "vllm:generation_tokens_total"
        )

    wait_until(settled, "the exporter's next poll of an idle engine")
    page = exporter_page(tp)
    for ours, theirs in (
        ("poise_engine_generation_tokens_total", "vllm:generation_tokens_total"),
        ("poise_engine_prompt_tokens_total", "vllm:prompt_tokens_total"),
        ("poise_engine_requests_finished_total", "vllm:request_success_total"),
        ("poise_engine_preemptions_total", "vllm:num_preemptions_total"),
        ("poise_engine_time_to_first_token_seconds_count", "vllm:time_to_first_token_seconds_count"),
        ("poise_engine_time_to_first_token_seconds_sum", "vllm:time_to_first_token_seconds_sum"),
        ("poise_engine_inter_token_latency_seconds_count", "vllm:inter_token_latency_seconds_count"),
        ("poise_engine_e2e_latency_seconds_sum", "vllm:e2e_request_latency_seconds_sum"),
    ):
        assert total(page, ours) == total(own, theirs), ours
    (size,) = {value for labels, value in samples(page, "poise_engine_parallel_size") if labels["dimension"] == "tensor"}
    assert size == 2.0


def test_idle_deployment_is_idle_and_raises_nothing(tp: Deployment) -> None:
    page, _ = when(tp, lambda page: page if page["verdict"]["summary"].endswith("; idle") else None, "an idle verdict")
    assert {line["status"] for line in page["checks"]} == {"pass"}


def test_exporter_leaves_within_two_seconds_of_sigterm(tp: Deployment) -> None:
    record = tp.record("exporter")
    assert record is not None
    began = time.monotonic()
    os.kill(record.pid, 15)
    wait_until(lambda: not processes.is_alive(record.identity), "the exporter's end")
    assert time.monotonic() - began < 10, "two seconds are promised; ten say that it waits for something"
