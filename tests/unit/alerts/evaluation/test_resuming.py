"""What an evaluator makes of times in which nothing was evaluated: starts, targets that are slow to answer, machines that slept, clocks that were set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from poise.alerts.evaluation import schedule
from poise.alerts.evaluation.active import State, Transition
from poise.alerts.evaluation.evaluator import Evaluator
from poise.alerts.evaluation.group_run import ToSend
from poise.alerts.evaluation.memory import Memory
from poise.alerts.rules import parse_rules
from poise.history.promql.engine import Engine
from poise.history.promql.labels import labels
from poise.history.scraping import TargetStatus
from poise.history.settling import Settling
from poise.history.store.store import Store
from poise.history.targets import parse_target

START = 1_800_000_000.0
ALERTS = "groups: [{name: g, interval: 15s, rules: [{alert: Boom, expr: boom > 0}, {alert: Slow, expr: boom > 0, for: 2m}, {alert: Gone, expr: absent(boom)}]}]"


class World:
    """A target that is scraped when the test says so, a store that forgets with each start, and two clocks."""

    def __init__(self, folder: Path, text: str = ALERTS, interval: str = "30s") -> None:
        self.folder, self.text = folder, text
        self.now, self.elapsed = START, 0.0
        self.target = parse_target(f"gpu-1=http://gpu-1:9747,interval={interval}")
        self.sent: list[ToSend] = []
        self.told: list[Transition] = []
        self.begin()

    def begin(self) -> None:
        self.status = TargetStatus(self.target)
        self.store = Store(None, wall=lambda: self.now)
        self.memory = Memory(self.folder / "alerts.db")
        self.evaluator = Evaluator(
            read=lambda: [parse_rules(self.text, "rules.yml")],
            query=Engine(self.store).instant,
            store=self.store,
            memory=self.memory,
            deliver=self.sent.extend,
            wall=lambda: self.now,
            clock=lambda: self.elapsed,
            heed=self.told.extend,
            settled=Settling(lambda: [self.status], lambda: self.elapsed),
        )
        self.evaluator.start()

    def restart(self, after: float) -> None:
        self.memory.close()
        self.now += after
        self.begin()

    def scrape(self) -> None:
        self.store.append("gpu-1", self.now, {labels({"__name__": "boom"}): 1.0})
        self.status.known_at = self.now

    def run(self, seconds: int, *, scraped: bool = True) -> None:
        """So many seconds, whatever is due in each, and a scrape in every fifth."""
        for second in range(seconds):
            self.now += 1
            self.elapsed += 1
            if scraped and second % 5 == 0:
                self.scrape()
            self.evaluator.run_due()

    def state(self, name: str) -> list[State]:
        return [one.state for group in self.evaluator.view() for rule in group.rules for one in rule.alerts if rule.rule.rule.name == name]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.memory.close()


def test_a_restart_ends_no_alert_of_a_target_that_is_scraped_late_and_none_fires_for_want_of_it(world: World) -> None:
    world.run(60)
    world.sent.clear()
    (fired,) = {change.at for change in world.told if change.after is State.FIRING}
    world.restart(after=5)
    world.run(50, scraped=False)
    assert world.evaluator.counts.evaluations == 0
    world.run(30)
    assert (world.state("Boom"), world.state("Gone")) == ([State.FIRING], [])
    assert {(one.alert.state, one.alert.fired_at) for one in world.sent} == {(State.FIRING, fired)}
    assert [change.after for change in world.told] == [State.FIRING, State.PENDING]  # of Boom and of Slow, before the restart


def test_a_target_that_nobody_gets_to_ask_holds_up_the_rules_for_an_interval_and_a_timeout_only(world: World) -> None:
    world.run(55, scraped=False)
    assert world.evaluator.counts.evaluations == 0
    world.run(40, scraped=False)
    assert world.evaluator.counts.evaluations > 0
    assert world.state("Gone") == [State.FIRING]


@pytest.mark.parametrize("seen_before", [True, False])
@pytest.mark.parametrize("gap", [400, 1200])
def test_a_gap_in_a_running_process_ends_nothing_and_does_not_count_as_waiting(world: World, gap: int, seen_before: bool) -> None:
    world.run(60)
    assert world.state("Slow") == [State.PENDING]
    world.told.clear()
    world.now += gap
    if seen_before:  # the scrape may be sooner than the evaluator
        world.scrape()
    world.run(29, scraped=False)
    world.run(30)
    assert (world.state("Boom"), world.state("Slow"), world.state("Gone")) == ([State.FIRING], [State.PENDING], [])
    world.run(75)
    assert world.state("Slow") == [State.FIRING]
    assert [change.after for change in world.told] == [State.FIRING]


def test_after_more_than_an_hour_a_running_process_believes_nothing_either(world: World) -> None:
    world.run(60)
    world.told.clear()
    world.now += 4000
    world.run(30)
    assert [(change.before, change.after) for change in world.told] == [
        (State.FIRING, None),
        (State.PENDING, None),
        (None, State.FIRING),
        (None, State.PENDING),
    ]


def test_a_busy_machine_that_evaluates_late_still_lets_for_run_out(world: World) -> None:
    world.run(30)
    for _ in range(5):
        world.now += 30
        world.elapsed += 30
        world.scrape()
        world.evaluator.run_due()
    assert world.state("Slow") == [State.FIRING]


def test_the_wait_for_a_slow_target_after_a_start_counts_as_no_waiting(world: World) -> None:
    world.run(60)
    world.restart(after=5)
    world.run(50, scraped=False)
    world.run(45)
    assert world.state("Slow") == [State.PENDING]
    world.run(60)
    assert world.state("Slow") == [State.FIRING]


def test_a_target_that_comes_with_a_reload_is_asked_before_rules_say_that_it_is_not_there(world: World) -> None:
    world.run(60)
    evaluated = world.evaluator.counts.evaluations
    world.status.known_at = None
    world.run(20, scraped=False)
    assert world.evaluator.counts.evaluations == evaluated
    world.run(20)
    assert world.evaluator.counts.evaluations > evaluated
    assert world.state("Boom") == [State.FIRING]


def test_an_alert_over_what_another_group_records_lives_over_a_start(tmp_path: Path) -> None:
    """Whichever comes first in its interval: what is recorded is gone after a start until it is recorded anew."""
    interval = 15_000
    names = sorted((f"r{number}" for number in range(8)), key=lambda name: schedule.offset(f"rules.yml;{name}", interval))
    recorder, reader = names[-1], names[0]
    text = (
        f"groups: [{{name: {reader}, interval: 15s, rules: [{{alert: Boom, expr: 'a:boom > 0'}}]}}, "
        f"{{name: {recorder}, interval: 15s, rules: [{{record: 'a:boom', expr: boom}}]}}]"
    )
    world = World(tmp_path, text)
    for _ in range(7):  # at each place in the interval
        world.run(60)
        world.restart(after=2)
    world.run(60)
    assert [change.after for change in world.told] == [State.FIRING]
    world.now += 1200
    world.run(60)
    assert [change.after for change in world.told] == [State.FIRING]
    world.memory.close()


def test_a_group_that_is_new_after_a_reload_was_not_left_out_before(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.run(60)
    world.restart(after=5)
    world.run(400)
    caplog.clear()
    world.text = world.text.replace("name: g", "name: h")
    world.evaluator.reload()
    world.run(30)
    assert world.state("Boom") == [State.FIRING]
    assert "nothing was evaluated" not in caplog.text


def test_an_outage_is_told_once_for_all_groups(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World(
        tmp_path,
        "groups: [" + ", ".join(f"{{name: g{n}, interval: 15s, rules: [{{record: 'a:r{n}', expr: boom}}]}}" for n in range(6)) + "]",
    )
    world.run(60)
    for _ in range(2):
        caplog.clear()
        world.now += 1200
        world.run(60)
        assert caplog.text.count("nothing was evaluated") == 1
    world.memory.close()
