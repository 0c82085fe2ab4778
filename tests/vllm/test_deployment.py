"""A real TP=2 deployment: its processes, its cards, its answers, and load on it."""

from __future__ import annotations

import asyncio
import os
import time

import pytest
from poise.testbed import load, processes, request, status
from poise.testbed.deployment import Deployment
from poise.testbed.errors import TestbedError
from poise.testbed.load import LoadResult, LoadSettings
from poise.testbed.nvml.node import SimulatedNode
from poise.testbed.planning import Request
from poise.testbed.shapes import load as load_shape
from poise.testbed.status import WorkerStatus

from tests.vllm.deploying import bring_up, progress_of, read, request_for, total
from tests.waiting import wait_until


def test_ranks_zero_and_one_are_on_their_cards_by_pid(tp: Deployment) -> None:
    workers = tp.workers()
    assert [(worker.title, worker.local_rank) for worker in workers] == [("VLLM::Worker_TP0", 0), ("VLLM::Worker_TP1", 1)]
    server = tp.record("server")
    assert server is not None
    wait_until(
        lambda: (
            [part.workers for part in status.look(tp).parts if part.name == "server"]
            == [tuple(WorkerStatus(worker.pid, worker.title, worker.local_rank, None, worker.local_rank) for worker in workers)]
        ),
        "both workers on their cards",
    )
    node = SimulatedNode.open(tp.layout.cards)
    for gpu, worker in zip(node.gpus, workers, strict=True):
        shown = gpu._card.processes[0]
        resident = int((processes.PROC / str(worker.pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        assert (gpu._card.process_count, shown.pid) == (1, worker.pid)
        assert shown.used_memory_bytes == pytest.approx(resident, rel=0.2)


def test_status_says_that_every_part_is_ready(tp: Deployment) -> None:
    found = status.look(tp)
    assert {part.name: (part.role, part.state) for part in found.parts} == {
        "keeper": ("keeper", "ready"),
        "mirror": ("mirror", "ready"),
        "exporter": ("exporter", "ready"),
        "server": ("engine", "ready"),
    }
    assert found.ready
    assert (found.shape, found.simulated_cards, found.fault, found.busy) == ("tp", 2, None, None)
    assert "VLLM::Worker_TP1" in status.text(found)


def test_the_same_prompt_gives_the_same_greedy_answer(tp: Deployment) -> None:
    """Random weights, but a real model: two ranks that did not reduce together would not repeat themselves."""
    answers = [request.complete(tp.engine().url, tp.plan.served_name, "server token queue", 16, 60, os.environ) for _ in range(2)]
    texts = [answer["choices"][0]["text"] for answer in answers]  # type: ignore[index]  # as OpenAI's API has it
    assert texts[0] == texts[1] != ""
    assert answers[0]["usage"]["completion_tokens"] == 16  # type: ignore[index]  # likewise


def test_load_keeps_both_cards_busy_and_is_what_the_servers_own_page_counts(tp: Deployment) -> None:
    page = f"{tp.engine().url}/metrics"
    node = SimulatedNode.open(tp.layout.cards)
    sent_before = [gpu._card.links[0].payload_tx_bytes for gpu in node.gpus]
    before = read(page)
    seen: list[list[int]] = []

    async def watch() -> None:
        while True:
            seen.append([int(gpu._card.gpu_percent) for gpu in node.gpus])
            await asyncio.sleep(0.25)

    async def loaded() -> LoadResult:
        watcher = asyncio.create_task(watch())
        settings = LoadSettings(tp.engine().url, tp.plan.served_name, concurrency=4, requests=24, max_tokens=64)
        try:
            return await load.run_load(settings, LoadResult(), time.monotonic, asyncio.Event())
        finally:
            watcher.cancel()

    result = asyncio.run(loaded())
    assert (result.finished, result.failed, result.output_tokens) == (24, 0, 24 * 64)
    after = read(page)
    for name, count in (
        ("vllm:generation_tokens_total", result.output_tokens),
        ("vllm:prompt_tokens_total", result.prompt_tokens),
        ("vllm:request_success_total", result.finished),
    ):
        assert total(after, name) - total(before, name) == count
    for card in (0, 1):
        shares = sorted(percents[card] for percents in seen)
        assert shares[len(shares) // 2] > 35, f"card {card} under load: {shares}"
    wait_until(
        lambda: all(gpu._card.links[0].payload_tx_bytes > sent for gpu, sent in zip(node.gpus, sent_before, strict=True)),
        "all-reduce traffic on NVLink",
    )


def test_idle_workers_read_near_zero(tp: Deployment) -> None:
    node = SimulatedNode.open(tp.layout.cards)
    wait_until(lambda: all(gpu._card.gpu_percent <= 5 for gpu in node.gpus), "two idle cards")
    assert all(gpu._card.memory_used_bytes > 100_000_000 for gpu in node.gpus), "idle, but with the model in memory"


def test_up_again_finds_the_deployment_and_starts_nothing(tp: Deployment) -> None:
    before = {part.name: part.pid for part in status.look(tp).parts}
    said: list[str] = []
    again = Deployment.up(request_for("tp", tp.layout.root), progress_of("again", []), say=said.append)
    assert said == ["shape tp is up already"]
    assert {part.name: part.pid for part in status.look(again).parts} == before


def test_another_shape_in_the_same_place_is_a_conflict_said_before_anything_starts(tp: Deployment) -> None:
    with pytest.raises(TestbedError, match=r"shape tp \(server tensor parallel 2\) is up in .*: `poise testbed down` first"):
        bring_up("single", tp.layout.root)
    assert status.look(tp).ready


def test_a_port_that_is_taken_is_said_before_anything_starts(tp: Deployment, tmp_path: object) -> None:
    port = tp.engine().port
    wanted = Request(
        load_shape("single"),
        tp.layout.root.parent / "second",
        tp.plan.environment.parent,
        fixed_ports={"server": port},
    )
    with pytest.raises(TestbedError, match=f"port {port} for server is taken"):
        Deployment.up(wanted, progress_of("conflict", []))
    processes = tp.layout.root.parent / "second" / "processes"
    assert not processes.exists() or list(processes.iterdir()) == []
