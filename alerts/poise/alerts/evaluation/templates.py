"""The templates of labels and annotations: the part of Prometheus' template language that alerts need; the rest is refused by name.

`{{ $labels.NAME }}`, `{{ $externalLabels.NAME }}`, `{{ $value }}` (also `.Labels.NAME`, `.ExternalLabels.NAME`, `.Value`), each through any of
FUNCTIONS and `printf "…"` with `|`. Texts are those of Prometheus 2.42 (`template/template.go`), numbers stand as Go writes them. Knows no rule
and no alert.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

_FIELD = re.compile(r"(?:\$(labels|externalLabels)|\.(Labels|ExternalLabels))\.([a-zA-Z_][a-zA-Z0-9_]*)")
_PRINTF = re.compile(r'printf\s+"([^"\\]*)"')
#: One verb of printf: flags, width, precision, letter. Letters that take a number.
_VERB = re.compile(r"%([-+ 0]*)(\d*)(?:\.(\d+))?([a-zA-Z%])")
_NUMBER_VERBS = "feEgGv"
#: Characters that a printf may ask for as width or precision; Go takes up to 1e6, and each alert at each evaluation would be as long.
WIDEST = 1_000

_LARGE = ("k", "M", "G", "T", "P", "E", "Z", "Y")
_SMALL = ("m", "u", "n", "p", "f", "a", "z", "y")
_BINARY = ("ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi", "Yi")

#: From this power of ten on, and below the other, Go's %g writes an exponent (strconv/ftoa.go, shortest form).
_LARGEST_PLAIN, _SMALLEST_PLAIN = 6, -4


#: Characters of a template that a message quotes.
_LONGEST_QUOTE = 120


class TemplateError(ValueError):
    """A template that is not understood; the message names the part."""


def go_float(value: float) -> str:
    """A number as Go's %v writes it: the fewest digits that tell it apart."""
    if not math.isfinite(value) or value == 0:
        return _not_plain(value) or "0"
    digits, power = _shortest(value)
    sign = "-" if value < 0 else ""
    if power < _SMALLEST_PLAIN or power >= _LARGEST_PLAIN:
        rest = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{rest}e{'-' if power < 0 else '+'}{abs(power):02d}"
    if power < 0:
        return f"{sign}0.{'0' * (-power - 1)}{digits}"
    whole, part = digits[: power + 1].ljust(power + 1, "0"), digits[power + 1 :]
    return f"{sign}{whole}.{part}" if part else f"{sign}{whole}"


def _shortest(value: float) -> tuple[str, int]:
    """The significant digits that tell a number apart, and its power of ten."""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, part = mantissa.partition(".")
    digits = (whole + part).lstrip("0")
    power = len(whole) - 1 + int(exponent or 0) if whole.strip("0") else int(exponent or 0) - (len(part) - len(part.lstrip("0")) + 1)
    return digits.rstrip("0") or "0", power


def _not_plain(value: float) -> str | None:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return None


def _four(value: float) -> str:
    """Go's %.4g."""
    return _not_plain(value) or f"{value:.4g}"


def _scaled(value: float) -> tuple[float, str]:
    """A number below 1 in the largest of the small units that shows a digit before the point."""
    prefix = ""
    for name in _SMALL:
        if abs(value) >= 1:
            break
        prefix, value = name, value * 1000
    return value, prefix


def humanize(value: float) -> str:
    """`12345` is `12.35k`, `0.0123` is `12.3m`."""
    if value == 0 or not math.isfinite(value):
        return _four(value)
    if abs(value) < 1:
        value, prefix = _scaled(value)
        return f"{_four(value)}{prefix}"
    prefix = ""
    for name in _LARGE:
        if abs(value) < 1000:
            break
        prefix, value = name, value / 1000
    return f"{_four(value)}{prefix}"


def humanize1024(value: float) -> str:
    """`1048576` is `1Mi`."""
    if abs(value) <= 1 or not math.isfinite(value):
        return _four(value)
    prefix = ""
    for name in _BINARY:
        if abs(value) < 1024:
            break
        prefix, value = name, value / 1024
    return f"{_four(value)}{prefix}"


def humanize_duration(value: float) -> str:
    """Seconds: `3661` is `1h 1m 1s`, `0.012` is `12ms`."""
    if not math.isfinite(value):
        return _four(value)
    if value == 0:
        return "0s"
    if abs(value) < 1:
        value, prefix = _scaled(value)
        return f"{_four(value)}{prefix}s"
    sign, value = ("-", -value) if value < 0 else ("", value)
    whole = int(value)
    days, hours, minutes, seconds = whole // 86_400, whole // 3600 % 24, whole // 60 % 60, whole % 60
    if days:
        return f"{sign}{days}d {hours}h {minutes}m {seconds}s"
    if hours:
        return f"{sign}{hours}h {minutes}m {seconds}s"
    if minutes:
        return f"{sign}{minutes}m {seconds}s"
    return f"{sign}{_four(value)}s"


def humanize_percentage(value: float) -> str:
    """`0.5` is `50%`."""
    return f"{_four(value * 100)}%"


def humanize_timestamp(value: float) -> str:
    """Unix seconds as Go prints a moment: `1435065584.128` is `2015-06-23 13:19:44.128 +0000 UTC`."""
    if not math.isfinite(value):
        return _four(value)
    try:
        whole = math.floor(value * 1000)
        moment = datetime.fromtimestamp(whole // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return _four(value)
    part = f".{whole % 1000:03d}".rstrip("0").rstrip(".")
    return f"{moment:%Y-%m-%d %H:%M:%S}{part} +0000 UTC"


FUNCTIONS: Mapping[str, Callable[[float], str]] = {
    "humanize": humanize,
    "humanize1024": humanize1024,
    "humanizeDuration": humanize_duration,
    "humanizePercentage": humanize_percentage,
    "humanizeTimestamp": humanize_timestamp,
}


@dataclass(frozen=True, slots=True)
class _Action:
    """What stands between two braces: where the value comes from ("value", "labels", "externalLabels"), and what it goes through."""

    source: str
    label: str
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Template:
    """A template that was understood."""

    parts: tuple[str | _Action, ...]

    def expand(self, labels: Mapping[str, str], value: float, external: Mapping[str, str]) -> str:
        """The text for one alert. A label that is not there is empty; a label that is no number goes through no function of numbers, and
        the text then says so, as Prometheus' does."""
        texts = []
        for part in self.parts:
            if isinstance(part, str):
                texts.append(part)
                continue
            try:
                texts.append(_carried_out(part, labels, value, external))
            except (ValueError, ArithmeticError) as error:
                return f"<error expanding template: {error}>"
        return "".join(texts)


def parse_template(text: str) -> Template:
    """Raises TemplateError for what is no template of the kinds above. Takes time in proportion to the text."""
    parts: list[str | _Action] = []
    position, trim = 0, False
    while (begin := text.find("{{", position)) >= 0:
        end = text.find("}}", begin + 2)
        if end < 0:
            raise TemplateError(f"{text[begin:][:60]!r} has no closing braces")
        inside, trim_before, trim_after = _trimmed(text[begin + 2 : end])
        literal = text[position:begin]
        literal = literal.lstrip() if trim else literal
        literal = literal.rstrip() if trim_before else literal
        parts += [literal, _parse_action(inside, text[begin : end + 2])]
        position, trim = end + 2, trim_after
    rest = text[position:].lstrip() if trim else text[position:]
    return Template(tuple(part for part in (*parts, rest) if part != ""))


def _trimmed(inside: str) -> tuple[str, bool, bool]:
    """What stands between the braces, and whether a dash takes the blanks before and after them."""
    before = inside[:1] == "-" and inside[1:2].isspace()
    inside = inside[2:] if before else inside
    after = inside[-1:] == "-" and inside[-2:-1].isspace()
    return (inside[:-2] if after else inside).strip(), before, after


def _piped(text: str) -> list[str]:
    """The parts between the bars that stand in no quotes."""
    parts = [""]
    for number, piece in enumerate(text.split('"')):
        if number % 2:
            parts[-1] += f'"{piece}"'
            continue
        first, *more = piece.split("|")
        parts[-1] += first
        parts += more
    return parts


def _parse_action(text: str, whole: str) -> _Action:
    if text.count('"') % 2:
        raise TemplateError(f"{_short(whole)}: a quote is not closed")
    first, *steps = (step.strip() for step in _piped(text))
    if first in FUNCTIONS or " " in first:
        # `humanize $value` is `$value | humanize`, and `printf "…" $value` likewise.
        head, _, first = first.rpartition(" ")
        steps = [head.strip(), *steps]
    for step in steps:
        if step not in FUNCTIONS and not _printf_format(step):
            raise TemplateError(f"{_short(whole)}: {_short(step)!r} is not supported; there are {', '.join(sorted(FUNCTIONS))} and printf")
    if first in ("$value", ".Value"):
        return _Action("value", "", tuple(steps))
    field = _FIELD.fullmatch(first)
    if field is None:
        raise TemplateError(f"{_short(whole)}: {_short(first)!r} is not supported; there are $labels.NAME, $externalLabels.NAME and $value")
    source = field[1] or field[2][0].lower() + field[2][1:]
    return _Action(source, field[3], tuple(steps))


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…"


def _printf_format(step: str) -> str | None:
    """The format of a printf with exactly one verb; None for anything else."""
    match = _PRINTF.fullmatch(step)
    if match is None:
        return None
    verbs = [verb for verb in _VERB.finditer(match[1]) if verb[4] != "%"]
    known = len(verbs) == 1 and verbs[0][4] in (*_NUMBER_VERBS, "s")
    for size in (size for verb in _VERB.finditer(match[1]) for size in verb.group(2, 3) if size):
        if len(size) > len(str(WIDEST)) or int(size) > WIDEST:
            raise TemplateError(f"printf: {_short(size)} is too wide; at most {WIDEST} characters are supported")
    return match[1] if known and "%" not in _VERB.sub("", match[1]) else None


def _carried_out(action: _Action, labels: Mapping[str, str], value: float, external: Mapping[str, str]) -> str:
    texts = labels if action.source == "labels" else external
    current: str | float = value if action.source == "value" else texts.get(action.label, "")
    for step in action.steps:
        form = _printf_format(step)
        current = FUNCTIONS[step](_number(current, step)) if form is None else _printed(form, current)
    return current if isinstance(current, str) else go_float(current)


def _number(value: str | float, step: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"{step} needs a number, not {value!r}") from None


def _printed(form: str, value: str | float) -> str:
    def replaced(match: re.Match[str]) -> str:
        flags, width, precision, letter = match.groups()
        if letter == "%":
            return "%"
        if isinstance(value, str):
            text = value if letter in "sv" else f"%!{letter}(string={value})"
        elif letter == "s":
            text = f"%!s(float64={go_float(value)})"
        elif letter == "v" or (letter in "gG" and precision is None) or not math.isfinite(value):
            text = go_float(value)
        else:
            text = f"{value:.{precision or 6}{letter}}"
        if "+" in flags and isinstance(value, float) and not text.startswith(("-", "+")):
            text = f"+{text}"
        if not width:
            return text
        return text.ljust(int(width)) if "-" in flags else text.zfill(int(width)) if "0" in flags else text.rjust(int(width))

    return _VERB.sub(replaced, form)
