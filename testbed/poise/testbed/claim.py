"""What makes a state directory the testbed's own: a marker file, written when the folder is made or found empty.

`up` works in nobody else's folder, and `down` removes nothing from one. Knows nothing of what a deployment keeps there.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from poise.testbed import plan
from poise.testbed.errors import TestbedError
from poise.testbed.files import read_json_object, write_json
from poise.testbed.paths import StateLayout

# What Poise left behind in a folder before there were markers, and what stays in one that has none: nothing of it is ever removed.
STAYING = {"lock", "lock.holder.json", "logs", "runs", "comparisons"}
IDENTITY_BYTES = 16


@dataclass(frozen=True, slots=True)
class Marker:
    """`deployment` is drawn at random: whatever is started in the folder carries it (ownership.py). `inode` is the folder's: a copy of the
    folder has another."""

    deployment: str
    inode: int


def read(layout: StateLayout) -> Marker | None:
    """None where there is no marker that can be understood."""
    value = read_json_object(layout.marker) or {}
    deployment, inode = value.get("deployment"), value.get("inode")
    return Marker(deployment, inode) if isinstance(deployment, str) and isinstance(inode, int) else None


def identity(layout: StateLayout) -> str | None:
    """What is started here carries this. None without a marker, and for a copy of the folder of a deployment that may run elsewhere."""
    found = read(layout)
    if found is None:
        return None
    try:
        return found.deployment if found.inode == layout.root.stat().st_ino else None
    except OSError:
        return None


def is_ours(layout: StateLayout) -> bool:
    """Whether what lies in the folder may be removed: it has the marker, or an earlier version of Poise worked in it."""
    return os.path.lexists(layout.marker) or _is_of_earlier_version(layout)


def is_empty(root: Path) -> bool:
    """Whether nothing is there."""
    try:
        return next(root.iterdir(), None) is None
    except FileNotFoundError:
        return True
    except OSError as error:
        raise _unusable(root, error) from None


def claim(layout: StateLayout) -> None:
    """Makes the folder the testbed's own: makes it, or takes an empty one, or one of an earlier version.

    Raises TestbedError for a folder with anything else in it, for one of another user, and where none can be made.
    """
    root = layout.root
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if root.stat().st_uid != os.getuid():
            raise TestbedError(f"{root} belongs to another user: use another --state-dir")
        if not os.path.lexists(layout.marker):
            _refuse_foreign(layout)
        if identity(layout) is None:
            write_json(layout.marker, {"deployment": secrets.token_hex(IDENTITY_BYTES), "inode": root.stat().st_ino})
    except OSError as error:
        raise _unusable(root, error) from None


def make(layout: StateLayout) -> None:
    """Claims the folder and makes all that a deployment needs in it; only their owner may read it, logs can hold what users typed.

    Raises TestbedError as `claim`.
    """
    claim(layout)
    for folder in (layout.logs, *layout.passing_folders):
        try:
            folder.mkdir(exist_ok=True, mode=0o700)
            found = folder.lstat()
        except OSError as error:
            raise _unusable(folder, error) from None
        if folder.is_symlink() or found.st_uid != os.getuid():
            raise TestbedError(f"{folder} leads elsewhere or belongs to another user: remove it, or use another --state-dir")


def _refuse_foreign(layout: StateLayout) -> None:
    started = f".{layout.marker.name}."  # of another `up` that is just claiming the folder
    there = sorted(path.name for path in layout.root.iterdir() if not path.name.startswith(started) and path != layout.marker)
    if set(there) <= STAYING - {"logs"} or _is_of_earlier_version(layout):
        return
    raise TestbedError(
        f"{layout.root} was not made by `poise testbed` and is not empty ({', '.join(there[:3])}{', …' if len(there) > 3 else ''}): "
        "use another --state-dir, or an empty folder"
    )


def _is_of_earlier_version(layout: StateLayout) -> bool:
    """Before markers, whatever began to work on a deployment wrote who it is beside the lock; and there is the plan, where it can be read."""
    if not layout.lock.is_file():
        return False
    note = read_json_object(layout.lock.with_name("lock.holder.json")) or {}
    if isinstance(note.get("pid"), int) and isinstance(note.get("start_ticks"), int) and isinstance(note.get("purpose"), str):
        return True
    with contextlib.suppress(TestbedError):
        plan.read(layout.plan)
        return True
    return False


def _unusable(path: Path, error: OSError) -> TestbedError:
    return TestbedError(f"{path} cannot be used for a deployment: {error.strerror}; use another --state-dir")
