"""A group over time: what rules see of each other, what a failing rule costs, what is kept and told."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from poise.alerts.evaluation.active import State
from poise.alerts.evaluation.group_run import GroupRun
from poise.alerts.evaluation.prepared import PreparedGroup, prepare
from poise.alerts.rules import parse_rules
from poise.history.promql.engine import Engine
from poise.history.promql.labels import Labels, labels

from tests.rule_replay import ReplayStore

MINUTE = 60_000


def groups(text: str) -> tuple[PreparedGroup, ...]:
    return prepare([parse_rules(text, "rules.yml")], 60.0)


def one_group(*rules: str, head: str = "") -> GroupRun:
    return GroupRun(groups(f"groups: [{{name: g, {head} rules: [{', '.join(rules)}]}}]")[0], {}, lambda: 0.0)


class Node:
    """A store with one series `load`, and a group over it."""

    def __init__(self, run: GroupRun) -> None:
        self.store = ReplayStore()
        self.engine = Engine(self.store)
        self.run = run

    def at(self, minute: int, **values: float) -> None:
        self.store.append("node", minute * 60, {labels({"__name__": "load", "gpu": gpu}): value for gpu, value in values.items()})
        self.outcome = self.run.run(minute * MINUTE, self.engine.instant, self.store.append)

    def now(self, name: str, minute: int) -> Mapping[Labels, float]:
        result = self.engine.instant(name, minute * 60)
        return {sample.labels: sample.value for sample in result.samples}  # type: ignore[union-attr]  # a selector gives a vector

    @property
    def errors(self) -> list[str]:
        return [run.health.error for run in self.run.rules]


def test_a_rule_sees_what_the_rules_before_it_recorded_in_the_same_evaluation() -> None:
    node = Node(one_group("{record: 'a:load:max', expr: max(load), labels: {kind: k}}", "{alert: Busy, expr: 'a:load:max > 0.5'}"))
    node.at(0, g0=0.9, g1=0.1)
    assert node.now("a:load:max", 0) == {labels({"__name__": "a:load:max", "kind": "k"}): 0.9}
    assert node.run.rules[1].state is State.FIRING
    assert list(node.now("ALERTS", 0).values()) == [1.0]


def test_what_a_rule_gives_no_more_is_stale_at_once() -> None:
    node = Node(one_group("{record: 'a:load:high', expr: load > 0.5}", "{alert: Busy, expr: load > 0.5, for: 1m}"))
    node.at(0, g0=0.9)
    assert node.now("a:load:high", 0)
    node.at(1, g0=0.9)
    states = [dict(own)["alertstate"] for own in node.now("ALERTS", 1)]
    assert states == ["firing"]
    node.at(2, g0=0.1)
    assert node.now("a:load:high", 2) == {}
    assert node.now("ALERTS", 2) == {}
    assert node.now("ALERTS_FOR_STATE", 2) == {}


def test_a_failing_rule_keeps_its_alerts_says_why_and_costs_no_other_rule() -> None:
    node = Node(one_group("{alert: Busy, expr: load * on () load > 1}", "{alert: Other, expr: load > 0.5}"))
    node.at(0, g0=3.0)
    node.at(1, g0=3.0, g1=3.0)
    assert "many" in node.errors[0]
    assert node.errors[1] == ""
    assert [run.state for run in node.run.rules] == [State.FIRING, State.FIRING]
    assert node.outcome.failed == 1


def test_a_rule_that_the_engine_does_not_have_stands_with_its_reason() -> None:
    node = Node(one_group("{alert: Forecast, expr: 'predict_linear(load[5m], 60) > 1'}", "{alert: Busy, expr: load > 0.5}"))
    node.at(0, g0=0.9)
    assert "predict_linear" in node.errors[0]
    assert node.run.rules[1].state is State.FIRING


def test_a_template_that_is_not_understood_stands_with_its_reason() -> None:
    node = Node(one_group("{alert: Busy, expr: load > 0.5, annotations: {summary: '{{ if $value }}x{{ end }}'}}"))
    assert "annotation summary" in node.run.group.rules[0].error
    node.at(0, g0=0.9)
    assert "'if' is not supported" in node.errors[0]


def test_a_limit_takes_all_alerts_of_the_rule_away() -> None:
    node = Node(one_group("{alert: Busy, expr: load > 0.5}", head="limit: 1,"))
    node.at(0, g0=0.9)
    assert len(node.run.rules[0].alerts) == 1
    node.at(1, g0=0.9, g1=0.9)
    assert node.run.rules[0].alerts == {}
    assert "limit of 1" in node.errors[0]
    assert [(change.before, change.after) for change in node.outcome.transitions] == [(State.FIRING, None)]


def test_two_recorded_series_of_one_identity_fail_the_rule() -> None:
    node = Node(one_group("{record: 'a:load:x', expr: load, labels: {gpu: all}}"))
    node.at(0, g0=0.9, g1=0.9)
    assert "same labels" in node.errors[0]


def test_a_number_is_a_result_without_labels() -> None:
    node = Node(one_group("{alert: Watchdog, expr: 'vector(1)'}", "{alert: Always, expr: '1'}", "{record: 'a:b:c', expr: '0 / 0'}"))
    node.at(0)
    assert [run.state for run in node.run.rules[:2]] == [State.FIRING, State.FIRING]
    (value,) = node.now("a:b:c", 0).values()
    assert math.isnan(value)


def test_an_alert_is_told_when_it_fires_again_after_a_minute_and_when_it_ends() -> None:
    node = Node(one_group("{alert: Busy, expr: load > 0.5}", head="interval: 30s,"))
    told = []
    for minute, value in enumerate([0.9, 0.9, 0.9, 0.1, 0.1]):
        node.at(minute, g0=value)
        told.append([(one.alert.state.value, one.ends_at // MINUTE) for one in node.outcome.to_send])
    assert told == [[("firing", 4)], [], [("firing", 6)], [("inactive", 3)], []]


def test_rules_that_are_read_anew_go_on_where_they_stood() -> None:
    text = "groups: [{name: g, rules: [{alert: Busy, expr: load > 0.5, for: 2m}, {alert: Gone, expr: load > 0.5}]}]"
    node = Node(GroupRun(groups(text)[0], {}, lambda: 0.0))
    node.at(0, g0=0.9)
    changed = GroupRun(groups(text.replace("load > 0.5, for", "load > 0.6, for").replace("Gone", "New"))[0], {}, lambda: 0.0)
    changed.take_over({run.rule.key: run for run in node.run.rules}, node.run)
    node.run = changed
    assert [run.state for run in changed.rules] == [State.PENDING, State.INACTIVE]
    node.at(2, g0=0.9)
    assert [run.state for run in changed.rules] == [State.FIRING, State.FIRING]


def test_a_clock_that_is_set_back_neither_hurries_nor_delays_what_is_pending() -> None:
    node = Node(one_group("{alert: Busy, expr: load > 0.5, for: 3m}"))
    node.at(100, g0=0.9)
    node.at(101, g0=0.9)
    node.store = ReplayStore()
    node.engine = Engine(node.store)
    node.run.set_back(91 * MINUTE)
    node.at(11, g0=0.9)
    states = [node.run.rules[0].state]
    node.at(12, g0=0.9)
    states.append(node.run.rules[0].state)
    assert states == [State.PENDING, State.FIRING]


@pytest.mark.parametrize("name", ["Busy", "Idle"])
def test_rules_of_one_name_and_the_same_labels_are_kept_apart_by_their_place(name: str) -> None:
    (group,) = groups(f"groups: [{{name: g, rules: [{{alert: {name}, expr: up}}, {{alert: {name}, expr: down}}]}}]")
    assert len({rule.key for rule in group.rules}) == 2
