"""One changer of a deployment at a time: a file lock that the kernel takes back when its holder dies.

Knows nothing of what is changed. Works on a disk that is full or cannot be written to: what says who the holder is and what for is written
beside the lock as well as it goes, and believed only when the kernel says that this process holds the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from poise.testbed import processes
from poise.testbed.errors import TestbedError
from poise.testbed.files import read_json_object, write_json
from poise.testbed.processes import PROC, ProcessIdentity, own_identity

# flock cannot be awaited with a deadline; it is tried again this often.
RETRY_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock. `identity` is None where the kernel does not tell (a process of another user or pid namespace); `purpose` is None
    for a program that is none of ours."""

    identity: ProcessIdentity | None
    purpose: str | None

    def __str__(self) -> str:
        who = "another process" if self.identity is None else f"process {self.identity.pid}"
        return who if self.purpose is None else f"{who} ({self.purpose})"


@contextmanager
def held(path: Path, purpose: str, timeout: float = 0.0) -> Iterator[None]:
    """Holds the lock for the body. Raises TestbedError after `timeout` seconds, naming the holder, and when there can be no lock file."""
    descriptor = _open(path)  # not inherited by children (PEP 446)
    try:
        deadline = time.monotonic() + timeout
        while not _try(descriptor, fcntl.LOCK_EX):
            if time.monotonic() >= deadline:
                raise TestbedError(_busy(path))
            time.sleep(RETRY_SECONDS)
        identity = own_identity()
        with contextlib.suppress(OSError):  # a full disk
            write_json(_note(path), {"pid": identity.pid, "start_ticks": identity.start_ticks, "purpose": purpose})
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # a disk that can no longer be written to
                _note(path).unlink()
    finally:
        os.close(descriptor)


def holder(path: Path, proc: Path = PROC) -> Holder | None:
    """Who holds the lock now and for what; None when nobody does."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        if _try(descriptor, fcntl.LOCK_SH):
            return None
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    note = read_json_object(_note(path)) or {}
    pid, ticks, purpose = note.get("pid"), note.get("start_ticks"), note.get("purpose")
    if isinstance(pid, int) and isinstance(ticks, int) and isinstance(purpose, str):
        noted = ProcessIdentity(pid, ticks)
        if processes.is_alive(noted, proc) and _holds(pid, status, proc):
            return Holder(noted, purpose)
    for stat in processes.all_stats(proc):
        if _holds(stat.pid, status, proc):
            return Holder(ProcessIdentity(stat.pid, stat.start_ticks), None)
    return Holder(None, None)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        for there in (path, path.parent):  # flock asks for no rights to write; where no file can be made, its folder does
            with contextlib.suppress(OSError):
                return os.open(there, os.O_RDONLY)
        raise TestbedError(f"{path} cannot be used as a lock: {error.strerror}") from None


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holds(pid: int, file: os.stat_result, proc: Path) -> bool:
    """Whether a descriptor of the process holds a lock of this file: its fdinfo has a line for each (proc(5), fs/locks.c)."""
    process = proc / str(pid)
    with contextlib.suppress(OSError):  # it ended or belongs to somebody else
        for descriptor in os.listdir(process / "fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                found = os.stat(process / "fd" / descriptor)
                if (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino):
                    lines = (process / "fdinfo" / descriptor).read_text().splitlines()
                    if any(line.startswith("lock:") and " FLOCK " in line for line in lines):
                        return True
    return False


def _note(path: Path) -> Path:
    return path.with_name(f"{path.name}.holder.json")


def _busy(path: Path) -> str:
    found = holder(path) or Holder(None, None)
    return f"{found} is working on the deployment in {path.parent}: wait for it, or end it, or use another --state-dir"
