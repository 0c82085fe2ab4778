"""Basic auth against bcrypt hashes: what a hash costs is paid once per password, and how long an answer takes does not tell who is a user.

A hash takes 0.07 s of a core (cost 10). So outcomes are remembered, never the passwords: under a keyed digest whose key dies with the process.
Right and wrong ones are kept apart, so that a flood of wrong ones pushes no right one out. One hash is computed at a time, as in
exporter-toolkit, and few may wait for it: whoever floods us gets refusals, and the node keeps its cores.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from poise.exporter.web import document

#: Remembered outcomes of each kind; a handful of scrapers, and the mistyped password of one of them.
MOST_REMEMBERED = 100
#: Requests that may wait for a hash at the same time; with a hash of 0.07 s the last one waits about half a second.
MOST_WAITING = 8
#: bcrypt looks at no more of a password (all implementations, OpenBSD's original too).
_BCRYPT_BYTES = 72
#: The salt and digest of no password at all, for users that there are not; only its cost matters.
_NOBODY = "QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"


class Busy(Exception):
    """Too many requests wait for their password to be checked."""


def credentials(header: str | None) -> tuple[str, bytes] | None:
    """User and password of an Authorization header; None when it has none, or is no basic auth."""
    scheme, _, encoded = (header or "").strip().partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (user.decode(), password) if colon else None
    except (binascii.Error, ValueError):
        return None


class Passwords:
    """Tells whether credentials are right, and remembers it."""

    def __init__(self, *, most_waiting: int = MOST_WAITING) -> None:
        self._secret = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._wrong: OrderedDict[bytes, None] = OrderedDict()
        self._memory = threading.Lock()
        self._one_at_a_time = threading.Lock()
        self._places = threading.BoundedSemaphore(most_waiting)

    def right(self, users: Mapping[str, str], header: str | None) -> bool:
        """Whether an Authorization header names one of `users` (name → bcrypt hash) with his password.

        Raises:
            Busy: too many others wait for the same answer.
        """
        given = credentials(header)
        if given is None:
            return False
        user, password = given
        known = user in users
        # For a user that there is not, as long as for one that there is: the highest cost among them.
        hashed = users[user] if known else f"$2b${max(value[4:6] for value in users.values())}${_NOBODY}"
        key = self._key(user, hashed, password)
        with self._memory:
            for outcome, remembered in ((True, self._right), (False, self._wrong)):
                if key in remembered:
                    remembered.move_to_end(key)
                    return outcome
        outcome = self._compare(password, hashed) and known
        with self._memory:
            remembered = self._right if outcome else self._wrong
            remembered[key] = None
            if len(remembered) > MOST_REMEMBERED:
                remembered.popitem(last=False)
        return outcome

    def _compare(self, password: bytes, hashed: str) -> bool:
        bcrypt: Any = document.library("bcrypt", "bcrypt", "basic_auth_users")
        if not self._places.acquire(blocking=False):
            raise Busy
        try:
            with self._one_at_a_time:
                return bool(bcrypt.checkpw(password[:_BCRYPT_BYTES], hashed.encode()))
        finally:
            self._places.release()

    def _key(self, user: str, hashed: str, password: bytes) -> bytes:
        digest = hashlib.blake2b(key=self._secret)
        for part in (user.encode(), hashed.encode(), password):
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.digest()
