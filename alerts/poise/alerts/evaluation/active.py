"""One alerting rule from one evaluation to the next: pending, firing, kept firing, resolved. Values in, values out.

The states and moments are those of Prometheus 2.42 (`rules/alerting.go`, Eval and ForEachActiveAlert). Moments and durations are milliseconds: what
is compared with `for` must be exact. Knows no query, no store and no network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from poise.alerts.evaluation.templates import Template
from poise.history.promql.labels import NAME, Labels, changed, drop_name

#: A resolved alert is told to Alertmanager again and again for so long (`resolvedRetention`).
RESOLVED_RETENTION = 15 * 60_000
#: A firing alert is told again after so long (`--rules.alert.resend-delay`).
RESEND_DELAY = 60_000
#: What is not told again within so many of the longer of interval and resend delay ends by itself.
VALID_FOR_SENDS = 4

ALERT_NAME = "alertname"
ALERT_STATE = "alertstate"
#: The names of the series that alerting rules write.
OF_ALERTS = (ALERTS, ALERTS_FOR_STATE) = ("ALERTS", "ALERTS_FOR_STATE")


class State(StrEnum):
    """Inactive is an alert that has fired and is over."""

    PENDING = "pending"
    FIRING = "firing"
    INACTIVE = "inactive"


class RuleFailed(ValueError):
    """A rule that gave no result this time; its alerts stay as they are. The message is for whoever wrote the rule."""


@dataclass(frozen=True, slots=True)
class AlertRule:
    """A rule as it is evaluated. `wait` is its `for`; templates by label and annotation name; `limit` 0 is none."""

    name: str
    wait: int
    keep_firing_for: int
    labels: Mapping[str, Template]
    annotations: Mapping[str, Template]
    limit: int = 0


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert of a rule. Its labels are who it is. `sent` is when it was last given to the notifier."""

    labels: Labels
    annotations: Mapping[str, str]
    value: float
    state: State
    active_at: int
    fired_at: int | None = None
    resolved_at: int | None = None
    keep_firing_since: int | None = None
    sent: int | None = None


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of state; `before` is None for an alert that is new, `after` None for one that was pending and never fired."""

    at: int
    labels: Labels
    before: State | None
    after: State | None
    value: float
    annotations: Mapping[str, str] = field(default_factory=dict)


Alerts = Mapping[Labels, Alert]


def evaluate(
    rule: AlertRule, results: Iterable[tuple[Labels, float]], at: int, active: Alerts, external: Mapping[str, str]
) -> tuple[dict[Labels, Alert], list[Transition]]:
    """The alerts after an evaluation at `at` whose expression gave `results` (labels, value).

    Raises:
        RuleFailed: two results have one identity, or there are more alerts than the group's limit. In the second case Prometheus forgets all
            of the rule's alerts; that is the caller's (`LimitExceeded`).
    """
    fresh = _fresh(rule, results, at, external)
    after: dict[Labels, Alert] = {}
    transitions: list[Transition] = []
    for own, alert in {**active, **{own: new for own, new in fresh.items() if own not in active}}.items():
        known = active.get(own)
        found = fresh.get(own)
        if found is not None and (known is None or known.state is State.INACTIVE):
            alert, known = found, None
        elif found is not None:
            alert = replace(alert, value=found.value, annotations=found.annotations)
        stepped = _step(rule, alert, found is not None, at)
        if stepped is not None:
            after[own] = stepped
        before, now = known.state if known else None, stepped.state if stepped else None
        if before != now and not (before is State.INACTIVE and now is None):
            transitions.append(Transition(at, own, before, now, alert.value, alert.annotations))
    if rule.limit and sum(alert.state is not State.INACTIVE for alert in after.values()) > rule.limit:
        raise LimitExceeded(f"{len(after)} alerts are more than the group's limit of {rule.limit}")
    return after, transitions


class LimitExceeded(RuleFailed):
    """More alerts than the group allows: the rule has none then."""


def _fresh(rule: AlertRule, results: Iterable[tuple[Labels, float]], at: int, external: Mapping[str, str]) -> dict[Labels, Alert]:
    fresh: dict[Labels, Alert] = {}
    for own, value in results:
        values = dict(own)
        added = ((name, template.expand(values, value, external)) for name, template in rule.labels.items())
        identity = changed(drop_name(own), (*added, (ALERT_NAME, rule.name)))
        if identity in fresh:
            raise RuleFailed("two results have the same labels after the rule's labels are applied")
        annotations = {name: template.expand(values, value, external) for name, template in rule.annotations.items()}
        fresh[identity] = Alert(identity, annotations, value, State.PENDING, at)
    return fresh


def _step(rule: AlertRule, alert: Alert, found: bool, at: int) -> Alert | None:
    """The alert after this evaluation; None when it is forgotten."""
    if not found:
        keep = False
        if alert.state is State.FIRING and rule.keep_firing_for > 0:
            since = at if alert.keep_firing_since is None else alert.keep_firing_since
            alert = replace(alert, keep_firing_since=since)
            keep = at - since < rule.keep_firing_for
        if alert.state is State.PENDING or (alert.resolved_at is not None and at - alert.resolved_at > RESOLVED_RETENTION):
            return None
        if not keep:
            return alert if alert.state is State.INACTIVE else replace(alert, state=State.INACTIVE, resolved_at=at)
    elif alert.keep_firing_since is not None:
        alert = replace(alert, keep_firing_since=None)
    if alert.state is State.PENDING and at - alert.active_at >= rule.wait:
        return replace(alert, state=State.FIRING, fired_at=at)
    return alert


def needs_sending(alert: Alert, at: int) -> bool:
    """Whether the notifier is to hear of it now: newly firing or resolved, or not told for the resend delay."""
    if alert.state is State.PENDING:
        return False
    if alert.sent is None:
        return True
    if alert.resolved_at is not None and alert.resolved_at > alert.sent:
        return True
    return alert.sent + RESEND_DELAY < at


def ends_at(alert: Alert, at: int, interval: int) -> int:
    """The end that Alertmanager is told: when it was resolved, else when it is to be taken for resolved if nobody says more."""
    return alert.resolved_at if alert.resolved_at is not None else at + VALID_FOR_SENDS * max(interval, RESEND_DELAY)


def series(alert: Alert) -> list[tuple[Labels, float]]:
    """What the store keeps of an alert that is pending or firing: ALERTS 1, and ALERTS_FOR_STATE since when (Unix seconds)."""
    return [
        (changed(alert.labels, ((NAME, ALERTS), (ALERT_STATE, alert.state.value))), 1.0),
        (changed(alert.labels, ((NAME, ALERTS_FOR_STATE),)), float(alert.active_at // 1000)),
    ]


def shifted(alert: Alert, by: int) -> Alert:
    """The alert with all its moments moved: after a clock was set, and for the time in which nobody evaluated."""
    return replace(
        alert,
        active_at=alert.active_at + by,
        fired_at=None if alert.fired_at is None else alert.fired_at + by,
        resolved_at=None if alert.resolved_at is None else alert.resolved_at + by,
        keep_firing_since=None if alert.keep_firing_since is None else alert.keep_firing_since + by,
        sent=None if alert.sent is None else alert.sent + by,
    )
