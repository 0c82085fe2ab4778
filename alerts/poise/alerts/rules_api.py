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
    """What GET /api/poise/v1/alerts says; nothing where that is not known, as in a Prometheus."""
    try:
        body = await fetcher.body(
            f"{url.rstrip('/')}/api/poise/v1/alerts", Request(headers={"Accept": "application/json"}), timeout=timeout, limit=ANSWER_LIMIT
        )
        document = _object(json.loads(body))
    except (FetchError, ValueError, RecursionError):
        return Standing()
    alerts = [_object(alert) for alert in document.get("alerts") or ()]
    return Standing(
        str(document.get("mode") or ""), {frozenset(_texts(one.get("labels")).items()): words for one in alerts if (words := _quiet(one))}
    )


def _quiet(alert: Mapping[str, Any]) -> str:
    acknowledged = _object(alert.get("acknowledged"))
    words = [f"acknowledged by {acknowledged.get('by') or 'somebody'}"] if acknowledged else []
    words += [word for word, key in (("silenced", "silenced_by"), ("inhibited", "inhibited_by")) if alert.get(key)]
    return ", ".join(words)


async def rules(url: str, fetcher: Fetcher, *, timeout: float = 10.0) -> list[TellsRule]:
    """All rules of a server; `url` is what /api/v1 is below. Raises RulesError."""
    base = url.rstrip("/")
    try:
        body = await fetcher.body(
            f"{base}/api/v1/rules", Request(headers={"Accept": "application/json"}), timeout=timeout, limit=ANSWER_LIMIT
        )
    except FetchError as error:
        raise RulesError(f"{base}: {error}") from None
    try:
        return read(json.loads(body))
    except (ValueError, RecursionError):
        raise RulesError(
            f"{base}/api/v1/rules: what answers is no Prometheus API; give the address of `poise up` or of a Prometheus"
        ) from None


def read(document: object) -> list[TellsRule]:
    """The rules in the order of their groups. Raises ValueError when it is no such document."""
    if not isinstance(document, dict) or document.get("status") != "success":
        raise ValueError("no answer of Prometheus' API")
    groups = _object(document.get("data")).get("groups")
    if not isinstance(groups, list):
        raise ValueError("no groups")
    return [_rule(str(_object(group).get("name", "")), _object(rule)) for group in groups for rule in _object(group).get("rules") or ()]


def _rule(group: str, rule: Mapping[str, Any]) -> TellsRule:
    return TellsRule(
        name=str(rule.get("name", "")),
        alert=rule.get("type") == "alerting",
        query=str(rule.get("query", "")),
        group=group,
        health=str(rule.get("health", "")),
        error=str(rule.get("lastError") or ""),
        state=str(rule.get("state") or ""),
        wait=_number(rule.get("duration")),
        keep_firing_for=_number(rule.get("keepFiringFor")),
        annotations=_texts(rule.get("annotations")),
        lacks=str(rule.get("lacks") or ""),
        alerts=tuple(_alert(_object(alert)) for alert in rule.get("alerts") or ()),
        labels=_texts(rule.get("labels")),
        evaluated_at=_moment(rule.get("lastEvaluation")),
    )


def _alert(alert: Mapping[str, Any]) -> TellsAlert:
    return TellsAlert(
        _texts(alert.get("labels")),
        _texts(alert.get("annotations")),
        str(alert.get("state", "")),
        _moment(alert.get("activeAt")),
        str(alert.get("value", "")),
    )


def _moment(written: object) -> float:
    """Unix seconds; 0 for what is no time, and for year 1, by which Prometheus says never."""
    try:
        return max(0.0, datetime.fromisoformat(str(written)).timestamp())
    except (ValueError, OverflowError, OSError):
        return 0.0


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: object) -> dict[str, str]:
    return {str(key): str(text) for key, text in _object(value).items()}


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
