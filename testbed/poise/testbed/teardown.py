"""Takes a deployment down so that nothing of it is left: processes, shared memory, temporary files.

Works from what lies in the state directory and what runs; needs no launcher, and no knowledge of shapes or vLLM. Doing it
twice is as good as once.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from poise.testbed import interrupts, lock, processes, records, shared_memory
from poise.testbed.errors import TestbedError
from poise.testbed.paths import StateLayout
from poise.testbed.processes import ProcessIdentity, ProcessStat
from poise.testbed.records import END_ORDER, Record, Role

# vLLM 0.32 closes engine core and workers within about 3 s of SIGTERM on an idle machine; loaded machines take longer.
ENGINE_GRACE_SECONDS = 15.0
OTHERS_GRACE_SECONDS = 5.0
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
    stats = processes.all_stats()
    sessions = {record.pid for record in chosen}
    members = [stat for stat in _ours(layout, stats) if stat.session in sessions]
    return _end(layout, chosen, members, say)


def _take_down(layout: StateLayout, say: Callable[[str], None]) -> Removed:
    ended: list[int] = []
    recorded = records.read_all(layout.records)
    for role in END_ORDER:
        chosen = [record for record in recorded if record.role == role and record.pid != os.getpid()]
        sessions = {record.pid for record in chosen}
        members = [stat for stat in _ours(layout, processes.all_stats()) if stat.session in sessions]
        ended += _end(layout, chosen, members, say)
    segments: list[str] = []
    while True:
        # What no record names: its record was damaged, or its server died and left children.
        ended += _end(layout, [], _ours(layout, processes.all_stats()), say)
        segments += shared_memory.remove(shared_memory.read_noted(layout.shared_memory))
        _clear(layout)
        # Looked for once more: a process that was just being started when we looked first has either made its session by
        # now, or cannot write its record any more and ends (starter.py).
        if not _ours(layout, processes.all_stats()):
            break
    return Removed(tuple(record.name for record in recorded if record.pid in ended), tuple(ended), tuple(segments))


def _ours(layout: StateLayout, stats: list[ProcessStat]) -> list[ProcessStat]:
    return records.belonging(stats, layout.run, keep={os.getpid()})


def _end(layout: StateLayout, chosen: list[Record], members: list[ProcessStat], say: Callable[[str], None]) -> list[int]:
    living = [record for record in chosen if record.lives]
    everybody = {ProcessIdentity(stat.pid, stat.start_ticks) for stat in members}
    everybody |= {record.identity for record in living}
    if everybody:
        shared_memory.note(layout.shared_memory, shared_memory.held_by(identity.pid for identity in everybody))
        leaders = [record.identity for record in living]
        if living:
            say(f"ending {', '.join(record.name for record in living)}")
        roles: set[Role] = {record.role for record in living}
        # The leader ends its own children in good order; who is left then is killed.
        processes.end(leaders, ENGINE_GRACE_SECONDS if "engine" in roles else OTHERS_GRACE_SECONDS)
        stayed = processes.end(everybody, grace=0.0)
        if stayed:
            pids = ", ".join(str(identity.pid) for identity in stayed)
            raise TestbedError(f"process {pids} does not end even by SIGKILL (it hangs in the kernel): see its /proc/PID/stack")
    for record in chosen:
        records.remove(layout.records, record.name)
    return sorted(identity.pid for identity in everybody)


def _clear(layout: StateLayout) -> None:
    """Removes what is only true while a deployment runs; logs stay, to be read afterwards."""
    for path in (layout.plan, layout.faults, layout.mirror, layout.cards, layout.progress, layout.shared_memory):
        path.unlink(missing_ok=True)
    for folder in (layout.records, layout.run, layout.temporary):
        shutil.rmtree(folder, ignore_errors=True)
