"""Rules and alerts as Prometheus' HTTP API tells them (/api/v1/rules): read from a Prometheus that evaluates our files, or from this dashboard.

JSON in, values out, and one call to get it. Formats: prometheus.io/docs/prometheus/latest/querying/api#rules.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from poise.history.fetch import Fetcher, FetchError, Request

#: Bytes of an answer: a thousand alerts with their annotations.
ANSWER_LIMIT = 32_000_000
#: States of an alert; Prometheus lists no inactive one, others do. One of another word would be counted nowhere.
_ALERT_STATES = ("firing", "pending", "inactive")
#: Characters of a value in a message.
_LONGEST_SHOWN = 40
#: Seconds that a rule may wait: more than anybody's, less than what is no number.
_LONGEST = 1e10


class RulesError(Exception):
    """The rules could not be had; the message names the server and says why."""


@dataclass(frozen=True, slots=True)
class TellsAlert:
    """An alert of a rule; `active_at` in Unix seconds, 0 where it was not said."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    state: str
    active_at: float
    value: str


@dataclass(frozen=True, slots=True)
class TellsRule:
    """A rule as its evaluator tells it. Durations in seconds; `labels` are the rule's own, `evaluated_at` is Unix seconds, 0 before the first
    evaluation. `lacks` is what this dashboard says besides: input missing, insufficient history."""

    name: str
    alert: bool
    query: str
    group: str
    health: str
    error: str
    state: str = ""
    wait: float = 0.0
    keep_firing_for: float = 0.0
    annotations: Mapping[str, str] | None = None
    lacks: str = ""
    alerts: tuple[TellsAlert, ...] = ()
    labels: Mapping[str, str] | None = None
    evaluated_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Standing:
    """What a `poise up` says besides: who evaluates (`mode`), and how alerts are kept quiet, in words, by their labels."""

    mode: str = ""
    quiet: Mapping[frozenset[tuple[str, str]], str] = field(default_factory=dict)


async def standing(url: str, fetcher: Fetcher, *, timeout: float = 30.0) -> Standing:
    """What GET /api/poise/v1/alerts says; nothing where that is not known, as in a Prometheus. Raises RulesError for a `poise up` that says it otherwise."""
    base = url.rstrip("/")
    try:
        body = await fetcher.body(
            f"{base}/api/poise/v1/alerts", Request(headers={"Accept": "application/json"}), timeout=timeout, limit=ANSWER_LIMIT
        )
        document = json.loads(body)
    except (FetchError, ValueError, RecursionError):
        return Standing()
    if not isinstance(document, dict) or "mode" not in document:
        return Standing()
    try:
        alerts = [_object(alert, "an alert") for alert in _list(document, "alerts")]
        quiet = {frozenset(_texts(one, "labels").items()): _quiet(one) for one in alerts}
        return Standing(_text(document, "mode"), {own: words for own, words in quiet.items() if words})
    except ValueError as error:
        raise RulesError(f"{base}/api/poise/v1/alerts: this is no answer of a `poise up` of this version ({error})") from None


def _quiet(alert: Mapping[str, Any]) -> str:
    acknowledged = _object(alert.get("acknowledged") or {}, "acknowledged")
    words = [f"acknowledged by {_text(acknowledged, 'by') or 'somebody'}"] if acknowledged else []
    words += [word for word, key in (("silenced", "silenced_by"), ("inhibited", "inhibited_by")) if _list(alert, key)]
    return ", ".join(words)


async def rules(url: str, fetcher: Fetcher, *, timeout: float = 10.0) -> list[TellsRule]:
    """All rules of a server; `url` is what /api/v1 is below. Raises RulesError."""
    base = url.rstrip("/")
    try:
        body = await fetcher.body(
            f"{base}/api/v1/rules", Request(headers={"Accept": "application/json"}), timeout=timeout, limit=ANSWER_LIMIT
        )
    except FetchError as error:
        raise RulesError(f"{base}: {unanswered(error)}") from None
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise _no_api(base, "no JSON") from None
    try:
        return read(document)
    except ValueError as error:
        raise _no_api(base, str(error)) from None


def unanswered(error: FetchError) -> str:
    """Why there is no answer, with the way out where nothing listens."""
    return f"{error}; start `poise up`, or name the one that runs with --url" if error.refused else str(error)


def _no_api(base: str, why: str) -> RulesError:
    return RulesError(f"{base}/api/v1/rules: what answers is no Prometheus API ({why}); give the address of `poise up` or of a Prometheus")


def read(document: object) -> list[TellsRule]:
    """The rules in the order of their groups. What is left out has its default; raises ValueError naming what is of another kind than Prometheus says."""
    whole = _object(document, "the answer")
    if whole.get("status") != "success":
        raise ValueError("its status is not success")
    data = _object(whole.get("data"), "data")
    if "groups" not in data:
        raise ValueError("it has no groups")
    groups = [_object(group, "a group") for group in _list(data, "groups")]
    return [_rule(_text(group, "name"), _object(rule, "a rule")) for group in groups for rule in _list(group, "rules")]


def _rule(group: str, rule: Mapping[str, Any]) -> TellsRule:
    kind = rule.get("type")
    if kind not in ("alerting", "recording"):
        raise ValueError(f"the type of a rule is {_shown(kind)}")
    name = _text(rule, "name")
    if not name:
        raise ValueError("a rule has no name")
    return TellsRule(
        name=name,
        alert=kind == "alerting",
        query=_text(rule, "query"),
        group=group,
        health=_text(rule, "health"),
        error=_text(rule, "lastError"),
        state=_text(rule, "state"),
        wait=_seconds(rule, "duration"),
        keep_firing_for=_seconds(rule, "keepFiringFor"),
        annotations=_texts(rule, "annotations"),
        lacks=_text(rule, "lacks"),
        alerts=tuple(_alert(_object(alert, "an alert")) for alert in _list(rule, "alerts")),
        labels=_texts(rule, "labels"),
        evaluated_at=_moment(rule, "lastEvaluation"),
    )


def _alert(alert: Mapping[str, Any]) -> TellsAlert:
    state = _text(alert, "state")
    if state not in _ALERT_STATES:
        raise ValueError(f"the state of an alert is {_shown(state)}")
    value = alert.get("value")
    return TellsAlert(
        _texts(alert, "labels"),
        _texts(alert, "annotations"),
        state,
        _moment(alert, "activeAt"),
        str(value) if isinstance(value, int | float) else _text(alert, "value"),
    )


# ------------------------------------------------------------------------------------------------------------------- kinds
def _moment(of: Mapping[str, Any], key: str) -> float:
    """Unix seconds; 0 where it is not said, and for year 1, by which Prometheus says never."""
    written = _text(of, key)
    if not written:
        return 0.0
    try:
        return max(0.0, datetime.fromisoformat(written).timestamp())
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{key} is {_shown(written)}") from None


def _object(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is {_shown(value)}")
    return value


def _list(of: Mapping[str, Any], key: str) -> list[Any]:
    value = of.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{key} is {_shown(value)}")
    return value


def _text(of: Mapping[str, Any], key: str) -> str:
    value = of.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{key} is {_shown(value)}")
    return value


def _texts(of: Mapping[str, Any], key: str) -> dict[str, str]:
    value = _object(of.get(key) or {}, key)
    return {name: _text(value, name) for name in value}


def _seconds(of: Mapping[str, Any], key: str) -> float:
    value = of.get(key)
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST:
        raise ValueError(f"{key} is {_shown(value)}")
    return float(value)


def _shown(value: object) -> str:
    """What stood there, short enough for a message."""
    if value is None:
        return "missing"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str | int | float) else f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"
