"""The built-in evaluator: reads rule files, runs each group at its slots over the store, remembers, and hands alerts to whoever sends them.

    rule files ─► groups ─► (slot) query ─► series and ALERTS to the store, changes to the memory, alerts to the notifier

One thread runs it; others may look at any time, without waiting, and have the rules read anew. The order of things is here; what a rule does is in active.py, a group in group_run.py, moments in
schedule.py, how rules stand in views.py. Knows no network and no page.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from poise.alerts.evaluation import schedule
from poise.alerts.evaluation.active import ALERT_NAME, State, Transition
from poise.alerts.evaluation.group_run import GroupRun, Outcome, Query, ToSend
from poise.alerts.evaluation.inputs import Needs
from poise.alerts.evaluation.memory import Memory
from poise.alerts.evaluation.prepared import PreparedGroup, prepare
from poise.alerts.evaluation.restore import given_up, restored
from poise.alerts.evaluation.resuming import Resuming
from poise.alerts.evaluation.views import GroupView, Inputs, needs_of, view
from poise.alerts.rules import RuleFile
from poise.history.promql.labels import Labels, get

logger = logging.getLogger(__name__)

#: Seconds between two evaluations of a group that names no interval; the exporter's page is scraped every 5.
DEFAULT_INTERVAL = 15.0
#: Seconds between two looks whether all targets have been asked, while nothing is evaluated before that.
HELD_LOOK = 0.5
#: What rules lack changes slowly; it is looked at anew after so many milliseconds.
_NEEDS_EACH = 60_000
#: Labels that tell no two alerts of a line in the log apart: they are the same for all alerts of a rule, or of this machine.
_SAID_OF_ALL = frozenset({ALERT_NAME, "severity", "node", "simulated", "component"})


class Store(Inputs, Protocol):
    """What the evaluator needs of the store; `poise.history.store.store.Store` is the real one. Moments in Unix seconds."""

    def append(self, target: str, at: float, samples: Mapping[Labels, float]) -> None: ...

    def forget_target(self, target: str, at: float) -> None: ...


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
    every change of state once it is remembered.

    `settled` gives, at a moment, since when all that the targets say is known (Unix seconds), None while one of them has still to be asked: nothing
    is evaluated then, for what was pending or firing would seem to be over (`poise.history.settling.Settling`).
    """

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
    settled: Callable[[float], float | None] = lambda now: now
    _runs: dict[str, GroupRun] = field(default_factory=dict, init=False)
    _resuming: Resuming = field(default_factory=Resuming, init=False)
    _needs: Mapping[str, Needs] = field(default_factory=dict, init=False)
    _needs_at: int | None = field(default=None, init=False)
    #: Held by whoever changes one of the above, through all queries of a round.
    _round: threading.Lock = field(default_factory=threading.Lock, init=False)
    #: What others look at. Each is made anew and put in place of the one before, so that nobody waits for a round.
    _views: Mapping[str, GroupView] = field(default_factory=dict, init=False)
    _counts: Counts = field(default_factory=Counts, init=False)
    #: Rules that were read while a round was going on; it takes them in at its end. The lock is held for this handover alone.
    _read_anew: Sequence[PreparedGroup] | None = field(default=None, init=False)
    _handover: threading.Lock = field(default_factory=threading.Lock, init=False)

    def start(self) -> None:
        """Reads rules and memory. Raises RuleError and OSError for files that cannot be read."""
        now = self._now()
        remembered = self.memory.read()
        self.reload()
        ended: list[Transition] = []
        with self._round:
            if remembered.evaluated is None:
                return
            for group in self._runs.values():
                group.restored = now
            runs = {run.rule.key: run for group in self._runs.values() for run in group.rules if run.rule.alert is not None}
            for key, known in remembered.alerts.items():
                kept = restored(known, remembered.evaluated, now) if key in runs else {}
                if key in runs:
                    runs[key].alerts = kept
                ended += given_up(known, kept, remembered.evaluated, now)
            self._show_all()
            self._remember(min(remembered.evaluated, now), ended)
        self._tell(ended, ())

    def reload(self) -> None:
        """Reads the rule files anew; rules that are there still go on where they stood, and alerts of those that are not end. A round that goes on
        ends with the rules that it has. Raises as `start`, and changes nothing then."""
        self.take(self.read_anew())

    def read_anew(self) -> tuple[PreparedGroup, ...]:
        """The rules as their files say now, for `take`. Raises as `start`."""
        groups = prepare(self.read(), self.interval)
        for group in groups:
            for rule in group.rules:
                if rule.error:
                    logger.error("%s:%d, group %s, %s: %s", group.file, rule.rule.line, group.name, rule.rule.title, rule.error)
        return groups

    def take(self, groups: Sequence[PreparedGroup]) -> None:
        """Goes over to these rules as `reload` says."""
        with self._handover:
            self._read_anew = groups
        self._take_in()

    def _take_in(self) -> None:
        """Goes over to rules that were read anew, unless a round goes on: it does that itself when it is over."""
        while self._read_anew is not None and self._round.acquire(blocking=False):
            try:
                with self._handover:
                    groups, self._read_anew = self._read_anew, None
                transitions, to_send = ([], []) if groups is None else self._go_over(groups)
            finally:
                self._round.release()
            self._tell(transitions, to_send)

    def _go_over(self, groups: Sequence[PreparedGroup]) -> tuple[list[Transition], list[ToSend]]:
        now = self._now()
        before = self._runs
        known = {run.rule.key: run for group in before.values() for run in group.rules}
        self._runs = {group.key: GroupRun(group, self.external, self.clock) for group in groups}
        for key, group_run in self._runs.items():
            group_run.take_over(known, before.get(key))
        kept = {run.rule.key for group in self._runs.values() for run in group.rules}
        targets = {group.target(run.rule) for group in self._runs.values() for run in group.rules}
        transitions: list[Transition] = []
        to_send: list[ToSend] = []
        for old in before.values():
            for gone in old.rules:
                if old.target(gone.rule) not in targets:
                    self.store.forget_target(old.target(gone.rule), now / 1000)
                if gone.rule.key not in kept:
                    changed, told = old.end(gone, now)
                    transitions += changed
                    to_send += told
        # Before the first scrapes the needs look worse than they are: the next round looks at them again.
        self._needs, self._needs_at = self._found_needs(now), None
        self._show_all()
        if transitions:
            self._remember(now, transitions)
        return transitions, to_send

    def run_due(self) -> float:
        """Evaluates every group whose slot has come; seconds until the next one comes, or the next look whether the targets are known."""
        now = self._now()
        since = self.settled(now / 1000)
        if since is None:
            self._resuming.waits = True
            return HELD_LOOK
        transitions: list[Transition] = []
        to_send: list[ToSend] = []
        evaluated = False
        with self._round:
            if self._resuming.waits or any(self._is_gap(key, run, now) for key, run in self._runs.items()):
                self._resuming.go_on((run.group for run in self._runs.values()), round(since * 1000))
            for key, run in self._in_order(now):
                try:
                    outcome = self._run_group(key, run, now)
                except Exception:  # whatever it is, the other groups are evaluated
                    logger.exception("group %s could not be evaluated; the next evaluation comes as planned", run.group.name)
                    continue
                if outcome is not None:
                    transitions += outcome.transitions
                    to_send += outcome.to_send
                    evaluated = True
            if evaluated:
                self._remember(now, transitions)
                if self._needs_at is None or not 0 <= now - self._needs_at < _NEEDS_EACH:
                    self._needs, self._needs_at = self._found_needs(now), now
                    self._show_all()
        self._take_in()
        self._tell(transitions, to_send)
        return self._until_next(now)

    def _in_order(self, now: int) -> list[tuple[str, GroupRun]]:
        """The groups by their newest slots, the oldest first: one may read what another recorded before."""
        return sorted(self._runs.items(), key=lambda one: schedule.slot(one[0], one[1].group.interval, now))

    def _is_gap(self, key: str, run: GroupRun, now: int) -> bool:
        return self._resuming.is_gap(run.group, run.known, schedule.slot(key, run.group.interval, now))

    def _until_next(self, now: int) -> float:
        """Seconds until a slot after `now`. Never longer than an interval: the clock may have been set back since `now` was read."""
        intervals = [run.group.interval for run in self._runs.values()]
        following = [schedule.following(key, run.group.interval, now) for key, run in self._runs.items()]
        longest = min(intervals, default=round(self.interval * 1000))
        return min(max(0, min(following, default=now + longest) - self._now()), longest) / 1000

    def _run_group(self, key: str, run: GroupRun, now: int) -> Outcome | None:
        """None where its slot has not come."""
        at = schedule.slot(key, run.group.interval, now)
        last = run.evaluated
        if last is not None and at < last:
            # This slot lies before the step, where nothing is known any more; the next one does not.
            logger.warning("the clock was set back by %.0f s; what was pending goes on", (last - at) / 1000)
            run.set_back(last - at)
            self._resuming.set_back(now)
        if at == run.evaluated or not self._resuming.allows(key, at):
            return None
        ended = run.resume(at) if self._resuming.is_outage(run.group, run.known, at) else []
        outcome = run.run(at, self.query, self.store.append)
        counts = self._counts
        self._counts = Counts(
            counts.evaluations + len(run.rules),
            counts.failures + outcome.failed,
            counts.missed + schedule.missed(last, at, run.group.interval),
            counts.seconds + outcome.seconds,
        )
        self._views = {**self._views, key: view(run, self._needs)}
        return replace(outcome, transitions=(*ended, *outcome.transitions))

    def _remember(self, at: int, transitions: Sequence[Transition]) -> None:
        alerts = {(run.rule.key, own): alert for group in self._runs.values() for run in group.rules for own, alert in run.alerts.items()}
        try:
            self.memory.write(at, alerts, transitions)
        except Exception:  # whatever it is, alerts that are not told would be the worse fault
            logger.exception("the state of alerts cannot be remembered; they are told all the same")

    def _tell(self, transitions: Sequence[Transition], to_send: Sequence[ToSend]) -> None:
        """To the log, to whoever heeds changes, and to the notifier, whatever becomes of the ones before."""
        for change in transitions:
            _say(change)
        try:
            if transitions:
                self.heed(transitions)
        finally:
            if to_send:
                self.deliver(to_send)

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
        """Every group and rule as it stood when its last evaluation was over. Never waits for one."""
        return tuple(self._views.values())

    def changes(self, start: int, end: int, name: str | None = None) -> Sequence[Transition]:
        """The changes of state between two moments (milliseconds), oldest first; of one alert when a name is given."""
        return self.memory.events(start, end, name)

    @property
    def counts(self) -> Counts:
        """What it did since it began."""
        return self._counts

    def _show_all(self) -> None:
        self._views = {key: view(run, self._needs) for key, run in self._runs.items()}

    def _found_needs(self, now: int) -> Mapping[str, Needs]:
        return needs_of((run.rule for group in self._runs.values() for run in group.rules), self.store, now)

    def _now(self) -> int:
        return round(self.wall() * 1000)


def _say(change: Transition) -> None:
    name = get(change.labels, ALERT_NAME)
    who = ", ".join(f"{label}={value}" for label, value in change.labels if label not in _SAID_OF_ALL)
    before, after = change.before or "new", change.after or "forgotten"
    level = logging.INFO if State.FIRING in (change.before, change.after) else logging.DEBUG
    logger.log(level, "alert %s%s: %s → %s", name, f" ({who})" if who else "", before, "resolved" if after is State.INACTIVE else after)
