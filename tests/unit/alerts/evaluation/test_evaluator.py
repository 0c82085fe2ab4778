"""The evaluator over a real store and its own file: slots, restarts, reloads, clocks, disks."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from poise.alerts.evaluation.active import State, Transition
from poise.alerts.evaluation.evaluator import Evaluator
from poise.alerts.evaluation.group_run import ToSend
from poise.alerts.evaluation.inputs import Readiness
from poise.alerts.evaluation.memory import Memory
from poise.alerts.rules import RuleError, RuleFile, parse_rules
from poise.history.promql.engine import Engine, Result
from poise.history.promql.labels import get, labels
from poise.history.promql.nodes import Node
from poise.history.store.sqlite_file import StoreError
from poise.history.store.store import Store
from sqlalchemy import create_engine

BUSY = "groups: [{name: g, interval: 15s, rules: [{alert: Busy, expr: load > 0.5, for: 1m, keep_firing_for: 1m, labels: {severity: warning}}]}]"
START = 1_800_000_000.0


class World:
    """A store with one target, an evaluator that may be ended and begun anew, and a clock that is moved by hand."""

    def __init__(self, folder: Path, text: str = BUSY) -> None:
        self.folder = folder
        self.text = text
        self.now = START
        self.scraped: float | None = None
        self.sent: list[ToSend] = []
        self.told: list[Transition] = []
        self.store = Store(None, wall=lambda: self.now)
        self.begin()

    def begin(self) -> None:
        self.scraped = None
        self.memory = Memory(self.folder / "alerts.sqlite")
        self.evaluator = Evaluator(
            read=self.files,
            query=Engine(self.store).instant,
            store=self.store,
            memory=self.memory,
            deliver=self.sent.extend,
            wall=lambda: self.now,
            clock=lambda: self.now,
            heed=self.told.extend,
            settled=lambda now: self.scraped,
        )
        self.evaluator.start()

    def files(self) -> Sequence[RuleFile]:
        return [parse_rules(self.text, "rules.yml")]

    def end(self) -> None:
        self.memory.close()

    def restart(self, after: float) -> None:
        self.end()
        self.now += after
        self.begin()

    def scrape(self, load: float | None) -> None:
        self.store.append("node", self.now, {} if load is None else {labels({"__name__": "load", "gpu": "1"}): load})
        self.scraped = self.now

    def run(self, seconds: float, load: float | None) -> None:
        """So many seconds, a scrape and whatever is due each five."""
        for _ in range(round(seconds / 5)):
            self.now += 5
            self.scrape(load)
            self.evaluator.run_due()

    @property
    def states(self) -> list[str]:
        return [alert.state.value for group in self.evaluator.view() for rule in group.rules for alert in rule.alerts]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.end()


def test_an_alert_waits_fires_is_kept_and_ends(world: World) -> None:
    world.run(30, 0.9)
    assert world.states == ["pending"]
    world.run(60, 0.9)
    assert world.states == ["firing"]
    world.run(30, 0.1)
    assert world.states == ["firing"]
    world.run(60, 0.1)
    assert world.states == ["inactive"]
    assert [(one.alert.state, one.rule.rule.name) for one in world.sent][:: len(world.sent) - 1] == [
        (State.FIRING, "Busy"),
        (State.INACTIVE, "Busy"),
    ]


def test_each_slot_is_evaluated_once_and_missed_ones_are_counted(world: World) -> None:
    world.run(60, 0.1)
    assert world.evaluator.counts.evaluations in (4, 5)
    before = world.evaluator.counts
    world.evaluator.run_due()
    assert world.evaluator.counts == before
    world.now += 60
    world.evaluator.run_due()
    assert (world.evaluator.counts.evaluations - before.evaluations, world.evaluator.counts.missed) == (1, 3)
    assert 0 < world.evaluator.run_due() <= 15


def test_the_wait_goes_on_over_a_restart_and_the_outage_does_not_count(world: World) -> None:
    world.run(45, 0.9)
    world.restart(after=600)
    assert world.states == ["pending"]
    world.run(20, 0.9)
    assert world.states == ["pending"]
    world.run(40, 0.9)
    assert world.states == ["firing"]


def test_a_firing_alert_fires_on_over_a_restart_under_its_old_start(world: World) -> None:
    world.run(90, 0.9)
    (fired,) = {one.alert.fired_at for one in world.sent}
    world.restart(after=300)
    world.run(90, 0.9)
    assert world.states == ["firing"]
    assert {one.alert.fired_at for one in world.sent} == {fired}


def test_after_more_than_an_hour_nothing_is_believed_and_the_history_says_so(world: World) -> None:
    world.run(90, 0.9)
    ended = world.now
    world.restart(after=4000)
    assert world.states == []
    changes = world.memory.events(0, round(world.now * 1000))
    assert [change.after for change in changes] == [State.PENDING, State.FIRING, None]
    assert changes[-1].at <= ended * 1000


def test_changes_of_state_are_kept_with_labels_and_found_by_time_and_name(world: World) -> None:
    world.run(90, 0.9)
    world.run(150, 0.1)
    world.restart(after=1)
    changes = world.memory.events(0, round(world.now * 1000))
    assert [(change.before, change.after) for change in changes] == [
        (None, State.PENDING),
        (State.PENDING, State.FIRING),
        (State.FIRING, State.INACTIVE),
    ]
    assert {get(change.labels, "severity") for change in changes} == {"warning"}
    assert world.memory.events(0, round(world.now * 1000), "Other") == []
    assert world.memory.events(changes[1].at, changes[1].at, "Busy") == [changes[1]]


def test_every_change_is_told_once_also_one_that_came_to_light_at_a_start(world: World) -> None:
    world.run(90, 0.9)
    world.run(150, 0.1)
    world.run(90, 0.9)
    world.restart(after=4000)
    assert [change.after for change in world.told] == [
        *(State.PENDING, State.FIRING, State.INACTIVE),
        *(State.PENDING, State.FIRING, None),
    ]
    assert world.told == world.memory.events(0, round(world.now * 1000))


def test_history_is_forgotten_after_thirty_days(world: World) -> None:
    world.run(90, 0.9)
    world.now += 31 * 86_400
    world.run(15, 0.1)
    assert all(change.at > (world.now - 86_400) * 1000 for change in world.memory.events(0, round(world.now * 1000)))


def test_rules_that_are_read_anew_keep_their_alerts_and_a_rule_that_went_takes_its_series_with_it(world: World) -> None:
    world.run(90, 0.9)
    world.text = BUSY.replace("0.5", "0.6")
    world.evaluator.reload()
    assert world.states == ["firing"]
    world.text = "groups: [{name: g, rules: []}]"
    world.now += 1
    world.evaluator.reload()
    assert world.states == []
    assert Engine(world.store).instant("ALERTS", world.now).samples == ()  # type: ignore[union-attr]  # a selector gives a vector


def test_a_file_that_cannot_be_read_changes_nothing(world: World) -> None:
    world.run(90, 0.9)
    world.text = "groups: [{name: g, rules: [{alert: Busy}]}]"
    with pytest.raises(RuleError, match="no `expr`"):
        world.evaluator.reload()
    assert world.states == ["firing"]


def test_a_clock_that_is_set_back_does_not_stop_evaluations(world: World) -> None:
    world.run(45, 0.9)
    world.now -= 3000
    world.run(15, 0.9)
    assert world.states == ["pending"]
    world.run(30, 0.9)
    assert world.states == ["firing"]


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_clock_that_is_set_while_rules_are_evaluated_delays_the_next_evaluation_by_an_interval_at_most(world: World, step: float) -> None:
    asked = world.evaluator.query

    def slow(query: Node, at: float) -> Result:
        world.now += step
        world.evaluator.query = asked
        return asked(query, at)

    world.run(45, 0.9)
    world.evaluator.query = slow
    world.now += 15
    assert 0 <= world.evaluator.run_due() <= 15
    assert world.evaluator.query is asked


def test_a_rule_without_input_and_one_without_history_are_not_ok(world: World) -> None:
    world.text = (
        "groups: [{name: g, interval: 15s, rules: [{alert: Absent, expr: nothing > 1}, {alert: Long, expr: 'rate(load[6h]) > 1'}, "
        "{alert: Ready, expr: load > 1}]}]"
    )
    world.evaluator.reload()
    world.run(60, 0.5)
    found = [rule.needs.readiness for group in world.evaluator.view() for rule in group.rules]
    assert found == [Readiness.INPUT_MISSING, Readiness.INSUFFICIENT_HISTORY, Readiness.READY]


def test_a_rule_whose_window_was_scaled_below_two_scrapes_is_told(world: World) -> None:
    world.text = "groups: [{name: g, interval: 15s, rules: [{alert: Short, expr: 'rate(load[9s]) > 1'}, {alert: Fine, expr: 'rate(load[10s]) > 1'}]}]"
    world.evaluator.reload()
    world.run(90, 0.5)
    short, fine = (rule.needs for group in world.evaluator.view() for rule in group.rules)
    assert short.sentence == "window too short: 9 s over load, whose samples come every 5 s"
    assert fine.readiness is Readiness.READY


def test_two_processes_are_told_apart(world: World) -> None:
    with pytest.raises(StoreError, match="in use by process"):
        Memory(world.folder / "alerts.sqlite")


def test_a_disk_that_takes_nothing_costs_no_evaluation_and_is_made_up_for(world: World, caplog: pytest.LogCaptureFixture) -> None:
    file = world.memory._file
    assert file is not None
    right = file.engine
    file.engine = create_engine(f"sqlite:///file:{file.path}?mode=ro&uri=true")
    world.run(90, 0.9)
    assert world.states == ["firing"]
    assert "cannot be written" in caplog.text
    assert world.memory.error
    file.engine.dispose()
    file.engine = right
    world.run(15, 0.9)
    assert world.memory.error == ""
    assert [change.after for change in world.memory.events(0, round(world.now * 1000))] == [State.PENDING, State.FIRING]


def test_without_a_file_everything_works_while_the_process_lives(world: World) -> None:
    world.end()
    world.memory = world.evaluator.memory = Memory(None)
    world.run(90, 0.9)
    assert world.states == ["firing"]
    assert [change.after for change in world.memory.events(0, round(world.now * 1000))] == [State.PENDING, State.FIRING]


def test_the_thread_ends_when_it_is_told_and_survives_a_round_that_fails(world: World, caplog: pytest.LogCaptureFixture) -> None:
    stop, ran = threading.Event(), threading.Event()

    def broken(_: Sequence[ToSend]) -> None:
        ran.set()
        raise RuntimeError("the notifier broke")

    world.run(60, 0.9)
    world.now += 15
    world.store.append("node", world.now, {labels({"__name__": "load", "gpu": "1"}): 0.9})
    world.evaluator.deliver = broken
    thread = threading.Thread(target=world.evaluator.run_until, args=(stop,))
    thread.start()
    assert ran.wait(30)
    stop.set()
    thread.join(30)
    assert not thread.is_alive()
    assert "an evaluation failed" in caplog.text
