"""Series in the notation of promtool's rule tests, written; `tests/rule_replay.py` reads it. Knows no rule and no scene."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from poise.history.promql.series import STALE


def written(labels: Mapping[str, str]) -> str:
    """`name{label="value"}`."""
    pairs = ",".join(f'{name}="{value}"' for name, value in labels.items() if name != "__name__")
    return f"{labels['__name__']}{{{pairs}}}"


def notation(values: Sequence[float | None]) -> str:
    """`1x21 stale 0+7.5x80`: values, stretches of steady growth, `stale` and `_`."""
    words: list[str] = []
    index = 0
    while index < len(values):
        value = values[index]
        if value is None or value is STALE:
            word = "_" if value is None else "stale"
            run = _run(values, index, lambda other, first=value: other is first)  # type: ignore[misc]  # a default that binds
            words.append(word if run == 1 else f"_x{run}" if value is None else " ".join(["stale"] * run))
            index += run
            continue
        run, gain = 1, 0.0
        following = values[index + 1] if index + 1 < len(values) else None
        if following is not None and following is not STALE:
            gain = following - value
            while index + run < len(values) and _continues(values[index + run], value + gain * run):
                run += 1
        words.append(f"{value:.15g}" if run == 1 else f"{value:.15g}x{run - 1}" if gain == 0 else f"{value:.15g}{gain:+.15g}x{run - 1}")
        index += run
    return " ".join(words)


def _continues(value: float | None, expected: float) -> bool:
    return value is not None and value is not STALE and abs(value - expected) <= 1e-9 * max(1.0, abs(expected))


def _run(values: Sequence[float | None], start: int, holds: Callable[[float | None], bool]) -> int:
    end = start
    while end < len(values) and holds(values[end]):
        end += 1
    return end - start
