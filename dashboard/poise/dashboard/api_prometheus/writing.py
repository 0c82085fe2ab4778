"""Writes answers as Prometheus does: the same JSON to the last character of a number. Pure; knows no request.

Source: prometheus web/api/v1/api.go and util/jsonutil/marshal.go.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from poise.dashboard.api_prometheus.sources import ActiveAlert, AlertingRule, Rule, RuleGroup
from poise.history.durations import format_duration
from poise.history.promql.engine import InstantVector, Matrix, Result, Samples, ScalarValue, StringValue
from poise.history.promql.labels import Labels
from poise.history.querier.door import Answer
from poise.history.scraping import TargetStatus
from poise.history.text_format import Metadata

#: Go's zero time, which Prometheus writes for what has not happened yet.
_NEVER = "0001-01-01T00:00:00Z"


def success(data: str, warnings: Sequence[str] = ()) -> str:
    """The document of an answer; `data` is JSON."""
    told = f',"warnings":{text(list(warnings))}' if warnings else ""
    return f'{{"status":"success","data":{data}{told}}}'


def failure(kind: str, message: str) -> str:
    """The document of an error."""
    return text({"status": "error", "errorType": kind, "error": message})


def text(value: Any) -> str:
    """JSON without blanks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def number(value: float) -> str:
    """A sample's value."""
    written = repr(value)
    if "e" not in written and "n" not in written:  # the usual, first: an answer has thousands
        return written.removesuffix(".0")
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return written if value and (abs(value) < 1e-6 or abs(value) >= 1e21) else format(Decimal(written), "f")


def seconds(milliseconds: int) -> str:
    """A sample's time."""
    sign, left = ("-", -milliseconds) if milliseconds < 0 else ("", milliseconds)
    return f"{sign}{left // 1000}.{left % 1000:03d}" if left % 1000 else f"{sign}{left // 1000}"


def result(found: Result, limit: int) -> tuple[str, bool]:
    """The `data` of a query, at most `limit` series (0: all), and whether it was cut."""
    match found:
        case InstantVector():
            rows = [f'{{"metric":{_labels(one.labels)},"value":{_point(found.at, one.value)}}}' for one in _cut(found.samples, limit)]
            return _typed("vector", rows), 0 < limit < len(found.samples)
        case Matrix():
            stamps: dict[int, str] = {}  # the series of a range query have the same times
            rows = [f'{{"metric":{_labels(one.labels)},"values":[{_points(one, stamps)}]}}' for one in _cut(found.series, limit)]
            return _typed("matrix", rows), 0 < limit < len(found.series)
        case ScalarValue():
            return f'{{"resultType":"scalar","result":{_point(found.at, found.value)}}}', False
        case StringValue():
            return f'{{"resultType":"string","result":[{seconds(found.at)},{text(found.value)}]}}', False


def points(found: Result) -> int:
    """How many values an answer has."""
    return sum(len(one.times) for one in found.series) if isinstance(found, Matrix) else 1


def _cut(rows: Sequence[Any], limit: int) -> Sequence[Any]:
    return rows[:limit] if limit else rows


def _typed(kind: str, rows: Iterable[str]) -> str:
    return f'{{"resultType":"{kind}","result":[{",".join(rows)}]}}'


def _points(one: Samples, stamps: dict[int, str]) -> str:
    times = one.times.tolist()
    for at in times:
        if at not in stamps:
            stamps[at] = seconds(at)
    # As `number` says; its usual way is written out here, for an answer has thousands.
    texts = [
        number(value) if "e" in (text := repr(value)) or "n" in text else text[:-2] if text.endswith(".0") else text
        for value in one.values.tolist()
    ]
    return ",".join([f'[{stamps[at]},"{text}"]' for at, text in zip(times, texts, strict=True)])


def _point(at: int, value: float) -> str:
    return f'[{seconds(at)},"{number(value)}"]'


def _labels(own: Labels) -> str:
    return text(dict(own))


# ----------------------------------------------------------------------------------------------------------- series and labels
def series(found: Answer[list[Labels]]) -> str:
    """The document of `series`."""
    return success(f"[{','.join(_labels(own) for own in found.data)}]", found.warnings)


def texts(found: Answer[list[str]]) -> str:
    """The document of `labels` and of a label's values."""
    return success(text(found.data), found.warnings)


def metadata(found: Answer[Mapping[str, tuple[Metadata, ...]]], limit_per_metric: int) -> str:
    """The document of `metadata`."""
    families = {
        name: [{"type": one.type, "help": one.help, "unit": ""} for one in (several[:limit_per_metric] if limit_per_metric else several)]
        for name, several in found.data.items()
    }
    return success(text(families), found.warnings)


# ------------------------------------------------------------------------------------------------------------ rules and targets
def moment(at: float | None) -> str:
    """A moment as Go writes it (RFC 3339, to the nanosecond at most)."""
    if at is None:
        return _NEVER
    whole = datetime.fromtimestamp(at, UTC)
    part = f"{whole.microsecond:06d}".rstrip("0")
    return f"{whole:%Y-%m-%dT%H:%M:%S}{'.' + part if part else ''}Z"


def alert(one: ActiveAlert) -> dict[str, object]:
    """One alert."""
    since = {} if one.keep_firing_since is None else {"keepFiringSince": moment(one.keep_firing_since)}
    return {
        "labels": dict(one.labels),
        "annotations": dict(one.annotations),
        "state": one.state,
        "activeAt": moment(one.active_at),
        **since,
        "value": _exponent(one.value),
    }


def _exponent(value: float) -> str:
    """As Go's strconv.FormatFloat(value, 'e', -1, 64)."""
    if not math.isfinite(value):
        return number(value)
    digits, _, power = f"{Decimal(repr(value)).normalize():e}".partition("e")
    return f"{digits}e{int(power or 0):+03d}"


def group(one: RuleGroup, *, with_alerts: bool) -> dict[str, object]:
    """One group of rules."""
    return {
        "name": one.name,
        "file": one.file,
        "rules": [_alerting(rule, with_alerts) if isinstance(rule, AlertingRule) else _recording(rule) for rule in one.rules],
        "interval": one.interval,
        "limit": one.limit,
        "evaluationTime": one.evaluation_seconds,
        "lastEvaluation": moment(one.last_evaluation),
    }


def _alerting(one: AlertingRule, with_alerts: bool) -> dict[str, object]:
    return {
        "state": one.state,
        "name": one.rule.name,
        "query": one.rule.query,
        "duration": one.duration,
        "keepFiringFor": one.keep_firing_for,
        "labels": dict(one.rule.labels),
        "annotations": dict(one.annotations),
        **({"alerts": [alert(active) for active in one.alerts]} if with_alerts else {}),
        **_health(one.rule),
        "type": "alerting",
    }


def _recording(one: Rule) -> dict[str, object]:
    return {"name": one.name, "query": one.query, "labels": dict(one.labels), **_health(one), "type": "recording"}


def _health(one: Rule) -> dict[str, object]:
    return {
        "health": one.health,
        **({"lastError": one.last_error} if one.last_error else {}),
        **({"lacks": one.lacks} if one.lacks else {}),
        "evaluationTime": one.evaluation_seconds,
        "lastEvaluation": moment(one.last_evaluation),
    }


def target(status: TargetStatus) -> dict[str, object]:
    """One target."""
    own, last = status.target, status.last
    return {
        "discoveredLabels": {"__address__": own.url.split("/")[2], "job": own.job},
        "labels": dict(own.labels),
        "scrapePool": own.job,
        "scrapeUrl": own.url,
        "globalUrl": own.url,
        "lastError": "" if last is None else last.error,
        "lastScrape": moment(None if last is None else last.at),
        "lastScrapeDuration": 0 if last is None else last.duration,
        "health": status.health,
        "scrapeInterval": format_duration(own.interval),
        "scrapeTimeout": format_duration(own.timeout),
    }
