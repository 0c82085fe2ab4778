"""A SQLite file that one process has to itself: locked, its schema checked and migrated, put aside when it is damaged.

Knows SQLite and nothing of what lies in the file. Not thread-safe by itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DatabaseError, SQLAlchemyError

logger = logging.getLogger(__name__)

#: Seconds that a statement waits for another process's lock; no other process should have the file.
_BUSY_SECONDS = 5.0

#: Step n brings a file of schema n to n + 1; the first makes the tables. Their number is the schema that is known (PRAGMA user_version).
Migrations = Sequence[Callable[[Connection], None]]


class StoreError(Exception):
    """The file cannot be used; the message names it, says why, and the way out."""


class WriteFailed(Exception):
    """Nothing could be written just now (a full or read-only disk); the message says why."""


class SqliteFile:
    """One file, used by this process alone. `way_out` is what messages tell a person to do instead."""

    def __init__(self, path: Path, migrations: Migrations, way_out: str) -> None:
        """Opens or makes the file.

        Raises:
            StoreError: another process has it, a newer Poise made it, or it cannot be opened.
        """
        self.path = path
        self._migrations = migrations
        self._way_out = way_out
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = self._locked()
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror or error}; {way_out}") from None
        try:
            self.engine = self._open()
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        """Gives the file free."""
        self.engine.dispose()
        self._lock.close()

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """One transaction.

        Raises:
            WriteFailed: the disk does not take it; nothing of the transaction stays.
        """
        try:
            with self.engine.begin() as connection:
                yield connection
        except (DatabaseError, OSError) as error:
            raise WriteFailed(_words(error)) from None

    def _locked(self) -> IO[str]:
        """The lock beside the file; it is gone with the process, however that ends."""
        handle = self.path.with_name(self.path.name + ".lock").open("a+", encoding="utf-8")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.seek(0)
            owner = handle.read().strip() or "unknown"
            handle.close()
            raise StoreError(f"{self.path} is in use by process {owner}; end that one, or {self._way_out}") from None
        handle.truncate(0)
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        return handle

    def _open(self) -> Engine:
        try:
            return self._connect()
        except DatabaseError as error:
            if not _damaged(error):
                raise StoreError(f"{self.path}: {_words(error)}; {self._way_out}") from None
        aside = self.path.with_name(f"{self.path.name}.damaged-{int(time.time())}")
        logger.error("%s is damaged; it is kept as %s, and a new one is begun", self.path, aside.name)
        try:
            for suffix in ("-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            self.path.rename(aside)
            return self._connect()
        except (OSError, SQLAlchemyError) as error:
            raise StoreError(f"{self.path} is damaged and cannot be put aside: {error}") from None

    def _connect(self) -> Engine:
        engine = _engine_of(self.path)
        try:
            with engine.begin() as connection:
                self._migrate(connection)
            return engine
        except BaseException:
            engine.dispose()
            raise

    def _migrate(self, connection: Connection) -> None:
        known = len(self._migrations)
        found = int(connection.execute(text("PRAGMA user_version")).scalar_one())
        if found > known:
            raise StoreError(
                f"{self.path} was made by a newer Poise (schema {found}, this one knows {known}); use that one, or {self._way_out}"
            )
        if found == known:
            return
        for step in self._migrations[found:]:
            step(connection)
        connection.execute(text(f"PRAGMA user_version = {known}"))


def _engine_of(path: Path) -> Engine:
    engine = create_engine(
        URL.create("sqlite+pysqlite", database=str(path)), connect_args={"check_same_thread": False, "timeout": _BUSY_SECONDS}
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        # auto_vacuum only works when it is set before the first table; the journal outlives kill -9, and no write waits for the disk.
        for pragma in ("auto_vacuum = INCREMENTAL", "journal_mode = WAL", "synchronous = NORMAL"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    return engine


def _damaged(error: DatabaseError) -> bool:
    words = str(error.orig)
    return "malformed" in words or "not a database" in words or "file is encrypted" in words


def _words(error: Exception) -> str:
    original = error.orig if isinstance(error, DatabaseError) else error
    return str(original)
