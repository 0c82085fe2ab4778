"""Check `rank_clock`: no rank runs at a much lower clock than its group: the others wait for it in every collective, at 100 % busy."""

from __future__ import annotations

from collections.abc import Iterator

from poise.exporter import metrics as m
from poise.exporter.checks import thresholds as t
from poise.exporter.checks import words
from poise.exporter.checks.memory_balance import groups_of
from poise.exporter.checks.result import CheckResult, State, Status
from poise.exporter.checks.window import Window
from poise.exporter.snapshot import Engine, EngineGpu, Gpu, NodeSnapshot

NAME = "rank_clock"
TITLE = "Ranks run at the same clock"

#: Reasons that a person did not choose and can look into; the rest (idle, application clocks) explain nothing about a straggler.
_TELLING = ("hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake", "hw_slowdown", "sw_power_cap")


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per living engine with more than one card in a tensor-parallel group."""
    for engine in snapshot.engines:
        groups = [group for group in groups_of(engine) if len(group) > 1]
        if groups and engine.observed.process_up is not False:
            yield _check(snapshot, window, engine, groups)


def _check(snapshot: NodeSnapshot, window: Window, engine: Engine, groups: list[tuple[EngineGpu, ...]]) -> CheckResult:
    name = engine.identity.engine
    for seconds, state in ((t.PROBLEM_WINDOW, State.PROBLEM), (t.WATCH_WINDOW, State.WATCH)):
        part = window.over(seconds)
        for group in groups if part is not None else ():
            found = part and _straggler(part, snapshot, group)
            if found:
                gpu, clock, fastest = found
                return _failing(engine, gpu, clock, fastest, seconds, state)
    if window.over(t.WATCH_WINDOW) is None:
        return CheckResult(NAME, TITLE, Status.UNKNOWN, State.OK, "less than ten seconds observed", engine=name)
    return CheckResult(NAME, TITLE, Status.PASS, State.OK, "no rank is slower than its group under load", engine=name)


def _straggler(part: Window, snapshot: NodeSnapshot, group: tuple[EngineGpu, ...]) -> tuple[Gpu, float, float] | None:
    clocks: list[tuple[float, Gpu]] = []
    for card in group:
        gpu, clock, busy = snapshot.gpu(card.uuid), part.sm_clock(card.uuid), part.busy_ratio(card.uuid)
        if gpu is None or not gpu.up or clock is None or busy is None or busy < t.LOADED_RATIO:
            return None
        clocks.append((clock, gpu))
    slowest, fastest = min(clocks, key=lambda pair: pair[0]), max(clocks, key=lambda pair: pair[0])
    return (slowest[1], slowest[0], fastest[0]) if slowest[0] < t.CLOCK_SHARE * fastest[0] else None


def _failing(engine: Engine, gpu: Gpu, clock: float, fastest: float, seconds: float, state: State) -> CheckResult:
    reasons = [reason for reason in _TELLING if gpu.value(m.GPU_CLOCKS_EVENT, reason)]
    margin = gpu.value(m.GPU_TEMPERATURE_MARGIN)
    evidence = {"SM clock": f"{clock / 1e6:.0f} MHz", "fastest of the group": f"{fastest / 1e6:.0f} MHz"}
    if margin is not None:
        evidence["margin to slowdown"] = f"{margin:.0f} °C"
    evidence["clock events"] = ", ".join(reasons) or "none that tells"
    return CheckResult(
        NAME,
        TITLE,
        Status.FAIL,
        state,
        f"GPU {gpu.index} runs at {clock / 1e6:.0f} MHz while its group reaches {fastest / 1e6:.0f} MHz, mean of {seconds:.0f} s",
        engine=engine.identity.engine,
        uuid=gpu.uuid,
        gpu=str(gpu.index),
        cause=f"the driver names {words.joined(reasons)}" if reasons else "the driver names no reason; clocks may have been set by hand",
        fix="check cooling and power of this card; `nvidia-smi -q -d CLOCK,PERFORMANCE -i "
        f"{gpu.index}`, `nvidia-smi -rgc -i {gpu.index}` undoes locked clocks; drain the card if it stays",
        evidence=evidence,
    )
