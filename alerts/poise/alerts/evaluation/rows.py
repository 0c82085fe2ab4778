"""Alerts and changes of state as rows of the evaluator's file, and back. What is read may have been damaged: a row that makes no sense is named.

Values in, values out; knows no file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from poise.alerts.evaluation.active import ALERT_NAME, Alert, State, Transition
from poise.history.promql.labels import Labels, get, labels

#: Moments from here on (the year 10000, in milliseconds) cannot be written as a date.
_MOMENTS_END = 253_402_300_800_000


class BadRow(ValueError):
    """A row that was not written so; the message says what is wrong."""


def text(values: Mapping[str, str]) -> str:
    """An object of JSON: readable, but for what is no Unicode text (a lone surrogate of a name that the system gave)."""
    readable = json.dumps(values, ensure_ascii=False, sort_keys=True)
    try:
        readable.encode()
    except UnicodeEncodeError:
        return json.dumps(values, sort_keys=True)
    return readable


def own_labels(found: object) -> Labels:
    """The labels of a row. Raises BadRow."""
    return labels(_texts(found))


def moment(found: object) -> int:
    """Milliseconds. Raises BadRow."""
    if not isinstance(found, int) or not 0 <= found < _MOMENTS_END:
        raise BadRow(f"{found!r:.100} is no moment")
    return found


def alert_row(rule: str, alert: Alert) -> dict[str, object]:
    """For AlertRow."""
    return {
        "rule": rule,
        "labels": text(dict(alert.labels)),
        "annotations": text(alert.annotations),
        "value": repr(alert.value),
        "state": alert.state.value,
        "active_at": alert.active_at,
        "fired_at": alert.fired_at,
        "resolved_at": alert.resolved_at,
        "keep_firing_since": alert.keep_firing_since,
        "sent": alert.sent,
    }


def alert(row: Any) -> Alert:
    """Of an AlertRow. Raises BadRow."""
    state = _state(row.state)
    found = Alert(
        own_labels(row.labels),
        _texts(row.annotations),
        _number(row.value),
        state,
        moment(row.active_at),
        _moment_or_none(row.fired_at),
        _moment_or_none(row.resolved_at),
        _moment_or_none(row.keep_firing_since),
        _moment_or_none(row.sent),
    )
    if state is State.INACTIVE and found.resolved_at is None:
        raise BadRow("it is over, and since when is missing")
    return found


def event_row(event: Transition) -> dict[str, object]:
    """For EventRow."""
    return {
        "at": event.at,
        "name": get(event.labels, ALERT_NAME),
        "labels": text(dict(event.labels)),
        "before": event.before.value if event.before else "",
        "after": event.after.value if event.after else "",
        "value": repr(event.value),
        "annotations": text(event.annotations),
    }


def event(row: Any) -> Transition:
    """Of an EventRow. Raises BadRow."""
    before, after = (None if found == "" else _state(found) for found in (row.before, row.after))
    return Transition(moment(row.at), own_labels(row.labels), before, after, _number(row.value), _texts(row.annotations))


def _texts(found: object) -> dict[str, str]:
    try:
        values = json.loads(str(found))
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise BadRow(f"{found!r:.100} is no object of texts")
    return values


def _number(found: object) -> float:
    try:
        return float(str(found))
    except ValueError:
        raise BadRow(f"{found!r:.100} is no number") from None


def _state(found: object) -> State:
    try:
        return State(str(found))
    except ValueError:
        raise BadRow(f"{found!r:.100} is no state") from None


def _moment_or_none(found: object) -> int | None:
    return None if found is None else moment(found)
