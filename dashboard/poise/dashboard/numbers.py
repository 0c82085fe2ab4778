"""How a number is written, and what stands in its place when there is none.

Owns units and rounding of the pages. Knows no series. A `Number` carries the raw value for the JSON twin beside the text for people.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from poise.history.recent import Bound, Quantile

#: No-break space, between a number and its unit.
SPACE = "\u00a0"
GIBIBYTE = 1024**3
#: Untrusted text is cut to this before it reaches a page.
TEXT_CHARACTERS = 300
LABEL_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class Number:
    """A figure on the page. `value` is None when nothing was measured; `note` is what a person sees on hover: why, or how it was taken."""

    text: str
    value: float | None = None
    note: str = ""
    muted: bool = False

    @property
    def known(self) -> bool:
        """Whether something was measured."""
        return self.value is not None


def missing(text: str, why: str) -> Number:
    """ "n/a" or "idle", with the reason."""
    return Number(text, None, why, muted=True)


def percent(ratio: float) -> str:
    """0.973 → "97 %"; below one per cent, not zero: "<1 %"."""
    if 0 < ratio < 0.01:
        return f"<1{SPACE}%"
    return f"{ratio * 100:.0f}{SPACE}%"


def seconds(value: float) -> str:
    """A duration with three significant digits at most: "0.4 ms", "42 ms", "1.25 s", "3 min"."""
    if value < 0.001:
        return f"{value * 1000:.2f}{SPACE}ms" if value else f"0{SPACE}ms"
    if value < 0.01:
        return f"{value * 1000:.1f}{SPACE}ms"
    if value < 1:
        return f"{value * 1000:.0f}{SPACE}ms"
    if value < 10:
        return f"{value:.2f}{SPACE}s"
    if value < 120:
        return f"{value:.0f}{SPACE}s"
    return age(value)


def age(value: float) -> str:
    """A duration in whole units: "8 s", "3 min", "2 h"."""
    if value < 120:
        return f"{max(0, value):.0f}{SPACE}s"
    if value < 7200:
        return f"{value / 60:.0f}{SPACE}min"
    return f"{value / 3600:.0f}{SPACE}h"


def gibibytes(value: float, *, unit: bool = True) -> str:
    """Bytes of memory: "71.2 GiB", "0 GiB", "<0.1 GiB"."""
    number = value / GIBIBYTE
    if value <= 0:
        text = "0"
    elif number < 0.05:
        text = "<0.1"
    else:
        text = f"{number:.1f}" if number < 99.95 else f"{number:.0f}"
    return f"{text}{SPACE}GiB" if unit else text


def bytes_per_second(value: float) -> str:
    """A throughput in decimal units, as links are sold: "12.1 GB/s", "340 MB/s", "0"."""
    number, unit = _scaled(value, value)
    return f"{number}{SPACE}{unit}" if unit else number


def both_directions(send: float, receive: float) -> str:
    """Two throughputs in the unit of the larger: "12.4 / 12.1 GB/s", "0 / 0"."""
    larger = max(send, receive)
    (first, unit), (second, _) = _scaled(send, larger), _scaled(receive, larger)
    return f"{first} / {second}{SPACE}{unit}" if unit else f"{first} / {second}"


def _scaled(value: float, reference: float) -> tuple[str, str]:
    for factor, unit in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if reference >= factor:
            number = value / factor
            return f"{number:.0f}" if number >= 99.5 or number == 0 else f"{number:.1f}", unit
    return ("0", "") if reference < 1 else (f"{value:.0f}", "B/s")


def count(value: float) -> str:
    """A whole number with thousands separated: "1,240"."""
    return f"{value:,.0f}"


def per_second(value: float) -> str:
    """A rate with the digits that matter: "1,240", "12.4", "0.35", "0"."""
    if value == 0:
        return "0"
    if value < 0.01:
        return "<0.01"
    if value < 1:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def quantile_text(quantile: Quantile) -> str:
    """A latency with its bound: "42 ms", "≥ 10 s", "< 1 ms"."""
    text = seconds(quantile.value)
    return text if quantile.bound is Bound.EXACT else f"{quantile.bound.value}{SPACE}{text}"


def shortened(text: str, characters: int = LABEL_CHARACTERS) -> str:
    """Untrusted text on one line, without control characters or direction overrides, cut to a length."""
    cleaned = "".join(character if character.isprintable() else " " for character in text[: characters * 4])
    cleaned = " ".join(cleaned.split())
    return cleaned if len(cleaned) <= characters else cleaned[: characters - 1] + "…"


def finite_number(value: object) -> float | None:
    """A number out of somebody else's JSON; None for anything that is not one, or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if isfinite(number) else None
