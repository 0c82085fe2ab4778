"""The built-in evaluator: reads rule files, runs each group at its slots over the store, remembers, and hands alerts to whoever sends them.

    rule files ─► groups ─► (slot) query ─► series and ALERTS to the store, changes to the memory, alerts to the notifier

One thread runs it; others may ask for `view`. The order of things is here; what a rule does is in active.py, a group in group_run.py, moments in
schedule.py. Knows no network and no page.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from poise.alerts.evaluation import schedule
from poise.alerts.evaluation.active import Alert, State, Transition
from poise.alerts.evaluation.group_run import GroupRun, Health, Query, ToSend
from poise.alerts.evaluation.inputs import LOOKBACK, Needs, Readiness, needs
from poise.alerts.evaluation.memory import Key, Memory
from poise.alerts.evaluation.prepared import PreparedGroup, PreparedRule, prepare
from poise.alerts.evaluation.restore import restored
from poise.alerts.rules import RuleFile
from poise.history.promql.labels import Labels
from poise.history.promql.nodes import Node

logger = logging.getLogger(__name__)

#: Seconds between two evaluations of a group that names no interval; the exporter's page is scraped every 5.
DEFAULT_INTERVAL = 15.0
#: Seconds after the start in which nothing is evaluated: before the first scrapes have come, everything that was pending would seem to be over.
SETTLE = 10.0
#: What rules lack changes slowly; it is looked at anew after so many milliseconds.
_NEEDS_EACH = 60_000
#: Ranges longer than the lookback are looked for in the hour that the store has in memory.
_LONGEST_LOOK = 3_600_000


class Store(Protocol):
    """What the evaluator needs of the store; `poise.history.store.store.Store` is the real one. Moments in Unix seconds."""

    def append(self, target: str, at: float, samples: Mapping[Labels, float]) -> None: ...

    def forget_target(self, target: str, at: float) -> None: ...

    def names_since(self, at: float) -> frozenset[str]: ...

    def oldest(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class RuleView:
    """A rule as it stands now, for pages and API."""

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


@dataclass(frozen=True, slots=True)
class Counts:
    """What the evaluator did since it began."""

    evaluations: int = 0
    failures: int = 0
    missed: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Evaluator:
    """Rules over a store. `read` gives the files; `deliver` takes what is to be sent; `wall` Unix seconds, `clock` monotonic ones; `heed` is told of
    every change of state once it is remembered."""

    read: Callable[[], Sequence[RuleFile]]
    query: Query
    store: Store
    memory: Memory
    deliver: Callable[[Sequence[ToSend]], None]
    wall: Callable[[], float]
    clock: Callable[[], float]
    interval: float = DEFAULT_INTERVAL
    external: Mapping[str, str] = field(default_factory=dict)
    heed: Callable[[Sequence[Transition]], None] = lambda _: None
    _runs: dict[str, GroupRun] = field(default_factory=dict, init=False)
    _needs: dict[str, Needs] = field(default_factory=dict, init=False)
    _needs_at: int | None = field(default=None, init=False)
    _counts: Counts = field(default_factory=Counts, init=False)
    _not_before: int = field(default=0, init=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)

    def start(self) -> None:
        """Reads rules and memory. Raises RuleError and OSError for files that cannot be read."""
        now = self._now()
        remembered = self.memory.read()
        self.reload()
        self._not_before = now + round(SETTLE * 1000)
        if remembered.evaluated is None:
            return
        ended: list[Transition] = []
        with self._lock:
            for run in (run for group in self._runs.values() for run in group.rules):
                known = remembered.alerts.get(run.rule.key, {})
                run.alerts = restored(known, remembered.evaluated, now) if run.rule.alert is not None else {}
                ended += [
                    Transition(remembered.evaluated, own, one.state, None, one.value, one.annotations)
                    for own, one in known.items()
                    if own not in run.alerts and one.state is not State.INACTIVE
                ]
            self.memory.write(remembered.evaluated, self._alerts(), ended)
        self.heed(ended)

    def reload(self) -> None:
        """Reads the rule files anew; rules that are there still go on where they stood. Raises as `start`, and changes nothing then."""
        groups = prepare(self.read(), self.interval)
        with self._lock:
            before, self._runs = self._runs, {}
            for group in groups:
                run = GroupRun(group, self.external, self.clock)
                if group.key in before:
                    run.take_over(before[group.key])
                self._runs[group.key] = run
            kept = {run.rule.key for group in self._runs.values() for run in group.rules}
            for old in before.values():
                for gone in (run.rule for run in old.rules if run.rule.key not in kept):
                    self.store.forget_target(old.target(gone), self.wall())
            self._needs_at = None
        for group in groups:
            for rule in group.rules:
                if rule.error:
                    logger.error("%s:%d, group %s, %s: %s", group.file, rule.rule.line, group.name, rule.rule.title, rule.error)

    def run_due(self) -> float:
        """Evaluates every group whose slot has come; seconds until the next one comes."""
        now = self._now()
        transitions: list[Transition] = []
        to_send: list[ToSend] = []
        evaluated = False
        with self._lock:
            for key, run in self._runs.items():
                at = schedule.slot(key, run.group.interval, now)
                last = run.evaluated
                if last is not None and at < last:
                    # This slot lies before the step, where nothing is known any more; the next one does not.
                    logger.warning("the clock was set back by %.0f s; what was pending goes on", (last - at) / 1000)
                    run.set_back(last - at)
                    self._not_before = min(self._not_before, now)
                if at == run.evaluated or at < self._not_before:
                    continue
                missed = schedule.missed(last, at, run.group.interval)
                outcome = run.run(at, self.query, self.store.append)
                transitions += outcome.transitions
                to_send += outcome.to_send
                evaluated = True
                counts = self._counts
                self._counts = Counts(
                    counts.evaluations + len(run.rules),
                    counts.failures + outcome.failed,
                    counts.missed + missed,
                    counts.seconds + outcome.seconds,
                )
            if evaluated:
                self.memory.write(now, self._alerts(), transitions)
            following = [schedule.following(key, run.group.interval, now) for key, run in self._runs.items()]
        if transitions:
            self.heed(transitions)
        for change in transitions:
            _say(change)
        if to_send:
            self.deliver(to_send)
        return max(0.0, (min(following, default=now + round(self.interval * 1000)) - self._now()) / 1000)

    def run_until(self, stop: threading.Event) -> None:
        """Runs until `stop` is set. What goes wrong in one round is logged and does not end it."""
        while not stop.is_set():
            try:
                wait = self.run_due()
            except Exception:  # whatever it is: alerts that are not evaluated any more would be the worse fault
                logger.exception("an evaluation failed; the next one comes as planned")
                wait = self.interval
            stop.wait(wait)

    # ------------------------------------------------------------------------------------------------------------ looking
    def view(self) -> tuple[GroupView, ...]:
        """Every group and rule as it stands."""
        with self._lock:
            self._look_at_needs()
            return tuple(
                GroupView(
                    run.group,
                    run.evaluated,
                    run.seconds,
                    tuple(
                        RuleView(one.rule, one.health, one.state, tuple(one.alerts.values()), self._needs[one.rule.key])
                        for one in run.rules
                    ),
                )
                for run in self._runs.values()
            )

    def changes(self, start: int, end: int, name: str | None = None) -> Sequence[Transition]:
        """The changes of state between two moments (milliseconds), oldest first; of one alert when a name is given."""
        with self._lock:
            return self.memory.events(start, end, name)

    @property
    def counts(self) -> Counts:
        """What it did since it began."""
        with self._lock:
            return self._counts

    def _look_at_needs(self) -> None:
        now = self._now()
        if self._needs_at is not None and 0 <= now - self._needs_at < _NEEDS_EACH:
            return
        self._needs_at = now
        oldest = self.store.oldest()
        there = 0 if oldest is None else max(0, now - round(oldest * 1000))
        recent, hour = (self.store.names_since((now - back) / 1000) for back in (LOOKBACK, _LONGEST_LOOK))
        rules = [run.rule for group in self._runs.values() for run in group.rules]
        recordings: dict[str, Node] = {rule.rule.name: rule.node for rule in rules if rule.alert is None and rule.node is not None}

        def present(name: str, back: int) -> bool:
            return name in (recent if back <= LOOKBACK else hour)

        self._needs = {
            rule.key: Needs(Readiness.READY) if rule.node is None else needs(rule.node, recordings, present, there) for rule in rules
        }

    def _alerts(self) -> dict[Key, Alert]:
        return {(run.rule.key, own): alert for group in self._runs.values() for run in group.rules for own, alert in run.alerts.items()}

    def _now(self) -> int:
        return round(self.wall() * 1000)


def _say(change: Transition) -> None:
    own = dict(change.labels)
    name = own.pop("alertname", "")
    who = ", ".join(f"{label}={value}" for label, value in own.items() if label in ("instance", "engine", "gpu", "deployment", "severity"))
    before, after = change.before or "new", change.after or "forgotten"
    level = logging.INFO if change.after in (State.FIRING, State.INACTIVE) else logging.DEBUG
    logger.log(level, "alert %s (%s): %s → %s", name, who, before, "resolved" if after is State.INACTIVE else after)
