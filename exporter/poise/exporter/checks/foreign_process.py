"""Check `foreign_process`: nobody but engines holds memory of the cards that an engine uses.

vLLM takes its share of a card once, at start: whoever comes later lives from what is left, and whoever was there first shrinks the KV cache.
Only what the driver lists counts; where it does not tell processes, nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator

from poise.exporter import metrics as m
from poise.exporter.checks import words
from poise.exporter.checks.result import CheckResult, Line, State, Subject
from poise.exporter.checks.window import Window
from poise.exporter.ownership import FOREIGN_USE_BYTES
from poise.exporter.snapshot import Engine, NodeSnapshot, value_of

NAME = "foreign_process"
TITLE = "No other program on the engine's cards"
_LINE = Line(NAME, TITLE)


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per living engine of whose cards the driver lists the processes."""
    del window
    for engine in snapshot.engines:
        if engine.observed.process_up is not False:
            yield from _check(snapshot, engine)


def _check(snapshot: NodeSnapshot, engine: Engine) -> Iterator[CheckResult]:
    held = {card.index: value_of(snapshot.gpu_process_readings.get(card.uuid, {}), m.GPU_FOREIGN_MEMORY) for card in engine.own}
    known = {index: count for index, count in held.items() if count is not None}
    if not known:
        return
    about = Subject(engine=engine.identity.engine)
    taken = {index: count for index, count in known.items() if count >= FOREIGN_USE_BYTES}
    if not taken:
        yield _LINE.passed(f"only engines hold memory of {words.cards(known)}", about)
        return
    worst = max(taken, key=lambda index: taken[index])
    yield _LINE.failed(
        State.WATCH,
        f"{words.gibibytes(taken[worst])} of GPU {worst} belong to a process of no engine",
        about,
        {f"GPU {index}": ", ".join(_holders(snapshot, engine, index)) for index in sorted(taken)},
        cause="another program was started on the card, or one that should have ended lives on: it takes time and memory from this engine",
        fix="`nvidia-smi` lists it; end it, or keep it off with CUDA_VISIBLE_DEVICES",
    )


def _holders(snapshot: NodeSnapshot, engine: Engine, index: int) -> list[str]:
    """The foreign processes of a card, the largest first: "python3 (pid 4711), 24.0 GiB"."""
    uuid = next(card.uuid for card in engine.own if card.index == index)
    readings = snapshot.gpu_process_readings.get(uuid, {}).get(m.GPU_PROCESS_MEMORY, {})
    found = sorted(((count, pid, name) for (pid, name, owner, _), count in readings.items() if not owner), reverse=True)
    return [f"{name or 'unknown'} (pid {pid}), {words.gibibytes(count)}" for count, pid, name in found]
