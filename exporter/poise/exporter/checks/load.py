"""What the two load checks share: which cards idle beside a busy one, over ten seconds and over a minute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from poise.exporter.checks import thresholds as t
from poise.exporter.checks import words
from poise.exporter.checks.result import State
from poise.exporter.checks.window import Window
from poise.exporter.snapshot import Gpu


@dataclass(frozen=True, slots=True)
class Skew:
    """An idle card beside the busiest one: means over `seconds`, and what power says of it (None: no power readings)."""

    idle: Gpu
    idle_ratio: float
    busiest: Gpu
    busy_ratio: float
    seconds: float
    power_agrees: bool | None

    @property
    def state(self) -> State:
        """Watch after ten seconds; a problem after a minute, unless power contradicts."""
        if self.seconds >= t.PROBLEM_WINDOW and self.power_agrees is not False:
            return State.PROBLEM
        return State.WATCH

    @property
    def sentence(self) -> str:
        """ "GPU 1 is idle (2 %) while GPU 0 is saturated (97 %), mean of 60 s"."""
        word = "saturated" if self.busy_ratio >= t.SATURATED_RATIO else "busy"
        return (
            f"GPU {self.idle.index} is idle ({words.percent(self.idle_ratio)}) while GPU {self.busiest.index} is {word} "
            f"({words.percent(self.busy_ratio)}), mean of {self.seconds:.0f} s"
        )


def skews(window: Window, busy_cards: Sequence[Gpu], idle_candidates: Iterable[Gpu]) -> Iterator[Skew]:
    """Each candidate that idled while the busiest of `busy_cards` carried load, by the longest window that shows it."""
    for candidate in idle_candidates:
        found = _skew(window, t.PROBLEM_WINDOW, busy_cards, candidate) or _skew(window, t.WATCH_WINDOW, busy_cards, candidate)
        if found is not None:
            yield found


def _skew(window: Window, seconds: float, busy_cards: Sequence[Gpu], candidate: Gpu) -> Skew | None:
    part = window.over(seconds)
    if part is None:
        return None
    idle = part.busy_ratio(candidate.uuid)
    ratios = [(ratio, gpu) for gpu in busy_cards if gpu.uuid != candidate.uuid and (ratio := part.busy_ratio(gpu.uuid)) is not None]
    if idle is None or idle >= t.IDLE_RATIO or not ratios:
        return None
    busy, busiest = max(ratios, key=lambda pair: pair[0])
    if busy < t.LOADED_RATIO:
        return None
    return Skew(candidate, idle, busiest, busy, seconds, _power_agrees(part, candidate, busiest))


def _power_agrees(part: Window, idle: Gpu, busiest: Gpu) -> bool | None:
    low, high = part.power(idle.uuid), part.power(busiest.uuid)
    if low is None or high is None or high <= 0:
        return None
    return low <= t.IDLE_POWER_SHARE * high


def evidence_of(window: Window, cards: Iterable[Gpu], seconds: float) -> dict[str, str]:
    """Utilization and power of each card over the window, as text."""
    part = window.over(seconds)
    lines: dict[str, str] = {}
    for gpu in cards:
        ratio = part.busy_ratio(gpu.uuid) if part else None
        power = part.power(gpu.uuid) if part else None
        lines[f"GPU {gpu.index}"] = ", ".join(
            [words.percent(ratio) if ratio is not None else "utilization n/a", f"{power:.0f} W" if power is not None else "power n/a"]
        )
    return lines
