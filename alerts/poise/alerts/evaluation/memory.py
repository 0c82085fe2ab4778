"""What the evaluator knows over restarts: alerts as they stand, when they were last looked at, and the history of their states.

A disk that takes nothing costs the memory of this time, never an evaluation: what could not be written is written with the next. Not thread-safe by
itself.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from poise.alerts.evaluation.active import ALERT_NAME, Alert, State, Transition
from poise.alerts.evaluation.tables import AcknowledgementRow, AlertRow, EventRow, FactRow, MemoryModel
from poise.history.promql.labels import Labels, get, labels
from poise.history.store.sqlite_file import SqliteFile, WriteFailed
from sqlalchemy import Connection, delete, insert, select

logger = logging.getLogger(__name__)

#: Seconds for which changes of state are kept.
HISTORY_SECONDS = 30 * 86_400.0
#: Changes that wait for a disk that takes nothing; the oldest go first.
_MOST_WAITING = 10_000
_EVALUATED = "evaluated"
#: Old events are looked for after so many milliseconds.
_PRUNE_EACH = 3_600_000

_alert, _event, _fact, _acknowledgement = (
    MemoryModel.metadata.tables[str(model.__tablename__)] for model in (AlertRow, EventRow, FactRow, AcknowledgementRow)
)

Key = tuple[str, Labels]


def _create(connection: Connection) -> None:
    MemoryModel.metadata.create_all(connection, [_alert, _event, _fact])


def _add_acknowledgements(connection: Connection) -> None:
    MemoryModel.metadata.create_all(connection, [_acknowledgement])


MIGRATIONS = (_create, _add_acknowledgements)


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a file had: alerts by rule, and the last evaluation (milliseconds), None for a new file."""

    alerts: Mapping[str, Mapping[Labels, Alert]]
    evaluated: int | None


class Memory:
    """The evaluator's file; `path` None remembers only while the process lives."""

    def __init__(self, path: Path | None, way_out: str = "choose another place with --history PATH") -> None:
        """Raises StoreError when the file cannot be used."""
        self._file = None if path is None else SqliteFile(path, MIGRATIONS, way_out)
        self._path = "" if path is None else str(path)
        self._saved: dict[Key, Alert] = {}
        self._waiting: list[Transition] = []
        self._events: list[Transition] = []  # without a file
        self._pruned = 0
        self.error = ""

    @property
    def file(self) -> SqliteFile | None:
        """Its file, for who keeps something beside it (acknowledgements.py)."""
        return self._file

    def close(self) -> None:
        """Gives the file free."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def read(self) -> Remembered:
        """What the last process left."""
        if self._file is None:
            return Remembered({}, None)
        alerts: dict[str, dict[Labels, Alert]] = {}
        with self._file.engine.connect() as connection:
            for row in connection.execute(select(_alert)):
                own = labels(json.loads(row.labels))
                alert = Alert(
                    own,
                    json.loads(row.annotations),
                    float(row.value),
                    State(row.state),
                    row.active_at,
                    row.fired_at,
                    row.resolved_at,
                    row.keep_firing_since,
                    row.sent,
                )
                alerts.setdefault(row.rule, {})[own] = alert
                self._saved[(row.rule, own)] = alert
            evaluated = connection.execute(select(_fact.c.value).where(_fact.c.name == _EVALUATED)).scalar()
        return Remembered(alerts, evaluated)

    def write(self, at: int, alerts: Mapping[Key, Alert], transitions: Iterable[Transition]) -> None:
        """Everything as of `at` (milliseconds): all alerts that stand, and what changed. Values that moved are not worth a write."""
        self._waiting = [*self._waiting, *transitions][-_MOST_WAITING:]
        if self._file is None:
            horizon = at - round(HISTORY_SECONDS * 1000)
            self._events = [event for event in [*self._events, *self._waiting][-_MOST_WAITING:] if event.at >= horizon]
            self._waiting = []
            return
        changed = {key: alert for key, alert in alerts.items() if _differs(self._saved.get(key), alert)}
        gone = [key for key in self._saved if key not in alerts]
        try:
            with self._file.writing() as connection:
                for rule, own in [*gone, *changed]:
                    connection.execute(delete(_alert).where(_alert.c.rule == rule, _alert.c.labels == _text(dict(own))))
                if changed:
                    connection.execute(insert(_alert), [_row(rule, alert) for (rule, _), alert in changed.items()])
                if self._waiting:
                    connection.execute(insert(_event), [_event_row(event) for event in self._waiting])
                connection.execute(insert(_fact).prefix_with("OR REPLACE").values(name=_EVALUATED, value=at))
                if at - self._pruned >= _PRUNE_EACH:
                    connection.execute(delete(_event).where(_event.c.at < at - round(HISTORY_SECONDS * 1000)))
        except WriteFailed as failure:
            self._tell(str(failure))
            return
        if at - self._pruned >= _PRUNE_EACH:
            self._pruned = at
        self._tell("")
        self._waiting = []
        self._saved = {**{key: one for key, one in self._saved.items() if key in alerts}, **changed}

    def events(self, start: int, end: int, name: str | None = None) -> Sequence[Transition]:
        """The changes of state of start ≤ time ≤ end (milliseconds), oldest first; of one alert when a name is given."""
        if self._file is None:
            return [event for event in self._events if start <= event.at <= end and name in (None, get(event.labels, ALERT_NAME))]
        wanted = select(_event).where(_event.c.at >= start, _event.c.at <= end).order_by(_event.c.at, _event.c.id)
        if name is not None:
            wanted = wanted.where(_event.c.name == name)
        with self._file.engine.connect() as connection:
            return [
                Transition(
                    row.at,
                    labels(json.loads(row.labels)),
                    State(row.before) if row.before else None,
                    State(row.after) if row.after else None,
                    float(row.value),
                    json.loads(row.annotations),
                )
                for row in connection.execute(wanted)
            ]

    def _tell(self, error: str) -> None:
        if error and error != self.error:
            logger.error(
                "%s: the state of alerts cannot be written (%s); they are evaluated all the same, and writing is tried again",
                self._path,
                error,
            )
        elif not error and self.error:
            logger.info("%s: written again", self._path)
        self.error = error


def _differs(saved: Alert | None, now: Alert) -> bool:
    """Whether more than value and words changed."""
    return saved is None or replace(saved, value=0.0, annotations={}) != replace(now, value=0.0, annotations={})


def _text(values: Mapping[str, str]) -> str:
    return json.dumps(values, ensure_ascii=False, sort_keys=True)


def _row(rule: str, alert: Alert) -> dict[str, object]:
    return {
        "rule": rule,
        "labels": _text(dict(alert.labels)),
        "annotations": _text(alert.annotations),
        "value": repr(alert.value),
        "state": alert.state.value,
        "active_at": alert.active_at,
        "fired_at": alert.fired_at,
        "resolved_at": alert.resolved_at,
        "keep_firing_since": alert.keep_firing_since,
        "sent": alert.sent,
    }


def _event_row(event: Transition) -> dict[str, object]:
    return {
        "at": event.at,
        "name": get(event.labels, ALERT_NAME),
        "labels": _text(dict(event.labels)),
        "before": event.before.value if event.before else "",
        "after": event.after.value if event.after else "",
        "value": repr(event.value),
        "annotations": _text(event.annotations),
    }
