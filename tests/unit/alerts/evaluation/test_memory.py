"""The evaluator's file after a damage: what can be read is used, the rest is named, and nothing ends a process."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest
from poise.alerts.evaluation.acknowledgements import Acknowledgement, Acknowledgements
from poise.alerts.evaluation.active import Alert, State, Transition
from poise.alerts.evaluation.memory import Memory
from poise.history.promql.labels import Labels, labels

PAGE = 4096


def own(number: int) -> Labels:
    return labels({"alertname": "Busy", "gpu": str(number)})


ALERTS = {("rule", own(number)): Alert(own(number), {"s": "x" * 300}, 1.0, State.FIRING, 1, 1) for number in range(200)}
CHANGES = [Transition(1, own(number), None, State.FIRING, 1.0) for number in range(200)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "alerts.db"
    memory = Memory(path)
    memory.write(10_000, ALERTS, CHANGES)
    Acknowledgements(memory.file, lambda: 0.0).add(Acknowledgement(own(1), "me", "", 10**9, 1))
    memory.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path.read_bytes()


def used(path: Path) -> tuple[int, int]:
    """How many alerts are remembered, and how many after everything was written and read again."""
    memory = Memory(path)
    found = sum(map(len, memory.read().alerts.values()))
    acknowledgements = Acknowledgements(memory.file, lambda: 0.0)
    assert set(acknowledgements.standing([own(1)])) <= {own(1)}
    memory.events(0, 10**9)
    for at in (20_000, 30_000):
        memory.write(at, ALERTS, [])
    assert memory.error == ""
    acknowledgements.add(Acknowledgement(own(2), "me", "", 10**9, 1))
    assert acknowledgements.error == ""
    memory.close()
    memory = Memory(path)
    again = sum(map(len, memory.read().alerts.values()))
    memory.close()
    return found, again


@pytest.mark.parametrize("damage", ["behind the header", "half", "some pages", "empty", "header"])
def test_a_damaged_file_is_begun_anew(tmp_path: Path, whole: bytes, damage: str) -> None:
    path = tmp_path / "alerts.db"
    path.write_bytes(
        {
            "behind the header": whole[:PAGE] + os.urandom(len(whole) - PAGE),
            "half": whole[: len(whole) // 2 // PAGE * PAGE],
            "some pages": whole[: 3 * PAGE] + b"\0" * 2 * PAGE + whole[5 * PAGE :],
            "empty": b"",
            "header": b"x" * 100 + whole[100:],
        }[damage]
    )
    assert used(path)[1] == len(ALERTS)
    aside = list(tmp_path.glob("alerts.db.damaged-*"))
    assert bool(aside) == (damage != "empty")


@pytest.mark.parametrize("table", ["alert", "event", "fact"])
def test_a_table_that_is_missing_is_a_damage(tmp_path: Path, whole: bytes, table: str) -> None:
    path = tmp_path / "alerts.db"
    path.write_bytes(whole)
    changed(path, f"DROP TABLE {table}")
    assert used(path)[1] == len(ALERTS)


@pytest.mark.parametrize(
    "wrong",
    [
        "state = 'bogus'",
        "labels = '{'",
        "labels = '[1]'",
        "annotations = '{\"a\": 1}'",
        "value = 'x'",
        "active_at = 'zzz'",
        "active_at = -1",
        "sent = 999999999999999999",
        "state = 'inactive'",
    ],
)
def test_a_row_that_makes_no_sense_is_left_out_and_named_once(
    tmp_path: Path, whole: bytes, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "alerts.db"
    path.write_bytes(whole)
    changed(path, f'UPDATE alert SET {wrong} WHERE labels LIKE \'%"gpu": "7"%\'')
    assert used(path) == (len(ALERTS) - 1, len(ALERTS))
    assert sum("makes no sense" in record.message for record in caplog.records) == 1


def test_other_rows_that_make_no_sense_end_nothing(tmp_path: Path, whole: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "alerts.db"
    path.write_bytes(whole)
    changed(
        path, "UPDATE fact SET value = 'abc'", "UPDATE event SET before = 'bogus' WHERE id = 1", "UPDATE acknowledgement SET labels = '['"
    )
    memory = Memory(path)
    assert memory.read().evaluated is None
    assert len(memory.events(0, 10**9)) == len(CHANGES) - 1
    assert not Acknowledgements(memory.file, lambda: 0.0).standing([own(1)])
    memory.close()
    assert caplog.text.count("no sense") == 2


def test_a_name_that_is_no_unicode_is_remembered(tmp_path: Path) -> None:
    odd = labels({"alertname": "Busy", "deployment": "\udce9"})
    memory = Memory(tmp_path / "alerts.db")
    memory.write(1, {("rule", odd): Alert(odd, {}, 1.0, State.PENDING, 1)}, [Transition(1, odd, None, State.PENDING, 1.0)])
    assert memory.error == ""
    assert [event.labels for event in memory.events(0, 2)] == [odd]
    assert list(memory.read().alerts["rule"]) == [odd]
    memory.close()


def changed(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
