"""What the rules make of constructed series, by our own engine: when each alert fires, for a whole hour at once.

    outcome = evaluate(scene.series(), minutes=60)
    outcome.firing["EngineDown"]      # identity → [(first, last) second of firing]

Every recording rule becomes series that the next reads, in order of who reads whom; states follow Prometheus (`rules/alerting.go`: `for`,
`keep_firing_for`). Two results with one identity, and matches that are ambiguous, fail the evaluation as they fail Prometheus' rule. Knows no
rule and no scene.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from poise.alerts import shipped
from poise.alerts.expressions import parse, selected_names
from poise.alerts.rules import Rule, load
from poise.history.promql.compile import compile_query
from poise.history.promql.engine import Engine, Samples
from poise.history.promql.errors import QueryError
from poise.history.promql.evaluate import Semantics, Settings
from poise.history.promql.labels import Labels, changed, drop_name
from poise.history.promql.nodes import Node
from poise.history.promql.series import STALE, MemoryStorage, StoredSeries

Span = tuple[float, float]


@dataclass(frozen=True)
class Outcome:
    """Alert → identity (labels with those that the rule adds) → spans of firing in seconds; `first_step` is the evaluations' distance."""

    firing: Mapping[str, Mapping[Labels, Sequence[Span]]]
    pending: Mapping[str, Sequence[float]]
    values: Mapping[tuple[str, Labels], Mapping[float, float]]

    def names(self, *, but: Iterable[str] = ("Watchdog",)) -> set[str]:
        """The alerts that fired at any time."""
        return {name for name, alerts in self.firing.items() if alerts} - set(but)

    def first(self, alert: str) -> float:
        """When the alert fired for the first time. Fails when it never did."""
        assert self.firing.get(alert), f"{alert} never fired; what did: {sorted(self.names())}"
        return min(span[0] for spans in self.firing[alert].values() for span in spans)

    def last(self, alert: str) -> float:
        """The last evaluation at which it fired."""
        assert self.firing.get(alert), f"{alert} never fired; what did: {sorted(self.names())}"
        return max(span[1] for spans in self.firing[alert].values() for span in spans)

    def identities(self, alert: str) -> list[dict[str, str]]:
        """The label sets with which it fired."""
        return [dict(own) for own in self.firing.get(alert, {})]

    def at(self, alert: str, moment: float) -> list[dict[str, str]]:
        """The label sets that fire at a moment."""
        spans = self.firing.get(alert, {})
        return [dict(own) for own, stretches in spans.items() if any(first <= moment <= last for first, last in stretches)]


@functools.cache
def shipped_rules(*files: str) -> tuple[Rule, ...]:
    """The rules of these files ("engine", "recording", …; all when none is named), recordings first, each behind those that it reads."""
    return in_order([rule for path in shipped.rule_files() if not files or path.stem in files for rule in load(path).rules])


@functools.cache
def rules_for(alerts: frozenset[str]) -> tuple[Rule, ...]:
    """The shipped rules of these alerts and what they read, at any remove."""
    everything, wanted = shipped_rules(), set(alerts)
    while True:
        kept = tuple(rule for rule in everything if rule.name in wanted)
        read = set().union(*(_read(rule.expr) for rule in kept)) if kept else set()
        if read <= wanted:
            return kept
        wanted |= read


def in_order(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Recordings behind what they read, alerts last."""
    waiting = [rule for rule in rules if not rule.alert]
    ordered: list[Rule] = []
    while waiting:
        names = {rule.name for rule in waiting}
        ready = [rule for rule in waiting if not (_read(rule.expr) & names) - {rule.name}]
        assert ready, f"recordings that read one another: {sorted(names)}"
        ordered += ready
        waiting = [rule for rule in waiting if rule not in ready]
    return (*ordered, *(rule for rule in rules if rule.alert))


@functools.cache
def _read(expr: str) -> frozenset[str]:
    return selected_names(parse(expr))


@functools.cache
def _compiled(expr: str) -> Node:
    return compile_query(expr)


def evaluate(
    series: Sequence[StoredSeries],
    *,
    minutes: float = 60.0,
    step: float = 15.0,
    start: float = 0.0,
    rules: Sequence[Rule] | None = None,
    semantics: Semantics = Semantics.PROMETHEUS_3,
) -> Outcome:
    """The rules (the shipped ones by default), evaluated every `step` seconds from `start` on. Fails when an evaluation fails."""
    stored = list(series)
    end = minutes * 60
    firing: dict[str, dict[Labels, list[Span]]] = {}
    pending: dict[str, list[float]] = {}
    values: dict[tuple[str, Labels], dict[float, float]] = {}
    for rule in rules if rules is not None else shipped_rules():
        wanted = _read(rule.expr)
        storage = MemoryStorage([one for one in stored if dict(one.labels)["__name__"] in wanted])
        try:
            rows = Engine(storage, Settings(semantics=semantics)).range(_compiled(rule.expr), start, end, step).series
        except QueryError as error:
            raise AssertionError(f"{rule.title} fails: {error}") from error
        identities = [changed(drop_name(row.labels), rule.labels.items()) for row in rows]
        twice = {own for own in identities if identities.count(own) > 1}
        assert not twice, f"{rule.title} yields two results with one identity: {twice}"
        if rule.alert:
            alerts = firing.setdefault(rule.name, {})
            for own, row in zip(identities, rows, strict=True):
                moments = [moment / 1000 for moment in row.times.tolist()]
                spans = _spans(moments, rule, start, end, step)
                values[rule.name, own] = dict(zip(moments, row.values.tolist(), strict=True))
                pending.setdefault(rule.name, []).extend(moments)
                if spans:
                    assert own not in alerts, f"{rule.title}: two rules fire with one identity: {own}"
                    alerts[own] = spans
        else:
            stored += [_recorded(rule.name, own, row, end, step) for own, row in zip(identities, rows, strict=True)]
    return Outcome(firing, pending, values)


def _recorded(name: str, own: Labels, row: Samples, end: float, step: float) -> StoredSeries:
    """A recording's results as series, marked stale at the first evaluation without a result."""
    width = round(step * 1000)
    times, values = [], []
    moments = row.times.tolist()
    for index, (moment, value) in enumerate(zip(moments, row.values.tolist(), strict=True)):
        times.append(moment)
        values.append(value)
        following = moments[index + 1] if index + 1 < len(moments) else None
        if following != moment + width and moment + width <= end * 1000:
            times.append(moment + width)
            values.append(STALE)
    return StoredSeries(changed(own, [("__name__", name)]), np.array(times, dtype=np.int64), np.array(values))


def _spans(moments: Sequence[float], rule: Rule, start: float, end: float, step: float) -> list[Span]:
    """When the alert fires, given the moments at which its expression has a result."""
    present, spans = set(moments), []
    since: float | None = None
    missing: float | None = None
    fires, first, moment = False, 0.0, start
    while moment <= end:
        if moment in present:
            since, missing = moment if since is None else since, None
            if not fires and moment - since >= rule.wait:
                fires, first = True, moment
        elif fires:
            missing = moment if missing is None else missing
            if moment - missing >= rule.keep_firing_for:
                spans.append((first, moment - step))
                fires, since, missing = False, None, None
        else:
            since = None
        moment += step
    return [*spans, (first, moment - step)] if fires else spans
