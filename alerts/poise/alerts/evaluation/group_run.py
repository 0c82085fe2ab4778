"""One group of rules over time: each evaluation runs its rules in order, keeps their series and alerts, and says how each rule did.

Follows Prometheus 2.42 (`rules/group.go`, Eval): a rule sees what the rules before it recorded in the same evaluation; a rule that fails keeps its
alerts as they are and writes nothing; a series that a rule gave and gives no more is marked stale. Knows no clock and no thread.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from poise.alerts.evaluation.active import (
    Alert,
    LimitExceeded,
    RuleFailed,
    State,
    Transition,
    ends_at,
    evaluate,
    needs_sending,
    series,
    shifted,
)
from poise.alerts.evaluation.prepared import PreparedGroup, PreparedRule
from poise.alerts.evaluation.restore import given_up, restored
from poise.history.promql.engine import InstantVector, Result, ScalarValue
from poise.history.promql.errors import QueryError
from poise.history.promql.labels import NAME, Labels, changed
from poise.history.promql.nodes import Node

logger = logging.getLogger(__name__)


class Query(Protocol):
    """An expression's value at a moment (Unix seconds); `poise.history.promql.engine.Engine.instant` is the real one."""

    def __call__(self, query: Node, at: float) -> Result: ...


class Keep(Protocol):
    """Takes what one rule gave at a moment (Unix seconds); what it gave before and lacks now is stale. `Store.append` is the real one."""

    def __call__(self, target: str, at: float, samples: Mapping[Labels, float]) -> None: ...


@dataclass(frozen=True, slots=True)
class Health:
    """How a rule did the last time. `at` in milliseconds, None before the first; `error` is empty when it gave a result; `seconds` that it took."""

    at: int | None = None
    error: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ToSend:
    """An alert for the notifier; `ends_at` in milliseconds."""

    alert: Alert
    ends_at: int
    rule: PreparedRule


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an evaluation changed and what is to be told."""

    transitions: tuple[Transition, ...]
    to_send: tuple[ToSend, ...]
    failed: int
    seconds: float


@dataclass(slots=True)
class RuleRun:
    """A rule with what it remembers."""

    rule: PreparedRule
    alerts: Mapping[Labels, Alert] = field(default_factory=dict)
    health: Health = field(default_factory=Health)

    @property
    def state(self) -> State:
        """The worst of its alerts."""
        states = {alert.state for alert in self.alerts.values()}
        return next((state for state in (State.FIRING, State.PENDING) if state in states), State.INACTIVE)


class GroupRun:
    """A group with what its rules remember. `external` labels are for templates; `clock` monotonic seconds."""

    def __init__(self, group: PreparedGroup, external: Mapping[str, str], clock: Callable[[], float]) -> None:
        self.group = group
        self.rules = tuple(RuleRun(rule) for rule in group.rules)
        self.evaluated: int | None = None
        self.restored: int | None = None  # when what an earlier process left was taken over
        self.seconds = 0.0
        self._external = external
        self._clock = clock

    @property
    def known(self) -> int | None:
        """The moment at which its alerts stood as they do."""
        return self.restored if self.evaluated is None else self.evaluated

    def take_over(self, known: Mapping[str, RuleRun], before: GroupRun | None) -> None:
        """Goes on where its rules stood (by their keys) before their files were read anew, and its group if there was one."""
        for run in self.rules:
            if run.rule.key in known:
                run.alerts, run.health = known[run.rule.key].alerts, known[run.rule.key].health
        if before is not None:
            self.evaluated, self.restored = before.evaluated, before.restored

    def end(self, rule: RuleRun, at: int) -> tuple[list[Transition], list[ToSend]]:
        """What is to be remembered and told of the alerts of a rule that is evaluated no more: those that fire are over as of `at`."""
        transitions: list[Transition] = []
        told: list[ToSend] = []
        for own, alert in rule.alerts.items():
            over = None if alert.state is State.PENDING else State.INACTIVE
            if alert.state is not State.INACTIVE:
                transitions.append(Transition(at, own, alert.state, over, alert.value, alert.annotations))
            if alert.state is State.FIRING:
                alert = replace(alert, state=State.INACTIVE, resolved_at=at)
            if over is not None and needs_sending(alert, at):
                told.append(ToSend(replace(alert, sent=at), ends_at(alert, at, self.group.interval), rule.rule))
        return transitions, told

    def target(self, rule: PreparedRule) -> str:
        """Under what name the store keeps apart what a rule gives."""
        return f"rule {self.group.key};{rule.key}"

    def set_back(self, by: int) -> None:
        """The clock was set back by so many milliseconds: what was pending for a minute still is, and slots count from there."""
        self.evaluated = None if self.evaluated is None else self.evaluated - by
        for run in self.rules:
            run.alerts = {own: shifted(alert, -by) for own, alert in run.alerts.items()}

    def resume(self, at: int) -> list[Transition]:
        """Goes on at `at` after an outage; what is to be remembered of alerts that it ended."""
        last, ended = self.known or 0, list[Transition]()
        now = at - self.group.interval  # as if it had been evaluated then: so much waiting counts
        for run in self.rules:
            kept = restored(run.alerts, last, now)
            ended += given_up(run.alerts, kept, last, now)
            run.alerts = kept
        return ended

    def run(self, at: int, query: Query, keep: Keep) -> Outcome:
        """Evaluates all rules as of `at` (milliseconds)."""
        began = self._clock()
        transitions: list[Transition] = []
        for run in self.rules:
            transitions += self._run_rule(run, at, query, keep)
        self.evaluated, self.seconds = at, self._clock() - began
        to_send = [one for run in self.rules for one in self._to_send(run, at)]
        failed = sum(bool(run.health.error) for run in self.rules)
        return Outcome(tuple(transitions), tuple(to_send), failed, self.seconds)

    def _run_rule(self, run: RuleRun, at: int, query: Query, keep: Keep) -> Sequence[Transition]:
        began = self._clock()
        transitions: Sequence[Transition] = ()
        error = run.rule.error
        if run.rule.node is not None:
            try:
                results = _results(query(run.rule.node, (at - self.group.query_offset) / 1000))
                if run.rule.alert is None:
                    samples = _recorded(run.rule, results, self.group.limit)
                else:
                    run.alerts, transitions = evaluate(run.rule.alert, results, at, run.alerts, self._external)
                    samples = {own: value for one in run.alerts.values() if one.state is not State.INACTIVE for own, value in series(one)}
                keep(self.target(run.rule), at / 1000, samples)
            except LimitExceeded as failure:
                error = str(failure)
                transitions = [Transition(at, own, one.state, None, one.value, one.annotations) for own, one in run.alerts.items()]
                run.alerts = {}
            except (RuleFailed, QueryError) as failure:
                error = str(failure)
            except Exception as failure:  # whatever it is, it costs this rule alone: the others are evaluated, and what they find is told
                error = f"{type(failure).__name__}: {failure}"
                if error != run.health.error:
                    logger.exception(
                        "group %s, %s: it gave no result, for a reason that is a fault of Poise", self.group.name, run.rule.rule.title
                    )
        run.health = Health(at, error, self._clock() - began)
        return transitions

    def _to_send(self, run: RuleRun, at: int) -> list[ToSend]:
        sent = {own: replace(alert, sent=at) for own, alert in run.alerts.items() if needs_sending(alert, at)}
        if sent:
            run.alerts = {**run.alerts, **sent}
        return [ToSend(alert, ends_at(alert, at, self.group.interval), run.rule) for alert in sent.values()]


def _results(result: Result) -> list[tuple[Labels, float]]:
    match result:
        case InstantVector():
            return [(sample.labels, sample.value) for sample in result.samples]
        case ScalarValue():
            return [((), result.value)]
    raise RuleFailed(f"a rule takes an instant vector or a number, not a {type(result).__name__}")


def _recorded(rule: PreparedRule, results: Sequence[tuple[Labels, float]], limit: int) -> dict[Labels, float]:
    """What a recording rule gives (`rules/recording.go`)."""
    samples: dict[Labels, float] = {}
    for own, value in results:
        named = changed(own, (*rule.labels.items(), (NAME, rule.rule.name)))
        if named in samples:
            raise RuleFailed("two results have the same labels after the rule's labels are applied")
        samples[named] = value
    if limit and len(samples) > limit:
        raise RuleFailed(f"{len(samples)} series are more than the group's limit of {limit}")
    # A NaN that was computed may by chance have the bits of the stale marker.
    return {own: math.nan if math.isnan(value) else value for own, value in samples.items()}
