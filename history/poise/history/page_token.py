"""The token that whoever changes something through a running `poise up` has to show: where it is kept, how it is made, read and compared.

A file of its own beside history.db that only its owner reads, looked at with every use, so that `poise token --new` holds at once. Knows no HTTP. The
token stands in no error and no page; in the log only where there is no other place to see it.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import logging
import os
import re
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from poise.history.settings import default_path

logger = logging.getLogger(__name__)

_FILE = "token"
#: Random bytes of a token: 256 bits, 43 characters.
_RANDOM_BYTES = 32
#: What a token may look like, also one that a person chose; shorter ones could be guessed.
_TOKEN = re.compile(r"[A-Za-z0-9_.~+/=-]{32,256}")
_MOST_BYTES = 1_000
_NEW = "`poise token --new` makes another"


class TokenError(Exception):
    """There is no usable token; the message names the file, what is wrong and the way out, never what it holds."""


def token_path(environment: Mapping[str, str]) -> Path:
    """`token` in Poise's state folder (see `settings.default_path`)."""
    return default_path(environment).with_name(_FILE)


def checked(text: str, where: str, way_out: str) -> str:
    """The token that a text is. Raises TokenError naming where it stood."""
    token = text.strip()
    if not token:
        raise TokenError(f"{where} is empty; {way_out}")
    if not _TOKEN.fullmatch(token):
        raise TokenError(f"{where} holds no token (32 to 256 characters that a header can carry, on one line); {way_out}")
    return token


def read(path: Path, way_out: str = _NEW) -> str:
    """The token of a file. Raises TokenError: there is none, it cannot be read, is empty or holds something else."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise TokenError(f"{path} is no ordinary file; remove it, then {way_out}")
            content = os.read(handle, _MOST_BYTES)
        finally:
            os.close(handle)
    except FileNotFoundError:
        raise TokenError(f"there is no {path}; {way_out}") from None
    except OSError as error:
        raise TokenError(f"{path} cannot be read: {error.strerror or error}; {way_out}, as the user that `poise up` runs as") from None
    return checked(content.decode("utf-8", "replace"), str(path), way_out)


def make(path: Path, *, anew: bool = False) -> str:
    """A new token, in a file that only its owner reads; without `anew` one that came to be there meanwhile stays and is returned.

    The file is whole at every moment. Raises TokenError.
    """
    token = secrets.token_urlsafe(_RANDOM_BYTES)
    beside = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, f"{path.parent} is no folder") from None
        try:
            handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(handle, "w", encoding="ascii") as file:
                os.fchmod(handle, 0o600)
                file.write(f"{token}\n")
                file.flush()
                os.fsync(handle)
            if anew:
                os.replace(beside, path)
                return token
            os.link(beside, path)
        finally:
            with contextlib.suppress(OSError):
                beside.unlink()
    except FileExistsError:
        return read(path)
    except OSError as error:
        raise TokenError(
            f"{path} cannot be made: {error.strerror or error}; choose another folder with POISE_STATE_DIR, or make room there"
        ) from None
    return token


class PageToken:
    """What requests are compared with: a file, or a token of this process alone."""

    def __init__(self, path: Path | None, own: str = "") -> None:
        self._path = path
        self._own = own or secrets.token_urlsafe(_RANDOM_BYTES)

    @property
    def shown_by(self) -> str:
        """Where a person finds it, in words."""
        return "the log of this `poise up` shows" if self._path is None else "`poise token` prints on the machine of `poise up`"

    def matches(self, given: str) -> bool:
        """Whether it is this, in a time that tells nothing about it. Raises TokenError when the file is of no use."""
        expected = self._own if self._path is None else read(self._path)
        return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())


def opened(path: Path | None) -> PageToken:
    """The token of a `poise up`, made at its first start; `path` None: of this process alone. Says in the log how to see it.

    Never raises: a page that cannot be changed still shows everything.
    """
    if path is not None:
        try:
            if not os.path.lexists(path):
                make(path)
                logger.info("silences and acknowledgements need a token: `poise token` shows it (kept in %s)", path)
            else:
                read(path)
                _tell_if_loose(path)
        except TokenError as error:
            logger.error("%s", error)
            if os.path.lexists(path):
                # What is there may be mended while this process runs; until then it answers every change with these words.
                return PageToken(path)
        else:
            return PageToken(path)
    own = secrets.token_urlsafe(_RANDOM_BYTES)
    logger.info("silences and acknowledgements need this token, which holds until this process ends and is shown only here: %s", own)
    return PageToken(None, own)


def _tell_if_loose(path: Path) -> None:
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            logger.warning("%s can be read by others (mode %04o): chmod 600 it, and `poise token --new` if somebody may have", path, mode)
