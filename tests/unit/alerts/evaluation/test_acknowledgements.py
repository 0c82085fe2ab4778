"""Acknowledgements: when they end, that they outlive a restart, an older file and a disk that takes nothing."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from poise.alerts.evaluation import acknowledgements as module
from poise.alerts.evaluation.acknowledgements import Acknowledgement, Acknowledgements, TooMany, identifier
from poise.alerts.evaluation.active import State, Transition
from poise.alerts.evaluation.memory import MIGRATIONS, Memory
from poise.history.promql.labels import Labels, labels
from sqlalchemy import create_engine

NOW = 1_800_000_000.0
BUSY, LOST = labels({"alertname": "Busy", "gpu": "1"}), labels({"alertname": "Lost", "gpu": "ü"})
BOTH = {BUSY, LOST}


class World:
    """A file that may be closed and opened again, and a clock that is moved by hand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = NOW
        self.begin()

    def begin(self) -> None:
        self.memory = Memory(self.path)
        self.known = Acknowledgements(self.memory.file, lambda: self.now)

    def restart(self, after: float = 0.0) -> None:
        self.memory.close()
        self.now += after
        self.begin()

    def add(self, own: Labels = BUSY, seconds: float = 7200.0, comment: str = "card is on its way") -> Acknowledgement:
        one = Acknowledgement(own, "ann", comment, round((self.now + seconds) * 1000), round(self.now * 1000))
        self.known.add(one)
        return one

    def change(self, own: Labels, after: State | None) -> None:
        self.known.heed([Transition(round(self.now * 1000), own, State.FIRING, after, 1.0)])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "alerts.db")
    yield made
    made.memory.close()


def test_it_stands_over_a_restart_and_a_second_one_takes_its_place(world: World) -> None:
    world.add()
    other = world.add(LOST, comment="second thoughts — größer")
    latest = world.add(comment="now with a date")
    world.restart(after=60)
    assert world.known.standing(BOTH) == {BUSY: latest, LOST: other}


def test_it_ends_at_its_moment_also_while_nothing_runs(world: World) -> None:
    world.add(seconds=100)
    world.add(LOST, seconds=200)
    world.now += 99
    assert set(world.known.standing(BOTH)) == BOTH
    world.now += 1
    assert set(world.known.standing(BOTH)) == {LOST}
    world.restart(after=200)
    assert world.known.standing(BOTH) == {}


@pytest.mark.parametrize("after", [State.INACTIVE, None])
def test_it_ends_with_its_alert_and_does_not_come_back_with_the_next_one(world: World, after: State | None) -> None:
    world.add()
    world.add(LOST)
    world.change(BUSY, State.FIRING)
    assert set(world.known.standing(BOTH)) == BOTH
    world.change(BUSY, after)
    assert set(world.known.standing(BOTH)) == {LOST}
    world.restart()
    assert set(world.known.standing(BOTH)) == {LOST}


def test_it_ends_by_hand_and_with_a_rule_that_went(world: World) -> None:
    world.add()
    world.add(LOST)
    assert world.known.remove(BUSY)
    assert not world.known.remove(BUSY)
    assert world.known.standing({BUSY}) == {}
    world.restart()
    assert world.known.standing(BOTH) == {}


def test_their_number_has_an_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 1)
    world.add(seconds=100)
    world.add(seconds=50)
    with pytest.raises(TooMany):
        world.add(LOST)
    world.now += 51
    world.add(LOST)


def test_a_disk_that_takes_nothing_costs_only_what_a_restart_would_have_kept(world: World, caplog: pytest.LogCaptureFixture) -> None:
    file = world.memory.file
    assert file is not None
    right = file.engine
    file.engine = create_engine(f"sqlite:///file:{file.path}?mode=ro&uri=true")
    one = world.add()
    world.add(LOST, seconds=100)
    assert world.known.error
    assert set(world.known.standing(BOTH)) == BOTH
    assert caplog.text.count("acknowledgements cannot be written") == 1
    file.engine.dispose()
    file.engine = right
    world.now += 101
    assert world.known.standing(BOTH) == {BUSY: one}
    assert world.known.error == ""
    world.restart()
    assert world.known.standing(BOTH) == {BUSY: one}


def test_without_a_file_it_stands_while_the_process_lives() -> None:
    known = Acknowledgements(None, lambda: NOW)
    one = Acknowledgement(BUSY, "ann", "c", round(NOW * 1000) + 1, 0)
    known.add(one)
    assert known.standing(BOTH) == {BUSY: one}


def test_a_file_of_schema_1_is_brought_up_and_keeps_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "alerts.db"
    old = sqlite3.connect(path)
    # As the first version of this file was made.
    old.executescript(
        """
        CREATE TABLE alert (rule VARCHAR NOT NULL, labels VARCHAR NOT NULL, annotations VARCHAR NOT NULL, value VARCHAR NOT NULL,
            state VARCHAR NOT NULL, active_at BIGINT NOT NULL, fired_at BIGINT, resolved_at BIGINT, keep_firing_since BIGINT, sent BIGINT,
            PRIMARY KEY (rule, labels));
        CREATE TABLE event (id INTEGER NOT NULL, at BIGINT NOT NULL, name VARCHAR NOT NULL, labels VARCHAR NOT NULL, before VARCHAR NOT NULL,
            after VARCHAR NOT NULL, value VARCHAR NOT NULL, annotations VARCHAR NOT NULL, PRIMARY KEY (id));
        CREATE TABLE fact (name VARCHAR NOT NULL, value BIGINT NOT NULL, PRIMARY KEY (name));
        PRAGMA user_version = 1;
        """
    )
    old.execute("INSERT INTO alert VALUES ('r', ?, '{}', '1.0', 'firing', 1, 2, NULL, NULL, NULL)", (json.dumps(dict(BUSY)),))
    old.execute("INSERT INTO fact VALUES ('evaluated', 5)")
    old.commit()
    old.close()
    world = World(path)
    remembered = world.memory.read()
    assert remembered.evaluated == 5
    assert remembered.alerts["r"][BUSY].state is State.FIRING
    one = world.add()
    world.restart()
    assert world.known.standing({BUSY}) == {BUSY: one}
    assert world.memory.read().evaluated == 5
    world.memory.close()
    with sqlite3.connect(path) as found:
        assert found.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),) == (2,)
    found.close()


def test_each_alert_has_an_identifier_of_its_own() -> None:
    assert identifier(BUSY) == identifier(labels(dict(reversed(BUSY))))
    assert len({identifier(BUSY), identifier(LOST)}) == 2
