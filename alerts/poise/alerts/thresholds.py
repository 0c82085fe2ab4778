"""The numbers that decide in the rules: each declared once with its source, marked where it stands in an expression, and changeable there.

A rule file is what Prometheus loads, so a threshold is an ordinary number in it. It is marked by a comment at the end of its line, which
PromQL ignores, and the mark means the last number on that line (also one inside le="…"):

    poise_engine:queue_time:seconds_avg15m > 30  # EngineQueueTimeHigh.seconds

`thresholds/*.toml` declare value, unit, meaning and source of every name. Besides, `ALERT.for` and `ALERT.keep_firing_for` are the durations of
every alert. This file rewrites marked numbers in copies of rules; it does not know what any of them means.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from poise.alerts import shipped
from poise.alerts.durations import format_duration, parse_duration
from poise.alerts.rules import Rule, RuleFile
from poise.alerts.scale import change_rules
from poise.exporter.settings import LARGEST_FILE, nearest, ordinary

#: What a threshold can be counted in, and the most that makes sense.
UNITS: Mapping[str, float] = {
    "ratio": 1.0,
    "seconds": float("inf"),
    "count": float("inf"),
    "bytes": float("inf"),
    "bytes per second": float("inf"),
    "tokens": float("inf"),
    "tokens per second": float("inf"),
    "per minute": float("inf"),
    "degrees Celsius": float("inf"),
    "factor": float("inf"),
}
#: The durations of an alert, which every alert has and nobody declares.
DURATIONS = ("for", "keep_firing_for")

_NAME = re.compile(r"[A-Za-z]\w*\.[a-z]\w*")
_MARK = re.compile(rf"^(?P<code>[^#]*?)\s*# (?P<name>{_NAME.pattern})\s*$")
#: A number that stands by itself: no part of a name, a duration or a label's value, except the bound of a bucket.
_NUMBER = re.compile(r'(?:(?<=le=")|(?<![\w.:\["]))\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.:\]])')


class ThresholdError(ValueError):
    """A threshold that does not exist, cannot have this value, or is marked wrongly; the text tells the person."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number that decides: `NAME.key`, what it is as shipped, its unit (one of UNITS), what it means, and where it comes from."""

    name: str
    value: float
    unit: str
    meaning: str
    source: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A marked number: the threshold's name, the value there, and the line of the expression (from 0) with the number's place in it."""

    name: str
    value: float
    line: int
    start: int
    end: int


def shipped_thresholds() -> dict[str, Threshold]:
    """All declared thresholds by name, in the order of the files. Raises ThresholdError when a declaration is not as it should be."""
    found: dict[str, Threshold] = {}
    for path in shipped.threshold_files():
        for threshold in parse_declarations(path.read_text(encoding="utf-8"), path.name):
            if threshold.name in found:
                raise ThresholdError(f"{path.name}: {threshold.name} is declared twice")
            found[threshold.name] = threshold
    return found


def parse_declarations(text: str, file: str) -> Iterator[Threshold]:
    """The thresholds that a TOML file declares as [NAME.key] with value, unit, meaning and source. Raises ThresholdError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ThresholdError(f"{file}: no valid TOML: {error}") from None
    for owner, keys in document.items():
        for key, fields in keys.items():
            name = f"{owner}.{key}"
            if set(fields) != {"value", "unit", "meaning", "source"} or key in DURATIONS or not _NAME.fullmatch(name):
                raise ThresholdError(f"{file}: [{name}] must have value, unit, meaning and source, and nothing else")
            if fields["unit"] not in UNITS:
                raise ThresholdError(f'{file}: [{name}]: the unit "{fields["unit"]}" is none of {", ".join(UNITS)}')
            yield Threshold(name, float(fields["value"]), fields["unit"], fields["meaning"], fields["source"])


def marks(expr: str) -> tuple[Mark, ...]:
    """The marked numbers of an expression, top to bottom. Raises ThresholdError for a mark on a line without a number."""
    found = []
    for number, line in enumerate(expr.splitlines()):
        if match := _MARK.match(line):
            numbers = list(_NUMBER.finditer(match["code"]))
            if not numbers:
                raise ThresholdError(f"{match['name']} marks a line without a number: {line.strip()}")
            last = numbers[-1]
            found.append(Mark(match["name"], float(last[0]), number, last.start(), last.end()))
    return tuple(found)


def disagreements(files: Iterable[RuleFile]) -> Iterator[str]:
    """Where the shipped rules and the declarations do not say the same, in words."""
    declared = shipped_thresholds()
    seen = set()
    for rule in (rule for file in files for rule in file.rules):
        for mark in marks(rule.expr):
            seen.add(mark.name)
            if mark.name not in declared:
                yield f"{rule.title} marks {mark.name}, which no file in thresholds/ declares"
            elif mark.value != declared[mark.name].value:
                yield f"{mark.name} is {written(mark.value)} in {rule.title} and declared as {written(declared[mark.name].value)}"
    yield from (f"{name} is declared and marked in no rule" for name in declared if name not in seen)


# ---------------------------------------------------------------------------------------------------------------- changing
def change(files: Sequence[RuleFile], wanted: Mapping[str, str]) -> tuple[RuleFile, ...]:
    """The files with thresholds (NAME.key → number, ALERT.for → duration) as wanted; alerts say in an annotation what was changed in them.

    Raises ThresholdError when a name is not marked in these files, or a value is no number (or duration) or out of its bounds.
    """
    declared = shipped_thresholds()
    known = names(files)
    for name, text in wanted.items():
        if name not in known:
            raise ThresholdError(f"{name}: there is no such threshold; {_nearest(name, known)}`poise alerts thresholds` lists them")
        _value(name, text, declared.get(name))
    return tuple(change_rules(file, lambda rule: _changed(rule, wanted)) for file in files)


def _nearest(name: str, known: Iterable[str]) -> str:
    found = nearest(name, known)
    return f"{found} " if found.startswith("did") else ""


def names(files: Iterable[RuleFile]) -> frozenset[str]:
    """Everything that can be changed in these files: marked numbers and the durations of alerts."""
    rules = [rule for file in files for rule in file.rules]
    marked = {mark.name for rule in rules for mark in marks(rule.expr)}
    return frozenset(marked | {f"{rule.name}.{key}" for rule in rules if rule.alert for key in DURATIONS})


def parse_settings(text: str, file: str) -> dict[str, str]:
    """What a person's TOML file wants changed, in the forms of `table_settings`; also a poise.toml, for its [alerts.thresholds]. Raises
    ThresholdError when it is not of this form."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # besides TOMLDecodeError a number of too many digits
        raise ThresholdError(f"{file}: no valid TOML: {error}") from None
    alerts = document.get("alerts")
    if isinstance(alerts, dict) and isinstance(alerts.get("thresholds"), dict):
        document = alerts["thresholds"]
    try:
        return table_settings(document)
    except ThresholdError as error:
        raise ThresholdError(f"{file}: {error}") from None


def table_settings(table: Mapping[str, object]) -> dict[str, str]:
    """What a TOML table wants changed: [NAME] with `key = value` lines, NAME.key = value, or "NAME.key" = value. Raises ThresholdError."""
    wanted = {}
    for owner, keys in table.items():
        if not isinstance(keys, dict) and "." not in owner:
            raise ThresholdError(f"{owner}: write a table [ALERT] with lines like `seconds = 10`, or ALERT.seconds = 10")
        for key, value in keys.items() if isinstance(keys, dict) else (("", keys),):
            name = f"{owner}.{key}" if key else owner
            if isinstance(value, bool) or not isinstance(value, (int, float, str)):
                raise ThresholdError(f"{name} must be a number, or a duration in quotes")
            wanted[name] = str(value)
    return wanted


def read_settings(path: Path) -> dict[str, str]:
    """`parse_settings` of a file. Raises OSError and ThresholdError."""
    try:
        return parse_settings(ordinary(path, LARGEST_FILE).decode(), str(path))
    except UnicodeDecodeError:
        raise ThresholdError(f"{path} is no UTF-8 text") from None
    except ThresholdError:
        raise
    except ValueError as error:
        raise ThresholdError(f"{path}: {error}") from None


def _value(name: str, text: str, threshold: Threshold | None) -> float:
    """The number, or the seconds of the duration."""
    if name.rpartition(".")[2] in DURATIONS:
        try:
            return parse_duration(text)
        except ValueError as error:
            raise ThresholdError(f"{name}: {error}") from None
    try:
        value = float(text)
    except ValueError:
        raise ThresholdError(f'{name}: "{text}" is no number') from None
    most = UNITS[threshold.unit] if threshold is not None else float("inf")
    if not 0 <= value <= most or value == float("inf"):
        bounds = f"between 0 and {most:g}" if most < float("inf") else "zero or more"
        raise ThresholdError(f"{name}: {text} is no {threshold.unit if threshold else 'value'}; it must be {bounds}")
    return value


def _changed(rule: Rule, wanted: Mapping[str, str]) -> Rule:
    lines, notes = rule.expr.splitlines(), []
    for mark in marks(rule.expr):
        if mark.name in wanted:
            value = _value(mark.name, wanted[mark.name], None)
            line = lines[mark.line]
            number = bound(value) if line[: mark.start].endswith('le="') else written(value)
            lines[mark.line] = f"{line[: mark.start]}{number}{line[mark.end :]}"
            notes.append(f"{mark.name} is {written(value)}, not {written(mark.value)}")
    durations = {"for": rule.wait, "keep_firing_for": rule.keep_firing_for}
    for key, seconds in durations.items():
        name = f"{rule.name}.{key}"
        if rule.alert and name in wanted:
            durations[key] = _value(name, wanted[name], None)
            notes.append(f"{name} is {format_duration(durations[key])}, not {format_duration(seconds)}")
    if not notes:
        return rule
    # The texts speak of the original's numbers; whoever reads the notification of a changed rule must know.
    said = {"changed": f"Changed from what this text says: {'; '.join(dict.fromkeys(notes))}."} if rule.alert else {}
    return replace(
        rule,
        expr="\n".join(lines),
        wait=durations["for"],
        keep_firing_for=durations["keep_firing_for"],
        annotations={**rule.annotations, **said},
    )


def written(value: float) -> str:
    """How a threshold is written in an expression: no exponent where digits do, no zeros after the point."""
    return f"{value:.15g}"


def bound(value: float) -> str:
    """How a threshold is written as the bound of a bucket: as Prometheus' Python client and Prometheus 3 write it, 5 as "5.0"."""
    return repr(float(value))
