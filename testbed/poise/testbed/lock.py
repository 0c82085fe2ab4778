"""One changer of a deployment at a time: a file lock that the kernel takes back when its holder dies.

Knows nothing of what is changed.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from poise.testbed.errors import TestbedError
from poise.testbed.files import read_json_object, write_json
from poise.testbed.processes import ProcessIdentity, own_identity

# flock cannot be awaited with a deadline; it is tried again this often.
RETRY_SECONDS = 0.1


@contextmanager
def held(path: Path, purpose: str, timeout: float = 0.0) -> Iterator[None]:
    """Holds the lock for the body. Raises TestbedError after `timeout` seconds, naming the holder."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)  # not inherited by children (PEP 446)
    try:
        deadline = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TestbedError(_busy(path)) from None
                time.sleep(RETRY_SECONDS)
        identity = own_identity()
        write_json(_note(path), {"pid": identity.pid, "start_ticks": identity.start_ticks, "purpose": purpose})
        yield
    finally:
        os.close(descriptor)


def holder(path: Path) -> tuple[ProcessIdentity, str] | None:
    """Who holds the lock now and for what; None when nobody does."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        note = read_json_object(_note(path)) or {}
        pid, ticks = note.get("pid"), note.get("start_ticks")
        if isinstance(pid, int) and isinstance(ticks, int):
            return ProcessIdentity(pid, ticks), str(note.get("purpose", "something"))
        return None
    else:
        return None
    finally:
        os.close(descriptor)


def _note(path: Path) -> Path:
    return path.with_name(f"{path.name}.holder.json")


def _busy(path: Path) -> str:
    found = holder(path)
    who = f"process {found[0].pid} ({found[1]})" if found else "another process"
    return f"{who} is working on the deployment in {path.parent}: wait for it, or end it, or use another --state-dir"
