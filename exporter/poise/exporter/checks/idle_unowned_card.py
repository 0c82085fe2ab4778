"""Check `idle_unowned_card`: no card that no engine owns idles while an engine is saturated (the article's CUDA_VISIBLE_DEVICES=0)."""

from __future__ import annotations

from collections.abc import Iterator

from poise.exporter.checks import load, words
from poise.exporter.checks.result import CheckResult, State, Status
from poise.exporter.checks.visible_devices import taken_by_others
from poise.exporter.checks.window import Window
from poise.exporter.snapshot import Engine, Gpu, NodeSnapshot

NAME = "idle_unowned_card"
TITLE = "No idle card without an owner beside a saturated engine"


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per card that nobody owns and no engine sees; one that passes when there is no such card."""
    engines = [engine for engine in snapshot.engines if engine.observed.process_up is not False]
    if not engines or not any(gpu.up for gpu in snapshot.gpus):
        return
    # An engine known by URL only has no process here, so none of the cards; it must not blind the check for those that have.
    here = [engine for engine in engines if engine.observed.process_up]
    if not here or any(engine.used is None for engine in here):
        yield CheckResult(
            NAME,
            TITLE,
            Status.UNKNOWN,
            State.OK,
            "it is not known which cards the engines own",
            fix="run the exporter in the host's PID namespace",
        )
        return
    owned = {uuid: engine for engine in engines for uuid in engine.used or ()}
    seen = {card.uuid for engine in engines for card in engine.visible or ()}
    taken = {uuid for engine in engines for uuid in taken_by_others(snapshot, engine)}
    unowned = [gpu for gpu in snapshot.gpus if gpu.up and gpu.uuid not in owned.keys() | seen | taken]
    # An engine with as many cards as it is meant to have leaves the rest on purpose.
    busy_cards = [gpu for gpu in snapshot.gpus if gpu.uuid in owned and not owned[gpu.uuid].has_all_meant]
    found = {skew.idle.uuid: skew for skew in load.skews(window, busy_cards, unowned)}
    for gpu in unowned:
        if gpu.uuid in found:
            yield _failing(snapshot, window, found[gpu.uuid], owned[found[gpu.uuid].busiest.uuid])
    if not found:
        names = words.cards(gpu.index for gpu in unowned)
        why = "every engine has as many cards as it is meant to use" if owned and not busy_cards else "no engine is saturated"
        sentence = f"{names} {'has' if len(unowned) == 1 else 'have'} no owner, and {why}" if unowned else "every card has an owner"
        yield CheckResult(NAME, TITLE, Status.PASS, State.OK, sentence)


def _failing(snapshot: NodeSnapshot, window: Window, skew: load.Skew, engine: Engine) -> CheckResult:
    told = words.visible_devices(engine)
    hidden = engine.config.cuda_visible_devices is not None or engine.config.container is not None
    return CheckResult(
        NAME,
        TITLE,
        Status.FAIL,
        skew.state,
        skew.sentence,
        engine=engine.identity.engine,
        uuid=skew.idle.uuid,
        gpu=str(skew.idle.index),
        cause=f"no engine owns GPU {skew.idle.index}: " + (f"{told} hides it" if hidden else f"{words.parallelism(engine)}, {told}"),
        fix=f"{words.start_with(engine, _all(snapshot, engine, skew.idle))} and "
        f"--tensor-parallel-size {len(engine.used or ()) + 1}, or start a second engine on GPU {skew.idle.index}",
        evidence=load.evidence_of(window, (skew.busiest, skew.idle), skew.seconds) | {"environment": told},
    )


def _all(snapshot: NodeSnapshot, engine: Engine, idle: Gpu) -> set[int]:
    wanted = set(engine.used or ()) | {idle.uuid}
    return {gpu.index for gpu in snapshot.gpus if gpu.uuid in wanted}
