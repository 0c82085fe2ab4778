"""Takes a deployment down so that nothing of it is left: processes, shared memory, temporary files.

Works from what lies in the state directory and what runs; needs no launcher, and no knowledge of shapes or vLLM. Doing it
twice is as good as once.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from poise.testbed import interrupts, lock, processes, records, shared_memory
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
    """Ends everything of the deployment in `layout`. Raises TestbedError when a process cannot be ended.

    A launcher that still works on the deployment is asked to stop first. `lock_held`: the caller holds the lock already.
    """
    if not layout.root.is_dir():
        return Removed((), (), ())
    if lock_held:
        with interrupts.held_off():
            return _take_down(layout, say)
    found = lock.holder(layout.lock)
    if found is not None:
        identity, purpose = found
        say(f"stopping process {identity.pid} ({purpose})")
        processes.send(identity, signal.SIGTERM)
        processes.wait_gone([identity], LAUNCHER_SECONDS)
    with lock.held(layout.lock, "taking the deployment down", timeout=LAUNCHER_SECONDS), interrupts.held_off():
        return _take_down(layout, say)


def end_processes(layout: StateLayout, names: Iterable[str], say: Callable[[str], None] = lambda _: None) -> list[int]:
    """Ends the recorded processes `names` with all that they started, removes their records and shared memory. The caller
    holds the lock. Returns the pids that were ended."""
    wanted = set(names)
    chosen = [record for record in records.read_all(layout.records) if record.name in wanted]
    return _end(layout, chosen, lambda: _sessions(layout, chosen), say)


def kill(layout: StateLayout, name: str) -> list[int]:
    """Kills (SIGKILL) a recorded process with all that it started, as the kernel does when memory runs out; the record stays,
    so that everybody sees what died. The caller holds the lock. Returns the pids."""
    chosen = [record for record in records.read_all(layout.records) if record.name == name]
    return _kill(layout, lambda: _sessions(layout, chosen))


def _take_down(layout: StateLayout, say: Callable[[str], None]) -> Removed:
    ended: list[int] = []
    recorded = records.read_all(layout.records)
    for role in END_ORDER:
        chosen = [record for record in recorded if record.role == role and record.pid != os.getpid()]
        ended += _end(layout, chosen, functools.partial(_sessions, layout, chosen), say)
    segments: list[str] = []
    while True:
        # What no record names: its record was damaged, or its server died and left children.
        ended += _kill(layout, lambda: _ours(layout))
        segments += shared_memory.remove(shared_memory.read_noted(layout.shared_memory))
        _clear(layout)
        # Looked for once more: a process that was just being started when we looked first has either made its session by
        # now, or cannot write its record any more and ends (starter.py).
        if not _ours(layout):
            break
    return Removed(tuple(record.name for record in recorded if record.pid in ended), tuple(ended), tuple(segments))


def _ours(layout: StateLayout) -> list[ProcessStat]:
    return records.belonging(processes.all_stats(), layout.run, keep={os.getpid()})


def _sessions(layout: StateLayout, chosen: Iterable[Record]) -> list[ProcessStat]:
    """What lives of the sessions of these records, and the recorded processes themselves."""
    living = {record.pid for record in chosen if record.lives}
    sessions = {record.pid for record in chosen}
    stats = processes.all_stats()
    return [stat for stat in stats if stat.pid in living] + [
        stat for stat in records.belonging(stats, layout.run, keep={os.getpid()} | living) if stat.session in sessions
    ]


def _end(layout: StateLayout, chosen: list[Record], members: Callable[[], list[ProcessStat]], say: Callable[[str], None]) -> list[int]:
    """Ends recorded processes and what they started, and removes the records. Returns the pids that were ended."""
    living = [record for record in chosen if record.lives]
    if living:
        say(f"ending {', '.join(record.name for record in living)}")
    asked = [record.identity for record in living if record.role != "engine"]
    stayed = processes.end(asked, GRACE_SECONDS)
    if stayed:
        raise TestbedError(_hangs(stayed))
    ended = [identity.pid for identity in asked] + _kill(layout, members)
    for record in chosen:
        records.remove(layout.records, record.name)
    return sorted(set(ended))


def _kill(layout: StateLayout, members: Callable[[], list[ProcessStat]]) -> list[int]:
    """Stops all of `members`, notes what they hold in shared memory, and kills them: what is stopped makes nothing new between
    the two, so that nothing is left that was not noted."""
    stopped = processes.stop_all(members, FREEZE_SECONDS)
    if not stopped:
        return []
    shared_memory.note(layout.shared_memory, shared_memory.held_by(identity.pid for identity in stopped))
    stayed = processes.end(stopped, grace=0.0)
    if stayed:
        raise TestbedError(_hangs(stayed))
    return sorted(identity.pid for identity in stopped)


def _hangs(stayed: Iterable[ProcessIdentity]) -> str:
    pids = ", ".join(str(identity.pid) for identity in stayed)
    return f"process {pids} does not end even by SIGKILL (it hangs in the kernel): see its /proc/PID/stack"


def _clear(layout: StateLayout) -> None:
    """Removes what is only true while a deployment runs; logs stay, to be read afterwards."""
    for path in (layout.plan, layout.faults, layout.mirror, layout.cards, layout.progress, layout.shared_memory):
        path.unlink(missing_ok=True)
    for folder in (layout.records, layout.run, layout.temporary):
        shutil.rmtree(folder, ignore_errors=True)
