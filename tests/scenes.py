"""Scenes for the checks: a node with cards and engines in a few words, and the passing of time over it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from poise.exporter import metrics as m
from poise.exporter.checks.result import CheckResult
from poise.exporter.checks.runner import CheckOutcome, Runner
from poise.exporter.metrics import Metric
from poise.exporter.snapshot import (
    DriverInfo,
    Engine,
    EngineConfig,
    EngineGpu,
    EngineIdentity,
    EnginePage,
    Gpu,
    GpuIdentity,
    Libraries,
    ModelShape,
    NodeSnapshot,
    ObservedEngine,
    Rank,
    Reason,
    Role,
    Use,
    Work,
)

START = 1_000_000.0
GIB = float(2**30)
SHAPE = ModelShape(40, 8, "bfloat16")
LIBRARIES = Libraries("2.27.3", "12.8", "12.8", "570.1")


def card(index: int, *, up: bool = True, reason: Reason | None = None, links: Mapping[int, bool] | None = None, **values: float) -> Gpu:
    """A card; `values` by short name: busy (seconds), power (watts), used (bytes), clock (MHz)."""
    readings: dict[Metric, dict[tuple[str, ...], float]] = {
        m.GPU_MEMORY_TOTAL: {(): 96 * GIB},
        m.GPU_MEMORY_USED: {(): values.get("used", 80 * GIB)},
        m.GPU_POWER: {(): values.get("power", 100.0)},
        m.GPU_CLOCK: {("sm",): values.get("clock", 1980.0) * 1e6},
    }
    if "busy" in values:
        readings[m.GPU_BUSY_SECONDS] = {(): values["busy"]}
    if links:
        readings[m.GPU_NVLINK_UP] = {(str(link),): float(is_up) for link, is_up in links.items()}
    return Gpu(
        index, f"GPU-{index}", GpuIdentity(name="NVIDIA H20"), up=up, down_reason=reason, sampled_at=START, readings=readings if up else {}
    )


def engine(
    name: str = "n1:8000",
    *,
    cards: Sequence[int] = (0, 1),
    visible: Sequence[int] | None = None,
    environment: str | None = None,
    tensor: int | None = None,
    used: Sequence[int] | None = None,
    others: Sequence[int] = (),
    tokens: float = 0.0,
    page: bool = True,
    process_up: bool | None = True,
    start: float = START - 3600,
    last_page_at: float | None = None,
    stages: bool = False,
    shape: ModelShape | None = SHAPE,
    libraries: Libraries | None = LIBRARIES,
    readings: Mapping[Metric, float] | None = None,
    ranks: Mapping[int, Mapping[Metric, float]] | None = None,
    **config_more: Any,
) -> Engine:
    """An engine whose ranks 0, 1, … sit on `cards`; `visible` defaults to those, `others` are visible and another engine's.

    `readings` are more of its page, `ranks` of those of its data-parallel ranks besides 0, `config_more` more of its command line.
    """
    seen = list(visible if visible is not None else cards)
    size = tensor if tensor is not None else len(cards)
    held = list(used if used is not None else cards)
    config = EngineConfig(
        model="qwen-32b",
        tensor_parallel_size=1 if stages else size,
        pipeline_parallel_size=size if stages else 1,
        cuda_visible_devices=environment,
        environment_read=True,
        **config_more,
    )
    tied = [
        EngineGpu(
            index,
            f"GPU-{index}",
            seen.index(index),
            Use.OWN if index in held else Use.OTHER if index in others else Use.FREE,
            Rank(100 + index, "", pp_rank=cards.index(index))
            if stages
            else Rank(100 + index, "", tp_rank=cards.index(index))
            if index in held and index in cards
            else None,
        )
        for index in seen
    ]
    told = {m.ENGINE_GENERATION_TOKENS: tokens, m.ENGINE_REQUESTS_RUNNING: 1.0 if tokens else 0.0, m.ENGINE_REQUESTS_WAITING: 0.0}
    told |= {m.ENGINE_KV_CACHE_USAGE: 0.3, **(readings or {})}
    work = [Work("qwen-32b", "0", {metric: {(): value} for metric, value in told.items()})]
    work += [Work("qwen-32b", str(rank), {metric: {(): value} for metric, value in more.items()}) for rank, more in (ranks or {}).items()]
    observed = ObservedEngine(
        EngineIdentity(name, name, Role.MIXED, "default", "argv"),
        config,
        url="http://127.0.0.1:8000",
        pid=4242,
        process_up=process_up,
        start_time=start,
        ranks=tuple(rank for card in tied if (rank := card.rank) is not None),
        page=EnginePage(START, 0.01, "0.32.0", tuple(work)) if page else None,
        page_error="" if page else "connection refused",
        last_page_at=last_page_at if last_page_at is not None else START if page else None,
        libraries=libraries,
        model_shape=shape,
    )
    return Engine(observed, tuple(tied), frozenset(f"GPU-{index}" for index in held), size, "processes")


def node(gpus: Sequence[Gpu], engines: Sequence[Engine] = (), *, expected: int | None = None, driver: str = "570.1") -> NodeSnapshot:
    """A node that looks like this at START; no process but the engines' is on a card."""
    info = DriverInfo(driver, driver, "12.8") if driver else DriverInfo(error="libnvidia-ml.so.1 not found")
    held = {gpu.uuid: {m.GPU_FOREIGN_MEMORY: {(): 0.0}} for gpu in gpus if gpu.up}
    return NodeSnapshot("n1", START, info, tuple(gpus), expected, tuple(engines), gpu_process_readings=held)


def play(scene: Callable[[float], NodeSnapshot], seconds: int, runner: Runner | None = None) -> CheckOutcome:
    """Let `seconds` pass, one snapshot a second, and return what the checklist says at the end; `scene` gets the seconds passed."""
    judge = runner or Runner()
    outcome = None
    for second in range(seconds + 1):
        outcome = judge.observe(dataclasses.replace(scene(float(second)), taken_at=START + second))
    assert outcome is not None
    return outcome


def failing(outcome: CheckOutcome) -> dict[str, CheckResult]:
    """The failing results by check."""
    return {result.check: result for result in outcome.results if result.status == "fail"}
