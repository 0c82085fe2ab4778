"""Check `memory_balance`: the ranks of one tensor-parallel group hold about the same share of their cards' memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from poise.exporter import metrics as m
from poise.exporter.checks import thresholds as t
from poise.exporter.checks import words
from poise.exporter.checks.engine_answers import is_loading
from poise.exporter.checks.result import CheckResult, State, Status
from poise.exporter.checks.window import Window
from poise.exporter.snapshot import Engine, EngineGpu, NodeSnapshot, value_of

NAME = "memory_balance"
TITLE = "Memory balanced over ranks"


def groups_of(engine: Engine) -> list[tuple[EngineGpu, ...]]:
    """The engine's own cards by tensor-parallel group: pipeline stages and data-parallel ranks differ by design."""
    groups: dict[tuple[int | None, int | None], list[EngineGpu]] = defaultdict(list)
    for card in engine.own:
        groups[(card.rank.dp_rank, card.rank.pp_rank) if card.rank else (None, None)].append(card)
    return [tuple(group) for group in groups.values()]


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per engine with more than one card in a group."""
    del window
    for engine in snapshot.engines:
        groups = [group for group in groups_of(engine) if len(group) > 1]
        if groups and engine.observed.process_up is not False:
            yield _check(snapshot, engine, groups)


def _check(snapshot: NodeSnapshot, engine: Engine, groups: list[tuple[EngineGpu, ...]]) -> CheckResult:
    name = engine.identity.engine
    if is_loading(engine, snapshot.taken_at):
        return CheckResult(NAME, TITLE, Status.UNKNOWN, State.OK, "the engine is loading", engine=name)
    worst: tuple[float, str] | None = None
    evidence: dict[str, str] = {}
    for group in groups:
        shares: list[tuple[float, EngineGpu]] = []
        for card in group:
            gpu = snapshot.gpu(card.uuid)
            used = gpu.value(m.GPU_MEMORY_USED) if gpu else None
            total = gpu.value(m.GPU_MEMORY_TOTAL) if gpu else None
            if used is None or not total:
                continue
            shares.append((used / total, card))
            foreign = value_of(snapshot.gpu_process_readings.get(card.uuid, {}), m.GPU_FOREIGN_MEMORY)
            evidence[f"GPU {card.index}"] = words.gibibytes(used) + (f", of it {words.gibibytes(foreign)} foreign" if foreign else "")
        if len(shares) < len(group):
            return CheckResult(NAME, TITLE, Status.UNKNOWN, State.OK, "a card does not tell its memory", engine=name, evidence=evidence)
        (low, least), (high, most) = min(shares, key=lambda pair: pair[0]), max(shares, key=lambda pair: pair[0])
        sentence = f"GPU {most.index} holds {percent_points(high - low)} more of its memory than GPU {least.index}"
        if worst is None or high - low > worst[0]:
            worst = (high - low, sentence)
    if worst is None or worst[0] <= t.MEMORY_GAP:
        gap = percent_points(worst[0]) if worst else "0 points"
        return CheckResult(NAME, TITLE, Status.PASS, State.OK, f"ranks differ by {gap}", engine=name, evidence=evidence)
    return CheckResult(
        NAME,
        TITLE,
        Status.FAIL,
        State.WATCH,
        worst[1],
        engine=name,
        cause="another process holds memory on the fuller card, or the ranks are not alike",
        fix="find it with `nvidia-smi`; the KV cache of all ranks is as small as the fullest card allows",
        evidence=evidence,
    )


def percent_points(difference: float) -> str:
    """A difference of two ratios: 0.12 → "12 points"."""
    return f"{difference * 100:.0f} points"
