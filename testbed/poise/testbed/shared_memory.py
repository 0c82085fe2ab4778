"""Files that killed vLLM servers leave in /dev/shm: which are ours, and their removal.

vLLM 0.32 makes /dev/shm/psm_* (multiprocessing.shared_memory, its message queues) and /dev/shm/vllm_dist_* (all-reduce of
the CPU build) and sem.mp-* (multiprocessing's semaphores), NCCL nccl-* (until both sides have it). Other programs use the folder too, so a file is ours only if a process of ours was seen to hold it: that is
noted, with the inode, while they live. (The files in the temporary folder need no such care: each deployment has its own.)
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from poise.testbed.files import read_json_object, write_json

SHARED_MEMORY = Path("/dev/shm")
PREFIXES = ("psm_", "vllm_dist_", "sem.mp-", "nccl-")


@dataclass(frozen=True, slots=True)
class Segment:
    """One file in shared memory. A name may be used again, name and inode together are not."""

    name: str
    inode: int


def held_by(pids: Iterable[int], folder: Path = SHARED_MEMORY, proc: Path = Path("/proc")) -> set[Segment]:
    """The segments in `folder` that any of `pids` maps or has open; processes that are gone hold nothing.

    They are matched by inode: glibc makes a semaphore under a temporary name and links it to its own afterwards, so that a
    process maps a file that is called "deleted".
    """
    names: dict[int, str] = {}
    for name in os.listdir(folder) if folder.is_dir() else []:
        if name.startswith(PREFIXES):
            with contextlib.suppress(FileNotFoundError):
                names[(folder / name).stat().st_ino] = name
    if not names:
        return set()
    held = {inode for pid in pids for inode in _inodes(proc / str(pid), f"{folder}/")}
    return {Segment(names[inode], inode) for inode in held & names.keys()}


def _inodes(process: Path, folder: str) -> set[int]:
    """Inodes of the files below `folder` that a process maps or has open."""
    found = set()
    with contextlib.suppress(OSError):  # it ended, or closed a descriptor, while we looked
        with (process / "maps").open(errors="replace") as lines:
            for line in lines:  # address, permissions, offset, device, inode, path (proc(5))
                parts = line.rstrip("\n").split(maxsplit=5)
                if len(parts) == 6 and parts[5].startswith(folder):
                    found.add(int(parts[4]))
        for descriptor in os.listdir(process / "fd"):
            if os.readlink(process / "fd" / descriptor).startswith(folder):
                found.add((process / "fd" / descriptor).stat().st_ino)
    return found


def note(path: Path, segments: set[Segment]) -> None:
    """Adds `segments` to those noted in `path`. Raises OSError: a full disk, one that cannot be written to."""
    noted = read_noted(path)
    if not segments <= noted:
        merged = sorted(noted | segments, key=lambda segment: (segment.name, segment.inode))
        write_json(path, {"segments": [[segment.name, segment.inode] for segment in merged]})


def read_noted(path: Path) -> set[Segment]:
    value = read_json_object(path) or {}
    pairs = value.get("segments")
    return {
        Segment(pair[0], pair[1])
        for pair in (pairs if isinstance(pairs, list) else [])
        if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], int)
    }


def remove(segments: Iterable[Segment], folder: Path = SHARED_MEMORY) -> list[str]:
    """Removes those that are still the same file and called as such files are; returns the names removed."""
    removed = []
    for segment in sorted(segments, key=lambda item: item.name):
        path = folder / Path(segment.name).name
        try:
            if not path.name.startswith(PREFIXES) or path.lstat().st_ino != segment.inode:
                continue
            path.unlink()
        except OSError:  # it is gone, or somebody else's
            continue
        removed.append(segment.name)
    return removed
