"""Runs promtool's rule tests (`promtool test rules`) through the built-in evaluator: the same files, the same notation, the same moments.

What promtool does is in cmd/promtool/unittest.go and promql/parser (series descriptions) of Prometheus 2.42.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import promql_parser as promql
import yaml
from poise.alerts.evaluation.active import ALERT_NAME, State
from poise.alerts.evaluation.group_run import GroupRun
from poise.alerts.evaluation.prepared import PreparedGroup, prepare
from poise.alerts.expressions import selected_names
from poise.alerts.rules import load
from poise.history.durations import parse_duration
from poise.history.promql.engine import Engine, InstantVector, ScalarValue
from poise.history.promql.evaluate import Settings
from poise.history.promql.labels import NAME, Labels, labels, without
from poise.history.promql.nodes import Matcher
from poise.history.promql.series import STALE, StoredSeries
from poise.history.store.head import Head, stored

_STEP = re.compile(
    r"(?:(?P<first>[-+]?[\d.eE]+(?:[eE][-+]?\d+)?|_|stale|NaN|[-+]?Inf)(?P<delta>[-+][\d.]+(?:[eE][-+]?\d+)?)?(?:x(?P<times>\d+))?)"
)


def expand(notation: str) -> list[float | None]:
    """The values of a series in promtool's notation, None for a missing one: `1+2x3`, `5x2`, `_x4`, `stale`."""
    values: list[float | None] = []
    for word in notation.split():
        match = _STEP.fullmatch(word)
        if match is None:
            raise ValueError(f"{word!r} in {notation!r} is no value of a series")
        first, delta, times = match["first"], match["delta"], match["times"]
        if first == "_":
            values += [None] * int(times or 1)
        elif first == "stale":
            values += [STALE] * (int(times or 0) + 1)
        else:
            values += [float(first) + float(delta or 0) * step for step in range(int(times or 0) + 1)]
    return values


def series_of(text: str) -> Labels:
    """The labels of `name{label="value"}`."""
    selector = promql.parse(text)
    assert isinstance(selector, promql.VectorSelector)
    own = {matcher.name: matcher.value for matcher in selector.matchers.matchers}
    return labels({**own, **({NAME: selector.name} if selector.name else {})})


@dataclass(slots=True)
class ReplayStore:
    """Everything in memory, for ever; what rules give is appended while it runs."""

    head: Head = field(default_factory=lambda: Head(0))
    _given: dict[str, set[Labels]] = field(default_factory=dict)

    def add(self, own: Labels, times: Sequence[int], values: Sequence[float]) -> None:
        record = self.head.add(own)
        record.times.extend(times)
        record.values.extend(values)

    def append(self, target: str, at: float, samples: Mapping[Labels, float]) -> None:
        moment = round(at * 1000)
        for own, value in samples.items():
            self.add(own, [moment], [value])
        for gone in self._given.get(target, set()) - set(samples):
            self.add(gone, [moment], [STALE])
        self._given[target] = set(samples)

    def select(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[StoredSeries]:
        found = (stored(record, [record.between(start, end)]) for record in self.head.matching(matchers))
        return [one for one in found if one is not None]


@dataclass(frozen=True, slots=True)
class Difference:
    """What a test file expects and the evaluator says otherwise."""

    test: str
    at: str
    what: str
    expected: object
    got: object


def replay(
    path: Path, settings: Settings | None = None, *, only_needed: bool = True, most_tests: int | None = None
) -> Iterator[Difference]:
    """Runs a test file, or its first `most_tests` tests; every expectation that is not met. `only_needed` leaves out rules that no tested alert
    or query reads."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    interval = parse_duration(str(document.get("evaluation_interval", "1m")))
    files = [load(found) for pattern in document["rule_files"] for found in sorted(path.parent.glob(pattern))]
    groups = {group.name: group for group in prepare(files, interval)}
    order = [name for name in document.get("group_eval_order", []) if name in groups]
    ordered = [groups[name] for name in [*order, *(name for name in groups if name not in order)]]
    for test in document["tests"][:most_tests]:
        yield from _replay_one(test, ordered, round(interval * 1000), settings or Settings(), only_needed)


def _replay_one(
    test: Mapping[str, object], groups: Sequence[PreparedGroup], step: int, settings: Settings, only_needed: bool
) -> Iterator[Difference]:
    name = str(test.get("name", ""))
    store = ReplayStore()
    width = round(parse_duration(str(test.get("interval", "1m"))) * 1000)
    for one in _list(test, "input_series"):
        pairs = [(place * width, value) for place, value in enumerate(expand(str(one["values"]))) if value is not None]
        store.add(series_of(str(one["series"])), [at for at, _ in pairs], [value for _, value in pairs])
    alert_tests = _list(test, "alert_rule_test")
    query_tests = _list(test, "promql_expr_test")
    wanted = {str(one["alertname"]) for one in alert_tests}
    for one in query_tests:
        wanted |= selected_names(promql.parse(str(one["expr"])))
    runs = [GroupRun(group, {}, lambda: 0.0) for group in (_needed(groups, wanted) if only_needed else groups)]
    engine = Engine(store, settings)
    alert_times = sorted({round(parse_duration(str(one["eval_time"])) * 1000) for one in alert_tests})
    last = max((*alert_times, *(round(parse_duration(str(one["eval_time"])) * 1000) for one in query_tests)), default=0)
    at = 0
    while at <= last:
        for run in runs:
            run.run(at, engine.instant, store.append)
            for rule in run.rules:
                if rule.health.error:
                    yield Difference(name, f"{at / 1000:g}s", rule.rule.rule.title, "no error", rule.health.error)
        for one in alert_tests:
            if at <= round(parse_duration(str(one["eval_time"])) * 1000) < at + step:
                yield from _compare_alerts(name, one, runs)
        at += step
    for one in query_tests:
        yield from _compare_query(name, one, engine)


def _compare_alerts(test: str, one: Mapping[str, object], runs: Sequence[GroupRun]) -> Iterator[Difference]:
    alert_name = str(one["alertname"])
    got = [
        (dict(without(alert.labels, (ALERT_NAME,))), dict(alert.annotations))
        for run in runs
        for rule in run.rules
        if rule.rule.alert is not None and rule.rule.rule.name == alert_name
        for alert in rule.alerts.values()
        if alert.state is State.FIRING
    ]
    expected = [(_texts(each, "exp_labels"), _texts(each, "exp_annotations")) for each in _list(one, "exp_alerts")]
    if sorted(map(repr, _sorted(got))) != sorted(map(repr, _sorted(expected))):
        yield Difference(test, str(one["eval_time"]), alert_name, expected, got)


def _sorted(alerts: Sequence[tuple[Mapping[str, str], Mapping[str, str]]]) -> list[object]:
    return [(sorted(own.items()), sorted(words.items())) for own, words in alerts]


def _compare_query(test: str, one: Mapping[str, object], engine: Engine) -> Iterator[Difference]:
    result = engine.instant(str(one["expr"]), parse_duration(str(one["eval_time"])))
    got: dict[Labels, float] = {}
    if isinstance(result, InstantVector):
        got = {sample.labels: sample.value for sample in result.samples}
    elif isinstance(result, ScalarValue):
        got = {(): result.value}
    expected: dict[Labels, float] = {
        () if str(each["labels"]).strip() in ("", "{}") else series_of(str(each["labels"])): float(str(each["value"]))
        for each in _list(one, "exp_samples")
    }
    near = got.keys() == expected.keys() and all(
        np.isclose(got[own], value, rtol=1e-9, atol=1e-12, equal_nan=True) for own, value in expected.items()
    )
    if not near:
        yield Difference(test, str(one["eval_time"]), str(one["expr"]), expected, got)


def _needed(groups: Sequence[PreparedGroup], wanted: set[str]) -> list[PreparedGroup]:
    """The groups with those rules alone that the wanted names come from, directly or not."""
    rules = [rule for group in groups for rule in group.rules]
    names, grown = set(wanted), True
    while grown:
        found = {name for rule in rules if rule.rule.name in names for name in selected_names(promql.parse(rule.rule.expr))}
        # ALERTS is written by every alert: what reads it needs them all.
        found |= {rule.rule.name for rule in rules if rule.alert is not None} if found & {"ALERTS", "ALERTS_FOR_STATE"} else set()
        grown = not found <= names
        names |= found
    kept = []
    for group in groups:
        chosen = tuple(rule for rule in group.rules if rule.rule.name in names)
        if chosen:
            kept.append(PreparedGroup(group.file, group.name, group.interval, group.query_offset, group.limit, chosen))
    return kept


def _list(of: Mapping[str, object], name: str) -> list[Mapping[str, object]]:
    value = of.get(name)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _texts(of: Mapping[str, object], name: str) -> dict[str, str]:
    value = of.get(name)
    return {str(key): str(text) for key, text in value.items()} if isinstance(value, dict) else {}
