"""A SQLite file that one process has to itself: locked, its schema checked and migrated, put aside and begun anew when it is damaged or gone.

Knows SQLite and nothing of what lies in the file. Not thread-safe by itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import logging
import os
import sqlite3
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


class FileFailed(Exception):
    """The file does not do what was asked; the message says why.

    `lost`: it never will (damaged, removed, replaced). `SqliteFile.set_aside` begins a new one.
    """

    def __init__(self, words: str, *, lost: bool = False) -> None:
        super().__init__(words)
        self.lost = lost


class ReadFailed(FileFailed):
    """The disk does not give what is on it."""


class WriteFailed(FileFailed):
    """Nothing could be written just now: a full or read-only disk, a lost file."""


#: What SQLite says of a file whose pages make no sense (sqlite3.h: SQLITE_CORRUPT, SQLITE_NOTADB), in the low byte of its codes.
_DAMAGED_CODES = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
#: The same of a table that our own schema has.
_MISSING = ("no such table", "no such column")


@contextlib.contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A connection that reads; results must be fetched within.

    Raises:
        ReadFailed: the disk does not give what is on it.
    """
    try:
        with engine.connect() as connection:
            yield connection
    except (DatabaseError, OSError) as error:
        raise ReadFailed(_words(error), lost=_damaged(error)) from None


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
        self._identity: tuple[int, int] | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = self._locked()
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror or error}; {way_out}") from None
        self.engine = _engine_of(path)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Gives the file free."""
        self.engine.dispose()
        self._lock.close()

    def reading(self) -> contextlib.AbstractContextManager[Connection]:
        """As `reading`."""
        return reading(self.engine)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """One transaction.

        Raises:
            WriteFailed: the disk does not take it; nothing of the transaction stays.
        """
        if self._identity is None or _identity(self.path) != self._identity:
            # What is written to a file without a name is gone with the process, and nobody would be told.
            raise WriteFailed(f"{self.path.name} was removed or replaced while it was in use", lost=True)
        try:
            with self.engine.begin() as connection:
                yield connection
        except (DatabaseError, OSError) as error:
            raise WriteFailed(_words(error), lost=_damaged(error)) from None

    def set_aside(self) -> None:
        """Begins a new, empty file after a failure that says `lost`; what lies at the path is kept under another name. `engine` stays the same.

        Raises:
            StoreError: that cannot be done now; it can be tried again.
        """
        before, self._identity = self._identity, None
        self.engine.dispose()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            beside = self._lock_path()
            if _identity(beside) != _identity_of(os.fstat(self._lock.fileno())):
                fresh = self._locked()
                self._lock.close()
                self._lock = fresh
            found = _identity(self.path)
            if found is None:
                self._drop_journal()
                logger.error("%s was removed while it was in use; a new one is begun", self.path)
            elif before is not None:  # else it is what an earlier attempt began and could not end
                self._move("damaged" if found == before else "other")
            self._connect()
        except (OSError, SQLAlchemyError) as error:
            raise StoreError(f"{self.path} cannot be begun anew: {_words(error)}; {self._way_out}") from None

    def _move(self, why: str) -> None:
        """The file and its journal get names of their own, so that what can be saved of it can be read."""
        first = f"{self.path.name}.{why}-{int(time.time())}"
        names = (self.path.with_name(first if count == 0 else f"{first}-{count}") for count in itertools.count())
        aside = next(name for name in names if not name.exists())
        reason = "is damaged" if why == "damaged" else "was replaced by another file while it was in use"
        logger.error("%s %s; it is kept as %s, and a new one is begun", self.path, reason, aside.name)
        self.path.rename(aside)
        with contextlib.suppress(FileNotFoundError):
            # Whose journal lies beside a file that is not ours is not known: under the name `-wal` SQLite would play it into that file.
            self._beside("-wal").rename(aside.with_name(aside.name + ("-wal" if why == "damaged" else ".journal")))
        self._drop_journal()

    def _drop_journal(self) -> None:
        """A journal of another file must not be taken for one of ours."""
        for suffix in ("-wal", "-shm"):
            self._beside(suffix).unlink(missing_ok=True)

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def _lock_path(self) -> Path:
        return self._beside(".lock")

    def _locked(self) -> IO[str]:
        """The lock beside the file; it is gone with the process, however that ends."""
        handle = self._lock_path().open("a+", encoding="utf-8")
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

    def _open(self) -> None:
        try:
            self._connect()
            return
        except DatabaseError as error:
            if not _damaged(error):
                raise StoreError(f"{self.path}: {_words(error)}; {self._way_out}") from None
        try:
            self.engine.dispose()
            self._move("damaged")
            self._connect()
        except (OSError, SQLAlchemyError) as error:
            raise StoreError(f"{self.path} is damaged and cannot be put aside: {error}") from None

    def _connect(self) -> None:
        with self.engine.begin() as connection:
            self._migrate(connection)
        self._identity = _identity(self.path)

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
        # auto_vacuum only works when it is set before the first table, and later would make a connection that reads wait for one that writes; the
        # journal outlives kill -9, and no write waits for the disk.
        if cursor.execute("PRAGMA page_count").fetchone()[0] == 0:
            cursor.execute("PRAGMA auto_vacuum = INCREMENTAL")
        for pragma in ("journal_mode = WAL", "synchronous = NORMAL"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    return engine


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file lies at a path; None where there is none."""
    try:
        return _identity_of(path.stat())
    except OSError:
        return None


def _identity_of(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _damaged(error: Exception) -> bool:
    if not isinstance(error, DatabaseError):
        return False
    code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
    return code in _DAMAGED_CODES or any(words in str(error.orig) for words in _MISSING)


def _words(error: Exception) -> str:
    original = error.orig if isinstance(error, DatabaseError) else error
    if isinstance(original, OSError):
        return original.strerror or str(original)
    return str(original)
