"""What an alert that was remembered is worth after a time in which nobody evaluated. Values in, values out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from poise.alerts.evaluation.active import RESOLVED_RETENTION, Alert, State, Transition, shifted
from poise.history.promql.labels import Labels

#: An outage longer than this makes what was known worthless (Prometheus' --rules.alert.for-outage-tolerance).
OUTAGE_TOLERANCE = 3_600_000


def restored(alerts: Mapping[Labels, Alert], evaluated: int, now: int) -> dict[Labels, Alert]:
    """The alerts to begin with at `now` when the last evaluation was at `evaluated` (milliseconds).

    The outage does not count as waiting: an alert that was pending for 3 minutes is pending for 3 minutes. One that was firing fires on, under
    the same start, and what keeps it firing without a result does not run out over the outage. Unlike Prometheus (`RestoreForState`) this holds
    for rules with a `for` below ten minutes as well, and `keep_firing_for` is not lost. A clock that says it is
    earlier than then was set back: nobody knows how long the outage was, all moments move with the clock, and it counts as none.
    """
    outage = now - evaluated
    if outage < 0:
        alerts = {own: shifted(alert, outage) for own, alert in alerts.items()}
        outage = 0
    if outage > OUTAGE_TOLERANCE:
        return {}
    kept = {}
    for own, alert in alerts.items():
        match alert.state:
            case State.PENDING:
                kept[own] = replace(alert, active_at=alert.active_at + outage)
            case State.FIRING:
                since = alert.keep_firing_since
                kept[own] = replace(alert, keep_firing_since=None if since is None else since + outage)
            case State.INACTIVE:
                if alert.resolved_at is not None and now - alert.resolved_at <= RESOLVED_RETENTION:
                    kept[own] = alert
    return kept


def given_up(alerts: Mapping[Labels, Alert], kept: Mapping[Labels, Alert], evaluated: int, now: int) -> list[Transition]:
    """What is to be remembered of the alerts that are not among those kept after an outage: they ended with the last evaluation."""
    return [
        Transition(min(evaluated, now), own, one.state, None, one.value, one.annotations)
        for own, one in alerts.items()
        if own not in kept and one.state is not State.INACTIVE
    ]
