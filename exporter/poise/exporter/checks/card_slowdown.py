"""Check `card_slowdown`: no card holds its clocks down because of heat or because its power supply makes it brake.

The driver's own time counters say it, so that episodes between two looks count. A power cap (sw_power_cap) is no fault: every loaded card
meets it.
"""

from __future__ import annotations

from collections.abc import Iterator

from poise.exporter import metrics as m
from poise.exporter.checks import thresholds as t
from poise.exporter.checks import words
from poise.exporter.checks.result import CheckResult, Line, State, Subject
from poise.exporter.checks.window import SLOWDOWN_REASONS, Window
from poise.exporter.snapshot import Gpu, NodeSnapshot

NAME = "card_slowdown"
TITLE = "No card is slowed by heat or power supply"
_LINE = Line(NAME, TITLE)

#: Reason → share of the time from which on it is worth a word, what it means, what to do.
_MEANINGS = {
    "hw_thermal_slowdown": (
        t.HARDWARE_SLOWDOWN_SHARE,
        "the card passed its slowdown temperature and halved its clocks",
        "look at fans, airflow and inlet temperature; drain the card if it stays hot",
    ),
    "hw_power_brake": (
        t.HARDWARE_SLOWDOWN_SHARE,
        "the system's power supply asked the card to brake, and it halved its clocks",
        "look at power supplies and the power budget of node and rack (`ipmitool sdr`)",
    ),
    "sw_thermal_slowdown": (
        t.SOFTWARE_SLOWDOWN_SHARE,
        "the card is above its highest operating temperature and the driver lowers its clocks",
        "look at fans, airflow and inlet temperature, or lower the power limit of all cards alike",
    ),
}


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per card that is slowed, else one for the node; none where no driver counts."""
    cards = [gpu for gpu in snapshot.gpus if gpu.up and gpu.readings.get(m.GPU_CLOCKS_EVENT_SECONDS)]
    if not cards:
        return
    if window.over(t.WATCH_WINDOW) is None:
        yield _LINE.unknown("less than ten seconds observed")
        return
    failing = [result for gpu in cards if (result := _slowed(window, gpu)) is not None]
    yield from failing
    if not failing:
        yield _LINE.passed(f"{words.count(len(cards), 'card')} {'runs' if len(cards) == 1 else 'run'} as fast as asked")


def _slowed(window: Window, gpu: Gpu) -> CheckResult | None:
    for seconds, state in ((t.PROBLEM_WINDOW, State.PROBLEM), (t.WATCH_WINDOW, State.WATCH)):
        part = window.over(seconds)
        if part is None:
            continue
        grown = {reason: part.increase(gpu.uuid, m.GPU_CLOCKS_EVENT_SECONDS, reason) or 0.0 for reason in SLOWDOWN_REASONS}
        shares = {reason: min(1.0, count / part.seconds) for reason, count in grown.items()}
        found = [reason for reason, (least, _, _) in _MEANINGS.items() if shares[reason] > least]
        if found:
            return _failing(gpu, found, shares, seconds, state)
    return None


def _failing(gpu: Gpu, found: list[str], shares: dict[str, float], seconds: float, state: State) -> CheckResult:
    _, cause, fix = _MEANINGS[found[0]]
    evidence = {reason: f"{words.percent(shares[reason])} of {seconds:.0f} s" for reason in found}
    clock, temperature, margin = gpu.value(m.GPU_CLOCK, "sm"), gpu.value(m.GPU_TEMPERATURE, "core"), gpu.value(m.GPU_TEMPERATURE_MARGIN)
    if clock is not None:
        evidence["SM clock"] = f"{clock / 1e6:.0f} MHz"
    if temperature is not None:
        evidence["temperature"] = f"{temperature:.0f} °C"
    if margin is not None:
        evidence["margin to slowdown"] = f"{margin:.0f} °C"
    return _LINE.failed(
        state,
        f"GPU {gpu.index} was slowed for {words.percent(shares[found[0]])} of the last {seconds:.0f} s ({words.joined(found)})",
        Subject(uuid=gpu.uuid, gpu=str(gpu.index)),
        evidence,
        cause=cause,
        fix=f"{fix}; `nvidia-smi -q -d PERFORMANCE,TEMPERATURE -i {gpu.index}`",
    )
