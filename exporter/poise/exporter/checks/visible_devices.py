"""Check `visible_devices`: CUDA_VISIBLE_DEVICES does not hide a card that nobody else has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from poise.exporter.checks import words
from poise.exporter.checks.result import CheckResult, State, Status
from poise.exporter.checks.window import Window
from poise.exporter.cuda_visible import visible_cards
from poise.exporter.metrics import GPU_FOREIGN_MEMORY
from poise.exporter.ownership import in_foreign_use
from poise.exporter.snapshot import Engine, Gpu, NodeSnapshot, Use, value_of

NAME = "visible_devices"
TITLE = "CUDA_VISIBLE_DEVICES names all intended cards"

#: Cause and fix when it is not known which cards an engine sees.
_UNREAD = ("its environment cannot be read", "run the exporter as root, or with CAP_SYS_PTRACE and the host's PID namespace")
_UNRESOLVED = (
    "parts of a card (MIG), numbers of unlike cards, or a container with cards that Poise does not see",
    "give the exporter all cards of the node, and name the engine's by UUID in CUDA_VISIBLE_DEVICES",
)


def taken_by_others(snapshot: NodeSnapshot, engine: Engine) -> frozenset[str]:
    """UUIDs of cards that another engine holds or was told to use (it may still be loading, or have died), or on which somebody else works."""
    claimed = set()
    for gpu in snapshot.gpus:
        held = value_of(snapshot.gpu_process_readings.get(gpu.uuid, {}), GPU_FOREIGN_MEMORY)
        # Where that is not known, what the engine itself holds may have no size, and would look like somebody else's.
        if in_foreign_use(gpu, held) and (held is not None or gpu.uuid not in (engine.used or ())):
            claimed.add(gpu.uuid)
    for other in snapshot.engines:
        if other.identity.engine == engine.identity.engine:
            continue
        if other.observed.process_up is False:
            # One that died is to be started again: the cards that it was told to use are spoken for as long as it is remembered.
            if other.config.told_cards:
                claimed.update(card.gpu.uuid for card in visible_cards(snapshot.gpus, other.config) or ())
            continue
        claimed.update(other.used or ())
        if other.config.told_cards:
            claimed.update(card.uuid for card in other.visible or ())
    return frozenset(claimed)


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per living engine on a node with cards."""
    del window
    up = [gpu for gpu in snapshot.gpus if gpu.up]
    if not up:
        return
    for engine in snapshot.engines:
        if engine.observed.process_up is not False:
            yield _check(snapshot, engine)


def _check(snapshot: NodeSnapshot, engine: Engine) -> CheckResult:
    name = engine.identity.engine
    told = words.visible_devices(engine)
    if engine.visible is None:
        cause, fix = _UNRESOLVED if engine.config.environment_read else _UNREAD
        return CheckResult(
            NAME,
            TITLE,
            Status.UNKNOWN,
            State.OK,
            "it is not known which cards the engine can see",
            engine=name,
            cause=cause,
            fix=fix,
            evidence={"environment": told},
        )
    visible = {card.uuid for card in engine.visible}
    others = taken_by_others(snapshot, engine)
    hidden = [gpu for gpu in snapshot.gpus if gpu.up and gpu.uuid not in visible and gpu.uuid not in others]
    evidence = {"environment": told, "visible": words.cards(card.index for card in engine.visible) if visible else "none"}
    meant = engine.observed.gpus_meant
    if meant is not None:
        return _as_meant(engine, meant, hidden, {**evidence, "meant": str(meant)})
    if not hidden or (engine.config.cuda_visible_devices is None and engine.config.container is None):
        return CheckResult(
            NAME, TITLE, Status.PASS, State.OK, f"{told}: no card is hidden that others leave free", engine=name, evidence=evidence
        )
    if engine.config.cuda_visible_devices is None and words.in_pod(engine):
        # A pod has the cards that it asked for; what is left is the scheduler's to give, and what that costs under load idle_unowned_card says.
        sentence = f"{told}: the engine sees the {words.count(len(visible), 'card')} that its pod was given"
        return CheckResult(NAME, TITLE, Status.PASS, State.OK, sentence, engine=name, evidence=evidence)
    names = words.cards(gpu.index for gpu in hidden)
    used = sum(card.use is Use.OWN for card in engine.visible)
    return CheckResult(
        NAME,
        TITLE,
        Status.FAIL,
        State.WATCH,
        f"{told} hides {names}, which no engine owns",
        engine=name,
        uuid=hidden[0].uuid if len(hidden) == 1 else "",
        gpu=str(hidden[0].index) if len(hidden) == 1 else "",
        cause=f"the engine was started with {told}, so it can use {len(visible)} of {words.count(len(visible) + len(hidden), 'card')}",
        fix=f"{words.start_with(engine, _wanted(engine, [gpu.index for gpu in hidden]))} "
        f"--tensor-parallel-size {max(used, len(visible)) + len(hidden)}, or start a second engine on {names}",
        evidence={**evidence, "hidden": names},
    )


def _as_meant(engine: Engine, meant: int, hidden: list[Gpu], evidence: Mapping[str, str]) -> CheckResult:
    """Against the number of cards that the user said: too few is a fault however it came about, more is as good as enough."""
    name, told, visible = engine.identity.engine, words.visible_devices(engine), len(engine.visible or ())
    if visible >= meant:
        sentence = f"{told}: the engine sees the {words.count(meant, 'card')} that it is meant to use"
        return CheckResult(NAME, TITLE, Status.PASS, State.OK, sentence, engine=name, evidence=evidence)
    free = words.cards(gpu.index for gpu in hidden)
    way_out = words.start_with(engine, _wanted(engine, [gpu.index for gpu in hidden][: meant - visible]))
    return CheckResult(
        NAME,
        TITLE,
        Status.FAIL,
        State.PROBLEM,
        f"the engine sees {visible} of the {words.count(meant, 'card')} that it is meant to use",
        engine=name,
        uuid=hidden[0].uuid if len(hidden) == 1 else "",
        gpu=str(hidden[0].index) if len(hidden) == 1 else "",
        cause=f"{told}, and gpus={meant} was configured",
        fix=f"{way_out if hidden else 'free cards that others have'}, or correct gpus= of --engine {name}",
        evidence={**evidence, "hidden": free} if hidden else evidence,
    )


def _wanted(engine: Engine, hidden: list[int]) -> set[int]:
    return {card.index for card in engine.visible or ()} | set(hidden)
