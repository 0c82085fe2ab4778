"""Which alerts somebody has taken note of: on this dashboard alone, kept over restarts in the evaluator's file.

An acknowledgement changes nothing but what is shown: its alert is evaluated and sent on. It ends at its moment, with its alert, or by hand. Everything is
in memory as well, so that a disk that takes nothing costs only what a restart would have kept. May be used from several threads.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from poise.alerts.evaluation import rows
from poise.alerts.evaluation.active import State, Transition
from poise.alerts.evaluation.tables import AcknowledgementRow, MemoryModel
from poise.history.promql.labels import Labels
from poise.history.store.sqlite_file import ReadFailed, SqliteFile, WriteFailed
from sqlalchemy import delete, insert, select

logger = logging.getLogger(__name__)

#: Acknowledgements at the same time; whoever has more alerts than that needs another remedy.
MOST = 1_000

_table = MemoryModel.metadata.tables[str(AcknowledgementRow.__tablename__)]


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Who took note of the alert with exactly these labels, and until when. Moments in milliseconds."""

    labels: Labels
    by: str
    comment: str
    until: int
    made: int


class TooMany(Exception):
    """There are `MOST` already."""


def identifier(own: Labels) -> str:
    """A short name for an alert of these labels, for addresses."""
    return hashlib.sha256(_text(own).encode("utf-8", "surrogatepass")).hexdigest()[:16]


class Acknowledgements:
    """All that stand. `file` None keeps them while the process lives; `wall` gives Unix seconds."""

    def __init__(self, file: SqliteFile | None, wall: Callable[[], float]) -> None:
        self._file = file
        self._wall = wall
        self._lock = threading.Lock()
        self._standing: dict[Labels, Acknowledgement] = {}
        self._unwritten = False
        self.error = ""
        if file is not None:
            self._read(file)

    def _read(self, file: SqliteFile) -> None:
        """What the last process left; what cannot be read is left out. A file that is lost is put aside by its owner (memory.py)."""
        try:
            with file.reading() as connection:
                found = connection.execute(select(_table)).all()
        except ReadFailed as failure:
            self._tell(file, str(failure), "read")
            return
        for row in found:
            try:
                own, until, made = rows.own_labels(row.labels), rows.moment(row.until), rows.moment(row.made)
            except rows.BadRow as error:
                logger.error("%s: an acknowledgement is left out, its row makes no sense: %s", file.path, error)
                continue
            self._standing[own] = Acknowledgement(own, str(row.by), str(row.comment), until, made)

    def add(self, one: Acknowledgement) -> None:
        """Takes it in, in place of an older one of its alert. Raises TooMany."""
        with self._lock:
            self._expire()
            if one.labels not in self._standing and len(self._standing) >= MOST:
                raise TooMany(f"{MOST} alerts are acknowledged already; remove one of them first")
            self._standing[one.labels] = one
            self._write()

    def remove(self, own: Labels) -> bool:
        """Ends that of an alert by hand; whether there was one."""
        with self._lock:
            self._expire()
            there = self._standing.pop(own, None) is not None
            if there:
                self._write()
            return there

    def heed(self, changes: Iterable[Transition]) -> None:
        """Ends those whose alerts are over."""
        over = {change.labels for change in changes if change.after in (None, State.INACTIVE)}
        with self._lock:
            self._drop([own for own in self._standing if own in over])

    def standing(self, active: Collection[Labels]) -> Mapping[Labels, Acknowledgement]:
        """Those of the alerts that are on now. One whose alert is not among them went with its rule and ends here."""
        with self._lock:
            self._expire()
            self._drop([own for own in self._standing if own not in active])
            return dict(self._standing)

    def _expire(self) -> None:
        now = self._wall() * 1000
        self._drop([own for own, one in self._standing.items() if one.until <= now])

    def _drop(self, over: Collection[Labels]) -> None:
        for own in over:
            del self._standing[own]
        if over or self._unwritten:
            self._write()

    def _write(self) -> None:
        """All of them: there are few, and what could not be written before is made up for."""
        if self._file is None:
            return
        values = [
            {"labels": rows.text(dict(one.labels)), "by": one.by, "comment": one.comment, "until": one.until, "made": one.made}
            for one in self._standing.values()
        ]
        error = ""
        try:
            with self._file.writing() as connection:
                connection.execute(delete(_table))
                if values:
                    connection.execute(insert(_table), values)
        except WriteFailed as failure:
            error = str(failure)
        self._tell(self._file, error, "written")
        self._unwritten = bool(error)

    def _tell(self, file: SqliteFile, error: str, what: str) -> None:
        if error and error != self.error:
            logger.error("%s: acknowledgements cannot be %s (%s); they hold until this process ends", file.path, what, error)
        self.error = error


def _text(own: Labels) -> str:
    return json.dumps(dict(own), ensure_ascii=False, sort_keys=True)
