"""The states of an alert from one evaluation to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.alerts.evaluation.active import (
    RESEND_DELAY,
    RESOLVED_RETENTION,
    Alert,
    AlertRule,
    LimitExceeded,
    RuleFailed,
    State,
    ends_at,
    evaluate,
    needs_sending,
    series,
)
from poise.alerts.evaluation.templates import parse_template
from poise.history.promql.labels import Labels, labels

MINUTE = 60_000
WHO = labels({"instance": "n1", "gpu": "1"})


def rule(wait: int = 0, keep: int = 0, limit: int = 0, **own: str) -> AlertRule:
    return AlertRule(
        "Idle", wait, keep, {name: parse_template(text) for name, text in own.items()}, {"summary": parse_template("{{ $value }}")}, limit
    )


def run(one: AlertRule, results: Iterable[tuple[Labels, float]], at: int, active: Mapping[Labels, Alert]) -> dict[Labels, Alert]:
    return evaluate(one, results, at, active, {})[0]


def trace(one: AlertRule, there: Iterable[bool], step: int = MINUTE) -> list[str]:
    """State after each evaluation: p, f, i or - for none."""
    active: dict[Labels, Alert] = {}
    words = []
    for place, found in enumerate(there):
        active = run(one, [(WHO, 1.0)] if found else [], place * step, active)
        (alert,) = active.values() or (None,)
        words.append("-" if alert is None else alert.state.value[0])
    return words


@pytest.mark.parametrize(
    ("wait", "keep", "there", "states"),
    [
        (0, 0, "1101", "ffif"),
        (2 * MINUTE, 0, "11110", "ppffi"),
        (2 * MINUTE, 0, "110111", "pp-ppf"),
        (0, 2 * MINUTE, "1000", "fffi"),
        (0, 2 * MINUTE, "10010001", "ffffffif"),
        (MINUTE, 0, "11011", "pfipf"),
        (0, 0, "1" + "0" * 18, "f" + "i" * 16 + "--"),
    ],
    ids=[
        "at once",
        "for",
        "one miss begins anew",
        "keep firing",
        "a hit begins keeping anew",
        "fires again after it was resolved",
        "forgotten after a quarter of an hour",
    ],
)
def test_states(wait: int, keep: int, there: str, states: str) -> None:
    assert "".join(trace(rule(wait, keep), [mark == "1" for mark in there])) == states


def test_identity_is_the_labels_with_those_of_the_rule_and_the_name_of_the_alert() -> None:
    (own,) = run(
        rule(severity="critical", where="{{ $labels.gpu }}", gone=""), [(labels({"__name__": "x", "gone": "1", **dict(WHO)}), 1.0)], 0, {}
    )
    assert dict(own) == {"alertname": "Idle", "severity": "critical", "where": "1", **dict(WHO)}


def test_two_results_of_one_identity_fail_the_rule() -> None:
    with pytest.raises(RuleFailed, match="same labels"):
        run(rule(gpu="all"), [(labels({"gpu": "0"}), 1.0), (labels({"gpu": "1"}), 1.0)], 0, {})


def test_more_alerts_than_the_limit_are_none() -> None:
    two = [(labels({"gpu": "0"}), 1.0), (labels({"gpu": "1"}), 1.0)]
    assert len(run(rule(limit=2), two, 0, {})) == 2
    with pytest.raises(LimitExceeded, match="limit of 1"):
        run(rule(limit=1), two, 0, {})


def test_value_and_words_follow_the_newest_result_and_the_start_stays() -> None:
    active = run(rule(), [(WHO, 1.0)], 0, {})
    (alert,) = run(rule(), [(WHO, 2.0)], MINUTE, active).values()
    assert (alert.value, alert.annotations["summary"], alert.active_at, alert.fired_at) == (2.0, "2", 0, 0)


def test_changes_of_state_are_told_once() -> None:
    told = []
    active: dict[Labels, Alert] = {}
    for place, found in enumerate([1, 1, 1, 0, 0, 1, 0]):
        active, changes = evaluate(rule(wait=2 * MINUTE), [(WHO, 1.0)] * found, place * MINUTE, active, {})
        told += [(change.at // MINUTE, change.before, change.after) for change in changes]
    assert told == [
        (0, None, State.PENDING),
        (2, State.PENDING, State.FIRING),
        (3, State.FIRING, State.INACTIVE),
        (5, None, State.PENDING),
        (6, State.PENDING, None),
    ]


def test_sending_begins_with_firing_goes_on_each_minute_and_tells_the_end_at_once() -> None:
    one = Alert(WHO, {}, 1.0, State.PENDING, 0)
    assert not needs_sending(one, 0)
    fired = Alert(WHO, {}, 1.0, State.FIRING, 0, fired_at=0)
    assert needs_sending(fired, 0)
    sent = Alert(WHO, {}, 1.0, State.FIRING, 0, fired_at=0, sent=0)
    assert not needs_sending(sent, RESEND_DELAY)
    assert needs_sending(sent, RESEND_DELAY + 1)
    over = Alert(WHO, {}, 1.0, State.INACTIVE, 0, fired_at=0, sent=0, resolved_at=1000)
    assert needs_sending(over, 1000)
    assert ends_at(over, 1000, 15_000) == 1000
    assert ends_at(sent, 0, 15_000) == 4 * RESEND_DELAY
    assert ends_at(sent, 0, 5 * MINUTE) == 20 * MINUTE


def test_the_store_keeps_state_and_start() -> None:
    (alert,) = run(rule(wait=MINUTE), [(WHO, 1.0)], 90_000, {}).values()
    (state, one), (since, start) = series(alert)
    assert (dict(state)["__name__"], dict(state)["alertstate"], one) == ("ALERTS", "pending", 1.0)
    assert (dict(since)["__name__"], start) == ("ALERTS_FOR_STATE", 90.0)


@given(st.lists(st.booleans(), max_size=60), st.integers(0, 5), st.integers(0, 5))
def test_whatever_comes_an_alert_fires_only_after_its_wait_and_ends(there: list[bool], wait: int, keep: int) -> None:
    states = trace(rule(wait * MINUTE, keep * MINUTE), [*there, *[False] * (keep + RESOLVED_RETENTION // MINUTE + 3)])
    assert states[-1] == "-"
    run_length = 0
    for place, found in enumerate(there):
        run_length = run_length + 1 if found else 0
        if states[place] == "f" and (place == 0 or states[place - 1] != "f"):
            assert run_length >= wait + 1
        if run_length >= wait + 1:
            assert states[place] == "f"
