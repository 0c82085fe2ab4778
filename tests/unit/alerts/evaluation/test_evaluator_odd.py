"""What must not stop or mislead the evaluator: odd rules, files that are read anew in the middle of a round, clocks, and what breaks around it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from poise.alerts.evaluation.active import State, Transition
from poise.alerts.evaluation.evaluator import Evaluator
from poise.alerts.evaluation.group_run import ToSend
from poise.alerts.evaluation.memory import Memory
from poise.alerts.rules import parse_rules
from poise.history.promql.engine import InstantVector, Result, Sample
from poise.history.promql.labels import get, labels
from poise.history.promql.nodes import Node
from poise.history.store.store import Store

ONE = "groups: [{name: g, interval: 15s, rules: [{alert: Busy, expr: %s, for: %s, labels: {severity: warning}}]}]"
START = 1_800_000_000.0
CARD = labels({"card": "1", "node": "n1", "simulated": "true", "component": "gpu"})


class World:
    """An evaluator whose queries are answered by hand: a name in `true` has one result. It may be ended and begun anew."""

    def __init__(self, folder: Path, **files: str) -> None:
        self.folder = folder
        self.files = {f"/etc/{name}.yml": text for name, text in files.items()}
        self.now = START
        self.true = {"load"}
        self.sent: list[ToSend] = []
        self.told: list[Transition] = []
        self.begin()

    def begin(self) -> None:
        begun = self.now
        self.memory = Memory(self.folder / "alerts.db")
        self.evaluator = Evaluator(
            read=lambda: [parse_rules(text, name) for name, text in self.files.items()],
            query=self.query,
            store=Store(None, wall=lambda: self.now),
            memory=self.memory,
            deliver=self.sent.extend,
            wall=lambda: self.now,
            clock=lambda: self.now,
            heed=self.told.extend,
            settled=lambda now: begun,
        )
        self.evaluator.start()

    def query(self, query: Node, at: float) -> Result:
        name = getattr(query, "name", None)
        if name == "breaks":
            raise TypeError("a fault of the engine")
        return InstantVector(round(at * 1000), (Sample(CARD, 1.0),) if name in self.true else ())

    def restart(self, after: float) -> None:
        self.memory.close()
        self.now += after
        self.begin()

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / 15)):
            self.now += 15
            self.evaluator.run_due()

    @property
    def states(self) -> list[str]:
        return [alert.state.value for group in self.evaluator.view() for rule in group.rules for alert in rule.alerts]

    @property
    def changes(self) -> list[tuple[State | None, State | None]]:
        return [(change.before, change.after) for change in self.evaluator.changes(0, 10**15)]


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[Any]:
    made: list[World] = []

    def make(**files: str) -> World:
        made.append(World(tmp_path, **files))
        return made[-1]

    yield make
    for world in made:
        world.memory.close()


def test_a_rule_that_meets_a_fault_is_in_error_and_costs_no_other(worlds: Any, caplog: pytest.LogCaptureFixture) -> None:
    world = worlds(a=ONE % ("breaks", "0s"), b=ONE % ("load", "0s"))
    world.run(60)
    broken, right = (group.rules[0] for group in world.evaluator.view())
    assert broken.health.error == "TypeError: a fault of the engine"
    assert (right.health.error, world.states) == ("", ["firing"])
    assert [one.alert.state for one in world.sent] == [State.FIRING]
    assert sum("a fault of Poise" in record.message for record in caplog.records) == 1
    assert world.evaluator.counts.failures >= 2


@pytest.mark.parametrize("what", ["memory", "heed"])
def test_alerts_are_delivered_whatever_becomes_of_memory_and_heed(worlds: Any, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = worlds(a=ONE % ("load", "0s"))

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    if what == "memory":
        monkeypatch.setattr(world.memory, "write", broken)
        world.run(30)
    else:
        world.evaluator.heed = broken
        world.now += 15
        with pytest.raises(RuntimeError):
            world.evaluator.run_due()
    assert [one.alert.state for one in world.sent] == [State.FIRING]


def test_a_group_with_the_interval_0_has_the_default(worlds: Any) -> None:
    world = worlds(a=(ONE % ("load", "0s")).replace("interval: 15s", "interval: 0s"))
    world.run(60)
    assert world.states == ["firing"]
    assert world.evaluator.view()[0].group.interval == 15_000


@pytest.mark.parametrize("back", [7200, 40, 5])
def test_a_restart_with_the_clock_set_back_delays_neither_wait_nor_notification_nor_end(worlds: Any, back: int) -> None:
    world = worlds(a=ONE % ("load", "0s"), b=ONE.replace("Busy", "Slow") % ("load", "10m"))
    world.run(120)
    assert sorted(world.states) == ["firing", "pending"]
    world.restart(after=-back)
    world.sent.clear()
    world.run(120)
    assert all(alert.active_at <= world.now * 1000 for group in world.evaluator.view() for rule in group.rules for alert in rule.alerts)
    assert {one.alert.state for one in world.sent} == {State.FIRING}
    world.run(420)
    assert world.states == ["firing", "firing"]
    world.true.clear()
    world.sent.clear()
    world.run(30)
    assert [one.alert.state for one in world.sent] == [State.INACTIVE, State.INACTIVE]
    assert all(one.ends_at <= world.now * 1000 for one in world.sent)


def test_rules_that_differ_only_in_their_file_are_not_taken_for_each_other_after_a_restart(worlds: Any) -> None:
    world = worlds(a=ONE % ("load", "0s"), b=ONE % ("other", "0s"))
    world.run(60)
    before = world.changes
    world.restart(after=30)
    world.sent.clear()
    world.run(120)
    assert {one.alert.state for one in world.sent} == {State.FIRING}
    assert world.changes == before


def test_a_file_that_is_moved_keeps_its_alerts(worlds: Any) -> None:
    world = worlds(a=ONE % ("load", "1m"))
    world.run(60)
    world.files = {"/elsewhere/a.yml": world.files["/etc/a.yml"]}
    world.evaluator.reload()
    assert world.states == ["pending"]
    world.run(30)
    assert world.states == ["firing"]
    assert len(world.told) == 2


def test_alerts_of_a_rule_that_is_gone_end_are_remembered_and_told(worlds: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = worlds(a=ONE % ("load", "0s"), b=ONE.replace("Busy", "Slow") % ("load", "10m"))
    world.run(60)
    world.sent.clear()
    world.files = {"/etc/a.yml": "groups: []"}
    world.now += 5
    world.evaluator.reload()
    assert world.states == []
    assert [(one.alert.state, one.ends_at, one.rule.rule.name) for one in world.sent] == [(State.INACTIVE, world.now * 1000, "Busy")]
    assert world.changes[-2:] == [(State.FIRING, State.INACTIVE), (State.PENDING, None)]
    assert "alert Busy (card=1): firing → resolved" in caplog.text
    world.restart(after=1)
    assert world.states == []
    assert len(world.told) == len(world.changes)


def test_a_line_of_the_log_tells_alerts_of_one_rule_apart(worlds: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    worlds(a=ONE % ("load", "0s")).run(30)
    assert "alert Busy (card=1): new → firing" in caplog.text


def test_nobody_waits_for_a_query_and_rules_read_meanwhile_come_after_it(worlds: Any) -> None:
    world = worlds(a=ONE % ("load", "0s"))
    world.run(30)
    asked, answer, done = threading.Event(), threading.Event(), threading.Event()
    plain = world.query

    def slow(query: Node, at: float) -> Result:
        asked.set()
        assert answer.wait(30)
        result: Result = plain(query, at)
        return result

    world.evaluator.query = slow
    world.now += 15

    def round_of_its_own() -> None:
        world.evaluator.run_due()
        done.set()

    thread = threading.Thread(target=round_of_its_own)
    thread.start()
    try:
        assert asked.wait(30)
        assert world.states == ["firing"]
        assert world.evaluator.counts.evaluations > 0
        assert len(world.changes) == 1
        world.files = {"/etc/b.yml": ONE.replace("Busy", "New") % ("load", "0s")}
        world.evaluator.reload()
        assert world.states == ["firing"]
        assert not done.is_set()
    finally:
        answer.set()
        thread.join(30)
    assert [rule.rule.rule.name for group in world.evaluator.view() for rule in group.rules] == ["New"]
    assert [(get(change.labels, "alertname"), change.after) for change in world.told] == [("Busy", State.FIRING), ("Busy", State.INACTIVE)]
    world.run(30)
    assert world.states == ["firing"]


def test_thousands_of_alerts_are_told_at_once(worlds: Any) -> None:
    world = worlds(a=ONE % ("load", "0s"))
    many: Sequence[Sample] = [Sample(labels({"card": str(card)}), 1.0) for card in range(1_000)]
    world.evaluator.query = lambda node, at: InstantVector(round(at * 1000), tuple(many))
    world.run(15)
    world.run(15)
    assert len(world.sent) == 1_000
    assert all(alert.sent is not None for group in world.evaluator.view() for rule in group.rules for alert in rule.alerts)
