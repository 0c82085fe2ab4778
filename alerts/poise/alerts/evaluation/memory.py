"""What the evaluator knows over restarts: alerts as they stand, when they were last looked at, and the history of their states.

A disk that takes nothing costs the memory of this time, never an evaluation: what could not be written is written with the next. Not thread-safe by
itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from poise.alerts.evaluation import rows
from poise.alerts.evaluation.active import ALERT_NAME, Alert, Transition
from poise.alerts.evaluation.tables import AcknowledgementRow, AlertRow, EventRow, FactRow, MemoryModel
from poise.history.promql.labels import Labels, get
from poise.history.store.sqlite_file import FileFailed, ReadFailed, SqliteFile, StoreError, WriteFailed
from sqlalchemy import Connection, bindparam, delete, insert, select

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

_DELETE = delete(_alert).where(_alert.c.rule == bindparam("of"), _alert.c.labels == bindparam("own"))

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
        self._lost = ""  # what a reader met that the next write puts aside
        self._begun = 0  # times that the file was begun anew
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
        """What the last process left; nothing where the file does not give it, and a lost file is begun anew."""
        if self._file is None:
            return Remembered({}, None)
        alerts: dict[str, dict[Labels, Alert]] = {}
        bad: list[tuple[object, object]] = []
        try:
            with self._file.reading() as connection:
                found = connection.execute(select(_alert)).all()
                evaluated = connection.execute(select(_fact.c.value).where(_fact.c.name == _EVALUATED)).scalar()
        except ReadFailed as failure:
            self._failed(failure, "read")
            return Remembered({}, None)
        for row in found:
            try:
                alert = rows.alert(row)
            except rows.BadRow as error:
                logger.error("%s: an alert of rule %s is left out, its row makes no sense: %s", self._path, row.rule, error)
                bad.append((row.rule, row.labels))
                continue
            alerts.setdefault(row.rule, {})[alert.labels] = alert
            self._saved[(row.rule, alert.labels)] = alert
        self._forget(bad)
        try:
            return Remembered(alerts, None if evaluated is None else rows.moment(evaluated))
        except rows.BadRow as error:
            logger.error("%s: when it was written last is not known (%s): its alerts are left out", self._path, error)
            return Remembered({}, None)

    def _forget(self, bad: Sequence[tuple[object, object]]) -> None:
        """Rows that make no sense are named once, not at each start."""
        if not bad or self._file is None:
            return
        try:
            with self._file.writing() as connection:
                connection.execute(_DELETE, [{"of": rule, "own": own} for rule, own in bad])
        except WriteFailed as failure:
            self._failed(failure, "written")

    def write(self, at: int, alerts: Mapping[Key, Alert], transitions: Iterable[Transition]) -> None:
        """Everything as of `at` (milliseconds): all alerts that stand, and what changed. Values that moved are not worth a write."""
        self._waiting = [*self._waiting, *transitions][-_MOST_WAITING:]
        if self._file is None:
            horizon = at - round(HISTORY_SECONDS * 1000)
            self._events = [event for event in [*self._events, *self._waiting][-_MOST_WAITING:] if event.at >= horizon]
            self._waiting = []
            return
        if self._lost:
            self._failed(FileFailed(self._lost, lost=True), "read")
        changed = {key: alert for key, alert in alerts.items() if _differs(self._saved.get(key), alert)}
        gone = [key for key in self._saved if key not in alerts]
        try:
            with self._file.writing() as connection:
                if gone:
                    connection.execute(_DELETE, [{"of": rule, "own": rows.text(dict(own))} for rule, own in gone])
                if changed:
                    connection.execute(
                        insert(_alert).prefix_with("OR REPLACE"), [rows.alert_row(rule, alert) for (rule, _), alert in changed.items()]
                    )
                if self._waiting:
                    connection.execute(insert(_event), [rows.event_row(event) for event in self._waiting])
                connection.execute(insert(_fact).prefix_with("OR REPLACE").values(name=_EVALUATED, value=at))
                if at - self._pruned >= _PRUNE_EACH:
                    connection.execute(delete(_event).where(_event.c.at < at - round(HISTORY_SECONDS * 1000)))
        except WriteFailed as failure:
            self._failed(failure, "written")
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
        begun = self._begun
        try:
            with self._file.reading() as connection:
                found = connection.execute(wanted).all()
        except ReadFailed as failure:
            # The next write puts a lost file aside: one thread writes, and what is read here may be the file of before.
            if failure.lost and begun == self._begun:
                self._lost = str(failure)
            logger.error("%s: the history of alerts cannot be read: %s", self._path, failure)
            return []
        events: list[Transition] = []
        bad: list[str] = []
        for row in found:
            try:
                events.append(rows.event(row))
            except rows.BadRow as error:
                bad.append(str(error))
        if bad:
            logger.error("%s: %d changes of alerts are left out, their rows make no sense: %s", self._path, len(bad), bad[0])
        return events

    def _failed(self, failure: FileFailed, what: str) -> None:
        """A lost file is begun anew, and everything that stands is written into it the next time."""
        if self._file is None:
            return
        if failure.lost:
            try:
                self._file.set_aside()
            except StoreError as error:
                failure = FileFailed(str(error), lost=True)
            else:
                self._saved, self._lost = {}, ""
                self._begun += 1
                self._tell("", what)
                return
        self._tell(str(failure), what)

    def _tell(self, error: str, what: str = "written") -> None:
        if error and error != self.error:
            logger.error(
                "%s: the state of alerts cannot be %s (%s); they are evaluated all the same, and writing is tried again",
                self._path,
                what,
                error,
            )
        elif not error and self.error:
            logger.info("%s: written again", self._path)
        self.error = error


def _differs(saved: Alert | None, now: Alert) -> bool:
    """Whether more than value and words changed."""
    return saved is None or replace(saved, value=0.0, annotations={}) != replace(now, value=0.0, annotations={})
