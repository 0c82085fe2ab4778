"""Snapshots as the exporter makes them: simulated cards, real vLLM pages, the real join. No threads, no clock."""

from __future__ import annotations

from collections.abc import Sequence

from poise.exporter.engines import dialects
from poise.exporter.engines.page import PageParser
from poise.exporter.nvml import registry
from poise.exporter.ownership import join
from poise.exporter.snapshot import (
    CollectorStatus,
    DriverInfo,
    EngineConfig,
    EngineIdentity,
    Gpu,
    NodeSnapshot,
    ObservedEngine,
    Rank,
    Role,
)
from poise.testbed.nvml.gpu import Process

from tests.recorded import CAPTURES
from tests.simulated_cards import INTERVAL, START, Bench

FIRST_PID = 4000


def page_engine(number: int, capture: str, ranks: int) -> ObservedEngine:
    """An engine with a page of a real vLLM, whose ranks are processes FIRST_PID + 100 × number + rank."""
    data = (CAPTURES / capture).read_bytes()
    page = dialects.read_page(PageParser(dialects.wanted).parse(data), "0.32.0", START, 0.004)
    name = f"node:{8000 + number}"
    first = FIRST_PID + 100 * number
    pids = tuple(Rank(first + rank, f"VLLM::Worker_TP{rank}", tp_rank=rank) for rank in range(ranks))
    return ObservedEngine(
        EngineIdentity(name, name, Role.MIXED, "default", "argv"),
        EngineConfig(model="tiny", tensor_parallel_size=ranks, port=8000 + number, environment_read=True),
        url=f"http://127.0.0.1:{8000 + number}",
        pid=first - 1,
        process_up=True,
        start_time=START - 3600,
        ranks=pids,
        pids=frozenset({first - 1, *(rank.pid for rank in pids)}),
        page=page,
        last_page_at=START,
        rtt=0.0002,
        client_connections=3,
    )


def snapshot_of(cards: Bench, engines: Sequence[ObservedEngine] = (), *, busy: bool = True) -> NodeSnapshot:
    """The node with its cards read twice, as averages between two readings need it; rank r of the engines sits on the next card in turn."""
    ranks = [rank for engine in engines for rank in engine.ranks]
    for position, rank in enumerate(ranks):
        if busy:
            card = cards.node.gpus[position % len(cards.node.gpus)]
            card.set_processes([Process(rank.pid, 40 << 30)])
            card.set_memory_used(40 << 30)
            card.set_utilization(0.9)
    for position in range(len(cards.node.gpus)):
        cards.read(position)
    cards.now += INTERVAL
    return node_of(cards.driver.info, [cards.read(position) for position in range(len(cards.node.gpus))], engines, START)


def node_of(driver: DriverInfo, gpus: Sequence[Gpu], engines: Sequence[ObservedEngine], taken_at: float) -> NodeSnapshot:
    """Cards that were read and engines, joined as the exporter joins them, at `taken_at` (Unix seconds)."""
    joined = join(gpus, engines, lambda pid: "python3")
    statuses = tuple(
        CollectorStatus(collector.name, collector.interval or 1.0, 0.001, True, taken_at, 0) for collector in registry.enabled({})
    )
    return NodeSnapshot(
        node="node",
        taken_at=taken_at,
        driver=driver,
        gpus=tuple(gpus),
        gpus_expected=len(gpus),
        engines=joined.engines,
        collectors=statuses,
        kernel="6.1.0",
        gpu_process_readings=joined.gpu_readings,
    )
