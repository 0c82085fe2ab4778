"""The web configuration in force: read at the start, read again when one of its files changed, and kept when what is there now is wrong.

Owns when files are read and what is logged of it. What may stand in them is config.py's; who asks is the server, once per connection.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from poise.exporter.settings import SettingsError, content
from poise.exporter.web import tls
from poise.exporter.web.config import RateLimit, TlsConfig, WebConfig, parse
from poise.exporter.web.passwords import Passwords

logger = logging.getLogger(__name__)

#: How long a person's wish to read the files again waits for a look that is going on.
RENEW_SECONDS = 2.0
#: How a file is told from what it was: whose file it is, its size, and when it was written, in ns.
_Mark = tuple[int, int, int, int]


class Limiter:
    """A bucket of `burst` requests that fills by one per interval, as exporter-toolkit's `rate_limit`."""

    def __init__(self, limit: RateLimit, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._clock = clock
        self._lock = threading.Lock()
        self._left = float(limit.burst)
        self._at = clock()

    def take(self) -> bool:
        """Whether one more request is within the limit."""
        with self._lock:
            now = self._clock()
            self._left = min(float(self._limit.burst), self._left + max(0.0, now - self._at) / self._limit.interval)
            self._at = now
            if self._left < 1:
                return False
            self._left -= 1
            return True


@dataclass(frozen=True, slots=True)
class InForce:
    """A configuration that was found good, with what was made of it."""

    config: WebConfig
    context: ssl.SSLContext | None
    limiter: Limiter | None
    passwords: Passwords


class WebSecurity:
    """What a web configuration file demands, always as of its newest good state. Used by the threads of all connections."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Reads the file and what it names.

        Raises:
            SettingsError: the file or one that it names is wrong or cannot be read; names file, key and the way out.
        """
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._files: tuple[Path, ...] = (path,)
        self._marks = self._look()
        self._passwords = Passwords()
        self._now = self._read(None)

    def current(self) -> InForce:
        """The configuration in force, after a look at whether the files have changed.

        While another thread looks, on a disk that hangs for ever, nobody waits for it.
        """
        if self._lock.acquire(blocking=False):
            try:
                marks = self._look()
                if marks != self._marks:
                    self._marks = marks
                    self._renew()
            finally:
                self._lock.release()
        return self._now

    def renew(self) -> bool:
        """Reads the files again, changed or not; whether what they say is in force now. What is wrong with them is logged."""
        if not self._lock.acquire(timeout=RENEW_SECONDS):
            logger.error("--web.config.file=%s: its files cannot be looked at; does their disk hang?", self._path)
            return False
        try:
            self._marks = self._look()
            return self._renew()
        finally:
            self._lock.release()

    def _renew(self) -> bool:
        try:
            self._now = self._read(self._now)
        except SettingsError as error:
            logger.error("%s; what was read before stays in force", error)
            return False
        logger.info("web configuration %s was read again", self._path)
        return True

    def _read(self, before: InForce | None) -> InForce:
        try:
            config = parse(content(self._path, "--web.config.file").decode(), self._path.parent)
        except OSError as error:
            raise SettingsError(f"--web.config.file={self._path}: {error.strerror or error}") from None
        except ValueError as error:
            words = "not text in UTF-8" if isinstance(error, UnicodeError) else str(error)
            raise SettingsError(f"--web.config.file={self._path}: {words}") from None
        self._watch(config.tls)
        if before is not None and (config.tls is None) is not (before.config.tls is None):
            switched = "off" if config.tls is None else "on"
            raise SettingsError(
                f"--web.config.file={self._path}: tls_server_config would switch TLS {switched}; restart the exporter for that"
            )
        try:
            context = tls.context(config.tls) if config.tls is not None else None
        except ValueError as error:
            raise SettingsError(f"--web.config.file={self._path}: {error}") from None
        limit = config.rate_limit
        if before is not None and before.config.rate_limit == limit:
            limiter = before.limiter
        else:
            limiter = Limiter(limit, self._clock) if limit is not None else None
        return InForce(config, context, limiter, self._passwords)

    def _watch(self, config: TlsConfig | None) -> None:
        """From now on these files are looked at too; those of a configuration that turns out wrong, so that mending them is seen."""
        self._files = (self._path, *(config.files if config is not None else ()))
        self._marks = {**_marks(self._files), self._path: self._marks[self._path]}

    def _look(self) -> dict[Path, _Mark | None]:
        return _marks(self._files)


def _marks(files: Iterable[Path]) -> dict[Path, _Mark | None]:
    return {path: _mark(path) for path in files}


def _mark(path: Path) -> _Mark | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
