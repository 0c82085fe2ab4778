"""Check `fabric`: cards behind NVSwitches are registered with the NVLink fabric; without that they cannot reach one another."""

from __future__ import annotations

from collections.abc import Iterator

from poise.exporter import metrics as m
from poise.exporter.checks import words
from poise.exporter.checks.result import CheckResult, Line, State, Subject
from poise.exporter.checks.window import Window
from poise.exporter.snapshot import Gpu, NodeSnapshot

NAME = "fabric"
TITLE = "Cards are registered with the NVLink fabric"
_LINE = Line(NAME, TITLE)

#: The state label as it stands in a sentence.
_WORDS = {"not_started": "has not begun", "in_progress": "is not done", "failed": "failed"}


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per card that is not registered, else one for the node; none where no card knows a fabric."""
    del window
    states = [(gpu, state) for gpu in snapshot.gpus if gpu.up and (state := _state(gpu)) not in ("", "not_supported")]
    failing = [(gpu, state) for gpu, state in states if state != "completed"]
    for gpu, state in failing:
        shared = any(len(engine.used or ()) > 1 and gpu.uuid in (engine.used or ()) for engine in snapshot.engines)
        yield _LINE.failed(
            State.PROBLEM if shared or state == "failed" else State.WATCH,
            f"registration of GPU {gpu.index} with the NVLink fabric {_WORDS.get(state, f'is {state}')}",
            Subject(uuid=gpu.uuid, gpu=str(gpu.index)),
            {"state": state},
            cause="the fabric manager does not run, has another version than the driver, or met a switch that does not answer",
            fix="`systemctl status nvidia-fabricmanager`, `nvidia-smi -q -d FABRIC`; start it with the driver's own version, then the engine again",
        )
    if states and not failing:
        yield _LINE.passed(f"{words.count(len(states), 'card')} registered")


def _state(gpu: Gpu) -> str:
    return next((state for (state,), holds in gpu.readings.get(m.GPU_FABRIC_STATE, {}).items() if holds), "")
