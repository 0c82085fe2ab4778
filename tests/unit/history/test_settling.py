"""Whether what targets say is known: each has to be asked, and none is waited for without end."""

from __future__ import annotations

import pytest
from poise.history.scraping import TargetStatus
from poise.history.settling import Settling
from poise.history.targets import parse_target

NOW = 1_800_000_000.0


class World:
    """Targets with intervals of 5 and 60 s, and a monotonic clock."""

    def __init__(self, grace: float = 0.0) -> None:
        self.fast = TargetStatus(parse_target("a=http://a:1"), grace=grace)
        self.slow = TargetStatus(parse_target("b=http://b:1,interval=60s,timeout=10s"))
        self.elapsed = 0.0
        self.settling = Settling(lambda: [self.fast, self.slow], lambda: self.elapsed)


def test_nothing_is_known_before_each_was_asked_once_and_then_from_the_last_of_them_on() -> None:
    world = World()
    assert world.settling(NOW) is None
    world.fast.known_at = NOW
    assert world.settling(NOW + 1) is None
    world.slow.known_at = NOW + 2
    assert world.settling(NOW + 3) == NOW + 2


def test_who_is_asked_late_on_a_busy_machine_is_known_all_the_same_and_who_was_asked_before_a_gap_is_not() -> None:
    world = World()
    world.fast.known_at = world.slow.known_at = NOW
    assert world.settling(NOW + 40) == NOW
    for clock in (NOW + 1200, NOW - 1200):
        assert world.settling(clock) is None
        world.fast.known_at = clock
        assert world.settling(clock + 1) is None, "the slow one says what it said before"
        world.slow.known_at = clock + 1
        assert world.settling(clock + 2) == clock + 1
        world.fast.known_at = world.slow.known_at = NOW


def test_a_wait_ends_after_interval_and_timeout_of_the_slowest_is_told_once_and_the_next_begins_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.fast.known_at = NOW
    for elapsed, known in ((0, None), (70, None), (76, NOW), (500, NOW)):
        world.elapsed = elapsed
        assert world.settling(NOW) == known
    assert caplog.text.count("could not be asked in time, b first") == 1
    world.slow.known_at = NOW
    assert world.settling(NOW) == NOW
    world.slow.known_at = None
    assert world.settling(NOW) is None


def test_an_exporter_that_is_being_started_gets_its_time() -> None:
    world = World(grace=30.0)
    world.slow.known_at = NOW
    assert world.settling(NOW) is None
    world.elapsed = 30.0
    assert world.settling(NOW) is None
    world.elapsed = 50.0
    assert world.settling(NOW) == NOW


def test_without_targets_there_is_nothing_to_wait_for() -> None:
    assert Settling(list, lambda: 0.0)(NOW) == NOW
