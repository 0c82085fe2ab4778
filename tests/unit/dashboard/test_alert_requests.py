"""What a silence and an acknowledgement may ask for; whatever else comes is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from poise.alerts.notification.alertmanager import Matcher
from poise.dashboard import alert_requests
from poise.dashboard.alert_requests import NOBODY, AcknowledgementWish, SilenceWish, Wish
from poise.dashboard.changes import Refusal

LABELS = {"alertname": "Busy", "gpu": "1"}


def test_an_alerts_labels_become_matchers_of_a_silence() -> None:
    wanted = alert_requests.silence({"labels": LABELS, "comment": " new card on Monday \n", "by": "ann", "duration": "1d12h"})
    assert wanted == SilenceWish((Matcher("alertname", "Busy"), Matcher("gpu", "1")), True, Wish("new card on Monday", "ann", 129_600.0))


def test_matchers_are_taken_as_they_are_and_two_hours_are_meant() -> None:
    given_ = [{"name": "gpu", "value": "0|1", "is_regex": True}, {"name": "node", "value": "", "is_equal": False}]
    wanted = alert_requests.silence({"matchers": given_, "comment": "c"})
    assert wanted == SilenceWish(
        (Matcher("gpu", "0|1", is_regex=True), Matcher("node", "", is_equal=False)), False, Wish("c", NOBODY, 7200.0)
    )


def test_an_acknowledgement_is_of_one_alert() -> None:
    assert alert_requests.acknowledgement({"labels": LABELS, "comment": "c", "duration": "1m"}) == AcknowledgementWish(
        tuple(LABELS.items()), Wish("c", NOBODY, 60.0)
    )


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"comment": ""}, "comment"),
        ({"comment": " \n\t "}, "comment"),
        ({"comment": None}, "comment"),
        ({"comment": 5}, "comment"),
        ({"comment": "x" * 1001}, "comment"),
        ({"comment": "\x1b[2J"}, "comment"),
        ({"comment": "half \ud800"}, "comment"),
        ({"comment": "\x9b2J"}, "comment"),
        ({"by": "x" * 101}, "by"),
        ({"by": []}, "by"),
        ({"duration": "0"}, "duration"),
        ({"duration": "59s"}, "duration"),
        ({"duration": "31d"}, "duration"),
        ({"duration": "for ever"}, "duration"),
        ({"duration": "9" * 5000 + "d"}, "duration"),
        ({"duration": "9" * 90 + "d"}, "duration"),
        ({"duration": 7200}, "duration"),
        ({"duration": float("nan")}, "duration"),
        ({"labels": {}}, "labels"),
        ({"labels": []}, "labels"),
        ({"labels": None}, "labels"),
        ({"labels": {"a b": "1"}}, "labels"),
        ({"labels": {"é": "1"}}, "labels"),
        ({"labels": {"a\n": "1"}}, "labels"),
        ({"labels": {"gpu": ""}}, "labels.gpu"),
        ({"labels": {"gpu": 1}}, "labels.gpu"),
        ({"labels": {"gpu": "x" * 2001}}, "labels.gpu"),
        ({"labels": {f"l{number}": "1" for number in range(51)}}, "labels"),
        ({"matchers": []}, "labels"),
        ({"until": 5}, '"until"'),
    ],
)
def test_every_fault_names_its_field_and_a_way_out(change: dict[str, Any], field: str) -> None:
    for read in (alert_requests.silence, alert_requests.acknowledgement):
        if read is alert_requests.acknowledgement and "matchers" in change:
            continue
        with pytest.raises(Refusal) as refusal:
            read({"labels": LABELS, "comment": "c", **change})
        assert (refusal.value.status, refusal.value.field) == (400, field)
        assert refusal.value.way_out
        refusal.value.answer()


@pytest.mark.parametrize(
    ("matchers", "field"),
    [
        ([], "matchers"),
        ({}, "matchers"),
        ([{"name": "a", "value": "b"}] * 51, "matchers"),
        (["a=b"], "matchers[0]"),
        ([{"name": "a", "value": "b"}, {"name": "a"}], "matchers[1].value"),
        ([{"name": "", "value": "b"}], "matchers[0].name"),
        ([{"name": "a", "value": "b", "isRegex": True}], 'matchers[0]."isRegex"'),
        ([{"name": "a", "value": "b", "is_regex": 1}], "matchers[0].is_regex"),
    ],
)
def test_every_fault_of_a_matcher_names_its_place(matchers: Any, field: str) -> None:
    with pytest.raises(Refusal) as refusal:
        alert_requests.silence({"matchers": matchers, "comment": "c"})
    assert refusal.value.field == field


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["name", "value", "is_regex", "a"]) | st.text(), inner, max_size=4)
    ),
    max_leaves=8,
)
FIELDS = st.sampled_from(["labels", "matchers", "comment", "duration", "by"]) | st.text(max_size=5)


@given(st.dictionaries(FIELDS, JSON, max_size=6))
@settings(max_examples=40, deadline=None)
def test_whatever_comes_is_a_wish_or_a_refusal_that_can_be_answered(document: dict[str, Any]) -> None:
    for read in (alert_requests.silence, alert_requests.acknowledgement):
        try:
            wanted = read(document).wish
        except Refusal as refusal:
            answer = refusal.answer()
        else:
            answer = Refusal(400, "e", "w", "wish", wanted.comment).answer()
            assert 60 <= wanted.seconds <= 30 * 86_400
        assert answer.status_code == 400
