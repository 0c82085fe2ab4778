"""Check `parallel_size`: the parallel size, the cards that hold the engine's processes and the cards it can see are the same number.

Where the user said how many cards an engine is meant to use (`gpus=`), that number stands in the place of the cards it can see.
"""

from __future__ import annotations

from collections.abc import Iterator

from poise.exporter.checks import words
from poise.exporter.checks.engine_answers import is_loading
from poise.exporter.checks.result import CheckResult, State, Status
from poise.exporter.checks.window import Window
from poise.exporter.snapshot import Engine, EngineConfig, EngineGpu, NodeSnapshot, Use

NAME = "parallel_size"
TITLE = "Tensor-parallel size equals the cards in use and the visible ones"


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per living engine on a node with cards."""
    del window
    if not any(gpu.up for gpu in snapshot.gpus):
        return
    for engine in snapshot.engines:
        if engine.observed.process_up is not False:
            yield _check(snapshot, engine)


def _check(snapshot: NodeSnapshot, engine: Engine) -> CheckResult:
    name, config = engine.identity.engine, engine.config
    evidence = {"parallel size": words.parallelism(engine), "environment": words.visible_devices(engine)}
    if engine.visible is not None:
        evidence["visible"] = str(len(engine.visible))
    if engine.used is not None:
        evidence["with processes"] = str(len(engine.used))
    if engine.observed.gpus_meant is not None:
        evidence["meant"] = str(engine.observed.gpus_meant)
    if is_loading(engine, snapshot.taken_at):
        return CheckResult(NAME, TITLE, Status.UNKNOWN, State.OK, "the engine is loading", engine=name, evidence=evidence)
    if engine.observed.page is None and engine.observed.last_page_at is not None:
        # A server that shuts down ends its workers first; what its silence means is the matter of engine_answers.
        return CheckResult(NAME, TITLE, Status.UNKNOWN, State.OK, "the engine's page does not answer", engine=name, evidence=evidence)
    if engine.used is None or engine.local_world_size is None:
        return CheckResult(
            NAME,
            TITLE,
            Status.UNKNOWN,
            State.OK,
            "it is not known on which cards the engine's processes are",
            engine=name,
            cause="the driver's process lists or the process table of the host cannot be read",
            fix="run the exporter in the host's PID namespace (`--pid=host`, `hostPID: true`)",
            evidence=evidence,
        )
    if len(engine.used) < engine.local_world_size:
        return CheckResult(
            NAME,
            TITLE,
            Status.FAIL,
            State.PROBLEM,
            f"the engine has processes on {len(engine.used)} of the {words.count(engine.local_world_size, 'card')} that its ranks need",
            engine=name,
            cause="a rank died or never started, or two ranks share a card",
            fix="look for the missing rank in the engine's log; restart the engine",
            evidence=evidence,
        )
    meant = engine.observed.gpus_meant
    free = [card for card in engine.visible or () if card.use is Use.FREE]
    if engine.has_all_meant or (not free and meant is None):
        left = "none left unused" if not free else f"as many as meant (gpus={meant})"
        sentence = f"{words.parallelism(engine)}, processes on {words.count(len(engine.used), 'card')}, {left}"
        return CheckResult(NAME, TITLE, Status.PASS, State.OK, sentence, engine=name, evidence=evidence)
    if not free:
        return CheckResult(
            NAME,
            TITLE,
            Status.FAIL,
            State.PROBLEM,
            f"the engine has processes on {len(engine.used)} of the {meant} cards that it is meant to use",
            engine=name,
            cause=f"{words.parallelism(engine)}, {words.visible_devices(engine)}, and gpus={meant} was configured",
            fix=f"start it with {meant} cards in CUDA_VISIBLE_DEVICES and --tensor-parallel-size {meant}, or correct gpus= of --engine {name}",
            evidence=evidence,
        )
    names = words.cards(card.index for card in free)
    visible = len(engine.visible or ())
    return CheckResult(
        NAME,
        TITLE,
        Status.FAIL,
        # Named at once in both cases; whoever lists or counts cards meant them, whoever sets nothing on a shared node may not have.
        State.PROBLEM if config.told_cards or meant is not None else State.WATCH,
        f"the engine has processes on {len(engine.used)} of its {visible} visible GPUs; {names} {'is' if len(free) == 1 else 'are'} unused",
        engine=name,
        uuid=free[0].uuid if len(free) == 1 else "",
        gpu=str(free[0].index) if len(free) == 1 else "",
        cause=f"tensor_parallel_size={config.tensor_parallel_size} but {visible} GPUs are visible ({words.visible_devices(engine)})",
        fix=f"start it with --tensor-parallel-size {meant or len(engine.used) + len(free)}, or pin it with "
        f"CUDA_VISIBLE_DEVICES={','.join(_named(card, config) for card in engine.own)} and start another engine on {names}",
        evidence={**evidence, "unused": names},
    )


def _named(card: EngineGpu, config: EngineConfig) -> str:
    """A card as the engine itself can name it: in a container numbers are others, UUIDs are not."""
    return str(card.index) if config.container is None else card.uuid
