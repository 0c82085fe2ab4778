"""Which processes belong to a deployment, so that taking it down ends all of them and nobody else's.

Owns what counts as evidence: the mark that whatever the testbed starts carries in its environment (starter.py), and what stands in for it. Knows nothing of vLLM's parts and
ends nothing.

/proc/PID/environ is what a process cannot get by chance: children inherit it, and only descendants of what we started have it. But vLLM's
engine core and workers retitle themselves (setproctitle 1.3.8), which overwrites it with NULs, wholly or from its beginning. For them session and parent speak: the starter
gives everything that it starts a session of its own, which nobody else can join; and, when all that carried the mark is gone, working
directory and log together.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from poise.testbed import claim, processes, records
from poise.testbed.paths import StateLayout
from poise.testbed.processes import PROC, ProcessStat
from poise.testbed.starter import MARK, STARTER

# What the kernel puts behind the path of a file that was removed (proc(5)).
REMOVED = " (deleted)"


def belonging(stats: Iterable[ProcessStat], layout: StateLayout, keep: Collection[int] = (), proc: Path = PROC) -> list[ProcessStat]:
    """The processes of the deployment in `layout` that live now, whether or not a record names them.

    Those with its mark, or with any mark and in its `run` folder (its state directory may have been removed and made anew); those of the
    sessions of these, and their descendants; and those without a terminal that work in `run` of which two more things are true: a record names
    their session, they write to one of the logs, their environment was wiped. A record alone is no evidence: anybody can edit one. `keep` are
    pids never to be named.
    """
    living = [stat for stat in stats if stat.lives]
    evidence = _Evidence.of(layout, proc)
    certain = {stat.pid for stat in living if evidence.certain(stat)}
    sessions = {stat.session for stat in living if stat.pid in certain} - {0}  # 0: of a leader outside this pid namespace
    certain |= {stat.pid for stat in living if stat.session in sessions}
    certain |= processes.all_below(certain, living)
    return [stat for stat in living if stat.pid not in keep and (stat.pid in certain or evidence.likely(stat))]


def kept(stats: Iterable[ProcessStat]) -> set[int]:
    """Who is never to be ended: this process and those that started it, a shell or a script that called `poise testbed down`."""
    return {os.getpid(), *processes.ancestors(os.getpid(), stats)}


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What is looked for, read once for all processes."""

    proc: Path
    mark: str | None
    run: str
    logs: str
    records: str
    sessions: frozenset[int]

    @classmethod
    def of(cls, layout: StateLayout, proc: Path) -> _Evidence:
        boot = processes.boot_id(proc)
        return cls(
            proc=proc,
            mark=claim.identity(layout),
            run=os.path.realpath(layout.run),
            logs=os.path.realpath(layout.logs),
            records=str(layout.records),
            sessions=frozenset(record.pid for record in records.read_all(layout.records) if record.boot in ("", boot)),
        )

    def certain(self, stat: ProcessStat) -> bool:
        """It has the mark, or is about to get it: the starter's child between its session and exec."""
        carried = processes.environment_entry(stat.pid, MARK, self.proc)
        if carried is not None:
            return carried == self.mark or self._works_in_run(stat.pid)
        if stat.session != stat.pid or not self._works_in_run(stat.pid):
            return False
        command = processes.command_line(stat.pid, self.proc)
        return command[1:4] == ["-m", STARTER, self.records]

    def likely(self, stat: ProcessStat) -> bool:
        """It works in `run` without a terminal, and two of three hold: its session is recorded, it writes to a log, it has no environment."""
        if stat.terminal != 0 or not self._works_in_run(stat.pid):
            return False
        wiped = processes.is_wiped(stat.pid, self.proc)
        return (stat.session in self.sessions) + self._writes_to_log(stat.pid) + wiped >= 2

    def _works_in_run(self, pid: int) -> bool:
        current = processes.working_directory(pid, self.proc)
        return current is not None and current.removesuffix(REMOVED) == self.run

    def _writes_to_log(self, pid: int) -> bool:
        for descriptor in ("1", "2"):
            try:
                target = os.readlink(self.proc / str(pid) / "fd" / descriptor)
            except OSError:  # it ended, or closed the descriptor
                continue
            if os.path.dirname(target.removesuffix(REMOVED)) == self.logs:
                return True
        return False
