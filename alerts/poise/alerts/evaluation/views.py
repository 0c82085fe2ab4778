"""How rules stand, for pages and API: values that never change, made from runs by the one thread that evaluates. Asks the store only what it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from poise.alerts.evaluation.active import Alert, State
from poise.alerts.evaluation.group_run import GroupRun, Health
from poise.alerts.evaluation.inputs import LOOKBACK, Needs, Readiness, needs
from poise.alerts.evaluation.prepared import PreparedGroup, PreparedRule
from poise.history.promql.errors import Unavailable
from poise.history.promql.nodes import Matcher, Node, Selector
from poise.history.promql.series import StoredSeries

#: Ranges longer than the lookback are looked for in the hour that the store has in memory (milliseconds).
_LONGEST_LOOK = 3_600_000
#: Of a selector so many series tell how far apart samples come: those of the first targets.
_SERIES_LOOKED_AT = 20


class Inputs(Protocol):
    """What is asked of the store; `poise.history.store.store.Store` is the real one. Moments in Unix seconds."""

    def names_since(self, at: float) -> frozenset[str]: ...

    def oldest(self) -> float | None: ...

    def select(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[StoredSeries]: ...  # start, end: milliseconds


@dataclass(frozen=True, slots=True)
class RuleView:
    """A rule as it stands now."""

    rule: PreparedRule
    health: Health
    state: State
    alerts: tuple[Alert, ...]
    needs: Needs


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group as it stands; `evaluated` in milliseconds, None before the first time; `seconds` that it took."""

    group: PreparedGroup
    evaluated: int | None
    seconds: float
    rules: tuple[RuleView, ...]


def view(run: GroupRun, lacking: Mapping[str, Needs]) -> GroupView:
    """A group as it stands; `lacking` is what each rule needs, by its key."""
    ready = Needs(Readiness.READY)
    return GroupView(
        run.group,
        run.evaluated,
        run.seconds,
        tuple(RuleView(one.rule, one.health, one.state, tuple(one.alerts.values()), lacking.get(one.rule.key, ready)) for one in run.rules),
    )


def needs_of(rules: Iterable[PreparedRule], store: Inputs, now: int) -> dict[str, Needs]:
    """What each rule lacks at `now` (milliseconds), by its key."""
    rules = tuple(rules)
    oldest = store.oldest()
    there = 0 if oldest is None else max(0, now - round(oldest * 1000))
    recent, hour = (store.names_since((now - back) / 1000) for back in (LOOKBACK, _LONGEST_LOOK))
    recordings: dict[str, Node] = {rule.rule.name: rule.node for rule in rules if rule.alert is None and rule.node is not None}

    def present(name: str, back: int) -> bool:
        return name in (recent if back <= LOOKBACK else hour)

    distances: dict[tuple[Matcher, ...], int | None] = {}

    def apart(selector: Selector) -> int | None:
        key = tuple(selector.matchers)
        if key not in distances:
            distances[key] = _distance(store, key, now)
        return distances[key]

    ready = Needs(Readiness.READY)
    return {rule.key: ready if rule.node is None else needs(rule.node, recordings, present, there, apart) for rule in rules}


def _distance(store: Inputs, matchers: Sequence[Matcher], now: int) -> int | None:
    """How far apart samples come (milliseconds), as of the last minutes; of several targets the one that is scraped most often."""
    try:
        found = store.select(matchers, now - LOOKBACK, now)[:_SERIES_LOOKED_AT]
    except Unavailable:
        return None
    return min((round(float(np.median(np.diff(one.times)))) for one in found if len(one.times) > 2), default=None)
