"""Takes a deployment down so that nothing of it is left: processes, shared memory, temporary files.

Works from what lies in the state directory and what runs; needs no launcher, and no knowledge of shapes or vLLM. Doing it
twice is as good as once. Whose a process is, ownership.py decides; whose a folder is, claim.py: nothing of others is touched. Ending needs no
writing: it works on a disk that is full or read-only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from poise.testbed import claim, interrupts, lock, ownership, processes, records, shared_memory
from poise.testbed.errors import TestbedError
from poise.testbed.paths import StateLayout
from poise.testbed.processes import ProcessIdentity, ProcessStat
from poise.testbed.records import END_ORDER, Record

# Pages and exporters leave within two seconds of SIGTERM. Engines are not asked: vLLM needs 3 to 15 s to leave, makes and
# removes shared memory meanwhile, and has nothing to save.
GRACE_SECONDS = 5.0
FREEZE_SECONDS = 5.0
# A launcher that is told to stop takes its own deployment down first.
LAUNCHER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Removed:
    """What taking down found and removed: names of recorded processes, pids of processes, shared memory files."""

    names: tuple[str, ...]
    pids: tuple[int, ...]
    segments: tuple[str, ...]


def take_down(layout: StateLayout, say: Callable[[str], None] = lambda _: None, lock_held: bool = False) -> Removed:
    """Ends everything of the deployment in `layout`.

    A launcher that still works on the deployment is asked to stop first. `lock_held`: the caller holds the lock already.
    Raises TestbedError when a process cannot be ended, when the folder was not made by the testbed and is not empty (nothing in it was
    touched then), and, with everything ended, when files cannot be removed.
    """
    if claim.is_empty(layout.root):
        # Its folder may have been removed while it ran.
        with interrupts.held_off():
            return _take_down(layout, say)
    if not claim.is_ours(layout):
        raise TestbedError(f"{layout.root} was not made by `poise testbed`: nothing was touched; name another --state-dir")
    if lock_held:
        with interrupts.held_off():
            return _take_down(layout, say)
    _stop_holder(layout, say)
    with lock.held(layout.lock, "taking the deployment down", timeout=LAUNCHER_SECONDS), interrupts.held_off():
        with contextlib.suppress(TestbedError):  # one of an earlier version gets its marker, unless its disk is full
            claim.claim(layout)
        return _take_down(layout, say)


def end_processes(layout: StateLayout, names: Iterable[str], say: Callable[[str], None] = lambda _: None) -> list[int]:
    """Ends the recorded processes `names` with all that they started, and removes their records and shared memory. The caller
    holds the lock. Returns the pids that were ended. Raises TestbedError."""
    wanted = set(names)
    chosen = [record for record in records.read_all(layout.records) if record.name in wanted]
    ending = _Ending(layout)
    ending.end(chosen, say)
    ending.finish()
    return ending.pids


def kill(layout: StateLayout, name: str) -> list[int]:
    """Kills (SIGKILL) a recorded process with all that it started, as the kernel does when memory runs out; the record stays,
    so that everybody sees what died. The caller holds the lock. Returns the pids. Raises TestbedError."""
    ending = _Ending(layout)
    ending.kill_sessions([record for record in records.read_all(layout.records) if record.name == name])
    ending.finish()
    return ending.pids


def _stop_holder(layout: StateLayout, say: Callable[[str], None]) -> None:
    """Asks a launcher to stop; a program that is none of ours, or that called us, is waited for and not signalled."""
    found = lock.holder(layout.lock)
    if found is None or found.identity is None or found.purpose is None:
        return
    if found.identity.pid in ownership.kept(processes.all_stats()):
        return
    say(f"stopping {found}")
    processes.send(found.identity, signal.SIGTERM)
    processes.wait_gone([found.identity], LAUNCHER_SECONDS)


def _take_down(layout: StateLayout, say: Callable[[str], None]) -> Removed:
    ending = _Ending(layout)
    recorded = records.read_all(layout.records)
    for role in END_ORDER:
        ending.end([record for record in recorded if record.role == role and record.pid != os.getpid()], say)
    while True:
        # What no record names: its record was damaged, or its server died and left children.
        ending.kill(ending.ours)
        ending.clear()
        # Looked for once more: a process that was just being started when we looked first has either made its session by
        # now, or cannot write its record any more and ends (starter.py).
        if not ending.ours():
            break
    ending.finish()
    return Removed(tuple(record.name for record in recorded if record.pid in ending.pids), tuple(ending.pids), tuple(ending.segments))


class _Ending:
    """Processes on their way out: what was ended, what they held in shared memory, and what could not be removed."""

    def __init__(self, layout: StateLayout) -> None:
        self.pids: list[int] = []
        self.segments: list[str] = []
        self._layout = layout
        self._problems: dict[Path, str] = {}

    def ours(self) -> list[ProcessStat]:
        stats = processes.all_stats()
        return ownership.belonging(stats, self._layout, ownership.kept(stats))

    def end(self, chosen: list[Record], say: Callable[[str], None]) -> None:
        """Ends recorded processes and what they started, and removes the records."""
        ours = {stat.pid for stat in self.ours()} if chosen else set()
        living = [record for record in chosen if record.lives and record.pid in ours]
        if living:
            say(f"ending {', '.join(record.name for record in living)}")
        asked = [record.identity for record in living if record.role != "engine"]
        stayed = processes.end(asked, GRACE_SECONDS)
        if stayed:
            raise TestbedError(_hangs(stayed))
        self._ended(asked)
        self.kill_sessions(chosen)
        for record in chosen:
            with self._noting(self._layout.records / f"{record.name}.json"):
                records.remove(self._layout.records, record.name)

    def kill_sessions(self, chosen: list[Record]) -> None:
        """Kills what lives of the sessions of these records, and whatever descends from them."""
        leaders = {record.pid for record in chosen}

        def members() -> list[ProcessStat]:
            found = self.ours()
            below = processes.all_below(leaders, found)
            return [stat for stat in found if stat.session in leaders or stat.pid in leaders | below]

        if leaders:
            self.kill(members)

    def kill(self, members: Callable[[], list[ProcessStat]]) -> None:
        """Stops all of `members`, notes what they hold in shared memory, and kills them: what is stopped makes nothing new between
        the two, so that nothing is left that was not noted."""
        stopped = processes.stop_all(members, FREEZE_SECONDS)
        if not stopped:
            return
        held = shared_memory.held_by(identity.pid for identity in stopped)
        try:
            shared_memory.note(self._layout.shared_memory, held)
        except OSError:  # the disk is full: what cannot be noted for later goes at once
            noted = False
        else:
            noted = True
        stayed = processes.end(stopped, grace=0.0)
        if stayed:
            raise TestbedError(_hangs(stayed))
        self._ended(stopped)
        if not noted:
            self.segments += shared_memory.remove(held)

    def clear(self) -> None:
        """Removes what is only true while a deployment runs; logs stay, to be read afterwards."""
        self.segments += shared_memory.remove(shared_memory.read_noted(self._layout.shared_memory))
        for path in self._layout.passing_files:
            with self._noting(path):
                path.unlink(missing_ok=True)
        for folder in self._layout.passing_folders:
            with self._noting(folder), contextlib.suppress(FileNotFoundError):
                if folder.lstat().st_uid == os.getuid():  # the short one in /tmp has a name that others can guess
                    shutil.rmtree(folder)

    def finish(self) -> None:
        """Raises TestbedError for what could not be removed."""
        left = {path: reason for path, reason in self._problems.items() if os.path.lexists(path)}
        if left:
            path, reason = next(iter(left.items()))
            more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
            raise TestbedError(
                f"everything has ended, but {path}{more} could not be removed: {reason}; remove it, then `poise testbed down` again"
            )

    def _ended(self, identities: Iterable[ProcessIdentity]) -> None:
        self.pids = sorted({*self.pids, *(identity.pid for identity in identities)})

    @contextlib.contextmanager
    def _noting(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._problems[path] = error.strerror or type(error).__name__


def _hangs(stayed: Iterable[ProcessIdentity]) -> str:
    pids = ", ".join(str(identity.pid) for identity in stayed)
    return f"process {pids} does not end even by SIGKILL (it hangs in the kernel): see its /proc/PID/stack"
