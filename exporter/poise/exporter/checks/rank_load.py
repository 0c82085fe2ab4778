"""Check `rank_load`: the cards of one tensor-parallel group, and the free ones that the engine sees, share its load."""

from __future__ import annotations

from collections.abc import Iterator

from poise.exporter.checks import load, words
from poise.exporter.checks.engine_answers import is_loading
from poise.exporter.checks.memory_balance import groups_of
from poise.exporter.checks.result import CheckResult, State, Status
from poise.exporter.checks.thresholds import TOKENS_FLOOR, WATCH_WINDOW
from poise.exporter.checks.window import Window
from poise.exporter.snapshot import Engine, EngineGpu, Gpu, NodeSnapshot, Use

NAME = "rank_load"
TITLE = "Ranks share the load"


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per living engine that has, or sees and leaves free, more than one card."""
    for engine in snapshot.engines:
        if engine.observed.process_up is False or is_loading(engine, snapshot.taken_at):
            continue
        free = [card for card in engine.visible or () if card.use is Use.FREE and not engine.has_all_meant]
        groups = [group for group in groups_of(engine) if len(group) > 1 or free]
        if groups:
            yield _check(snapshot, window, engine, groups, free)


def _check(
    snapshot: NodeSnapshot, window: Window, engine: Engine, groups: list[tuple[EngineGpu, ...]], free: list[EngineGpu]
) -> CheckResult:
    name = engine.identity.engine
    cards = _gpus(snapshot, [*(card for group in groups for card in group), *free])
    found = [skew for group in groups for skew in load.skews(window, _gpus(snapshot, group), _gpus(snapshot, [*group, *free]))]
    if not found:
        return _quiet(window, engine, cards)
    worst = max(found, key=lambda skew: (skew.state is State.PROBLEM, skew.busy_ratio - skew.idle_ratio))
    unused = worst.idle.uuid in {card.uuid for card in free}
    used, visible = len(engine.used or ()), len(engine.visible or ())
    return CheckResult(
        NAME,
        TITLE,
        Status.FAIL,
        worst.state,
        worst.sentence,
        engine=name,
        uuid=worst.idle.uuid,
        gpu=str(worst.idle.index),
        cause=f"the engine has processes on {used} of its {visible} visible GPUs: "
        f"tensor_parallel_size={engine.config.tensor_parallel_size}, {words.visible_devices(engine)}"
        if unused
        else "one rank of the group does not work while the other does: a hang in a collective, or work outside the model's forward pass",
        fix=f"start it with --tensor-parallel-size {used + len(free)}, or pin it with "
        f"CUDA_VISIBLE_DEVICES={','.join(str(card.index) for card in engine.own)} and start another engine on {words.cards(c.index for c in free)}"
        if unused
        else "look at tokens per second: when they stand still, dump the workers' stacks (`py-spy dump --pid PID`) and restart the engine",
        evidence=load.evidence_of(window, cards, worst.seconds),
    )


def _quiet(window: Window, engine: Engine, cards: list[Gpu]) -> CheckResult:
    part = window.over(WATCH_WINDOW)
    evidence = load.evidence_of(window, cards, WATCH_WINDOW)
    if part is None or all(part.busy_ratio(gpu.uuid) is None for gpu in cards):
        reason = "less than ten seconds observed" if part is None else "the cards do not tell their utilization"
        return CheckResult(NAME, TITLE, Status.UNKNOWN, State.OK, reason, engine=engine.identity.engine, evidence=evidence)
    rate = part.token_rate(engine.identity.engine)
    idle = rate is not None and rate < TOKENS_FLOOR
    sentence = "idle: no load to share" if idle else "no card idles beside a busy one"
    return CheckResult(NAME, TITLE, Status.PASS, State.OK, sentence, engine=engine.identity.engine, evidence=evidence)


def _gpus(snapshot: NodeSnapshot, cards: list[EngineGpu] | tuple[EngineGpu, ...]) -> list[Gpu]:
    return [gpu for card in cards if (gpu := snapshot.gpu(card.uuid)) is not None and gpu.up]
