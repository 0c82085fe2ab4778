"""A store's file as another process reads it, whether its own is running or not. Nothing is written, not even a lock.

What is read is the file of one moment: ticks when it was opened, and chunks of before.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from poise.history.promql.errors import Unavailable
from poise.history.promql.labels import Labels
from poise.history.promql.nodes import Matcher
from poise.history.promql.series import StoredSeries
from poise.history.store.database import MIGRATIONS
from poise.history.store.head import Head
from poise.history.store.reader import Reader
from poise.history.store.selecting import known, labels_of, newer, with_older
from poise.history.store.sqlite_file import ReadFailed, StoreError
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DatabaseError
from sqlalchemy.pool import QueuePool

#: The schema that is read; another process's file is never brought up to date from here.
SCHEMA = len(MIGRATIONS)
#: Seconds that a statement waits while the store's own process holds the file.
_BUSY_SECONDS = 5.0
#: After everything: newer than any sample.
_LATEST = 1 << 60


class ReadOnlyStore:
    """The series of a file."""

    def __init__(self, path: Path) -> None:
        """Opens the file and reads its newest samples.

        Raises:
            StoreError: there is none, it is no history, or of another schema.
        """
        self.path = path
        self._engine = create_engine("sqlite+pysqlite://", creator=self._connect, poolclass=QueuePool)
        self.reader = Reader(self._engine)
        self.head = Head(0)
        try:
            with self._engine.connect() as connection:
                found = int(connection.execute(text("PRAGMA user_version")).scalar_one())
            if found != SCHEMA:
                raise StoreError(_other_schema(path, found))
            floor = self.head.restore(self.reader)
            self.head.floor = _LATEST if floor is None else floor
        except (DatabaseError, ReadFailed, sqlite3.Error) as error:
            self.close()
            raise StoreError(
                f"{path} cannot be read: {getattr(error, 'orig', None) or error}; name a history with --history PATH"
            ) from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Gives the file free."""
        self._engine.dispose()

    def select(self, matchers: Sequence[Matcher], start: int, end: int) -> list[StoredSeries]:
        """As `poise.history.promql.series.Storage` says. Raises Unavailable."""
        try:
            return with_older(newer(self.head, matchers, start, end), self.reader, start, end)
        except ReadFailed as failure:
            raise Unavailable(f"{self.path} cannot be read: {failure}") from None

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> list[Labels]:
        """The labels of the series that fit and have samples from start to end (milliseconds). Raises Unavailable."""
        try:
            return labels_of(known(self.head, matchers, start, end), self.reader, start, end)
        except ReadFailed as failure:
            raise Unavailable(f"{self.path} cannot be read: {failure}") from None

    def _connect(self) -> sqlite3.Connection:
        if not self.path.is_file():
            raise StoreError(f"{self.path}: there is no history; name one with --history PATH, or start `poise up`, which makes one")
        place = f"file:{quote(str(self.path.absolute()))}?mode=ro"
        try:
            return _opened(place)
        except sqlite3.OperationalError:
            if _has_bytes(self.path.with_name(self.path.name + "-wal")):
                raise
            # A folder that we may not write to, and nothing in the journal: the file is whole as it stands.
            return _opened(place + "&immutable=1")


def _opened(place: str) -> sqlite3.Connection:
    connection = sqlite3.connect(place, uri=True, timeout=_BUSY_SECONDS, check_same_thread=False)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _has_bytes(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _other_schema(path: Path, found: int) -> str:
    if found > SCHEMA:
        return f"{path} was made by a newer Poise (schema {found}, this one knows {SCHEMA}); use that one"
    return (
        f"{path} is no history of this Poise (schema {found} instead of {SCHEMA}); start `poise up` on it once, which brings it up to date"
    )
