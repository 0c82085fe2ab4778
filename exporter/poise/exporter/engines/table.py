"""Keeps the process table current at little cost: a new process is read when it appears, an old one again now and then.

A command line is looked at once and thrown away: what stays of a process is whether it is a vLLM server or a router (with its allow-listed
flags) and its title if it is one of vLLM's. This file knows no socket and no page.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from poise.exporter.engines.argv import ServerCommand, parse_server
from poise.exporter.engines.titles import Title, parse_comm, parse_title
from poise.exporter.procfs import ProcessStat, ProcFs
from poise.exporter.routers.command_line import RouterCommand, parse_router

#: A process this many scans old or younger is read at every scan: a shell may still become a server (exec), a worker get its title.
YOUNG_SCANS = 5
#: Every other process is read again once in this many scans, for pids that are used again, late execs and titles.
ROTATION = 15
_KTHREADD = 2


@dataclass(frozen=True, slots=True)
class ProcessKey:
    """A process, told from a later one with the same number by its start (clock ticks since boot)."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Process:
    """What is kept of a process. `start_time` in Unix seconds; `title`, `server` and `router` are None for all that is none."""

    key: ProcessKey
    ppid: int
    start_time: float
    title: Title | None = None
    server: ServerCommand | None = None
    router: RouterCommand | None = None

    @property
    def pid(self) -> int:
        """Its number."""
        return self.key.pid


@dataclass(slots=True)
class ProcessTable:
    """The processes of a /proc, by pid. `scan` brings them up to date; not for use by several threads."""

    proc: ProcFs
    _processes: dict[int, Process] = field(default_factory=dict)
    _age: dict[int, int] = field(default_factory=dict)
    _scans: int = 0

    def scan(self, watched: Collection[int] = ()) -> Mapping[int, Process]:
        """The processes now. Those in `watched` (an engine's) are read every time, so that a lost rank or a new title shows at once."""
        self._scans += 1
        pids = self.proc.pids()
        for gone in self._processes.keys() - set(pids):
            self._forget(gone)
        for pid in pids:
            age = self._age.get(pid, 0)
            if age <= YOUNG_SCANS or pid in watched or (pid + self._scans) % ROTATION == 0:
                self._refresh(pid)
        return self._processes

    def title_of(self, pid: int) -> str | None:
        """The vLLM title of a process; None when it has none. Safe from any thread."""
        process = self._processes.get(pid)
        return process.title.text if process is not None and process.title is not None else None

    def _forget(self, pid: int) -> None:
        self._processes.pop(pid, None)
        self._age.pop(pid, None)

    def _refresh(self, pid: int) -> None:
        stat = self.proc.stat(pid)
        if stat is None or stat.zombie:
            self._forget(pid)
            return
        before = self._processes.get(pid)
        key = ProcessKey(pid, stat.start_ticks)
        same = before is not None and before.key == key
        self._age[pid] = self._age.get(pid, 0) + 1 if same else 1
        if stat.ppid == _KTHREADD or pid == _KTHREADD:
            self._age[pid] = YOUNG_SCANS + 1  # a kernel thread never becomes anything else
            self._processes[pid] = before if before is not None and same else Process(key, stat.ppid, self.proc.start_time(stat))
            return
        self._processes[pid] = _read(self.proc, stat, before if same else None)


def _read(proc: ProcFs, stat: ProcessStat, before: Process | None) -> Process:
    command_line = proc.command_line(stat.pid)
    server, title, router = None, None, None
    if command_line:
        title = parse_title(command_line[0]) if len(command_line) == 1 else None
        server = parse_server(command_line) if title is None else None
        router = parse_router(command_line) if title is None and server is None else None
    else:
        title = parse_comm(stat.comm)
    current = Process(ProcessKey(stat.pid, stat.start_ticks), stat.ppid, proc.start_time(stat), title, server, _known(router, before))
    return before if before == current and before is not None else current


def _known(router: RouterCommand | None, before: Process | None) -> RouterCommand | None:
    """What a router's command line said before the process put a title in its place stays known."""
    if router is None or router.told or before is None or before.router is None:
        return router
    return before.router
