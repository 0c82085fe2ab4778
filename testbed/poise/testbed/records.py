"""The record of each process that a deployment started: who it is, so that anybody can find and end it later.

Owns the record files and what "ours" means. Knows nothing of vLLM. The rule that makes kill -9 harmless: a process writes
its own record (starter.py) before it turns into what it is to be, so nothing runs without one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from poise.testbed import processes
from poise.testbed.files import read_json_object, write_json
from poise.testbed.processes import ProcessIdentity, ProcessStat

Role = Literal["engine", "router", "exporter", "mirror", "dashboard", "load", "fault", "keeper"]

# Ended in this order: first what breaks things on purpose, then those who watch an engine (else they would report its end), last
# the keeper.
END_ORDER: tuple[Role, ...] = ("fault", "load", "dashboard", "exporter", "router", "engine", "mirror", "keeper")


@dataclass(frozen=True, slots=True)
class Record:
    """One process. `facts` are strings that others need to reach it (url, cuda_visible_devices …): never a command line,
    which can hold keys."""

    name: str
    role: Role
    pid: int
    start_ticks: int
    started: float  # unix seconds
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.start_ticks)

    @property
    def lives(self) -> bool:
        return processes.is_alive(self.identity)


def write(folder: Path, record: Record) -> None:
    write_json(folder / f"{record.name}.json", asdict(record))


def remove(folder: Path, name: str) -> None:
    (folder / f"{name}.json").unlink(missing_ok=True)


def read_all(folder: Path) -> list[Record]:
    """All records that can be understood, by name. A file that cannot be is left where it is (`orphans` still finds its
    process by the working directory)."""
    if not folder.is_dir():
        return []
    found = []
    for path in sorted(folder.glob("*.json")):
        value = read_json_object(path)
        record = None if value is None else _record(value)
        if record is not None:
            found.append(record)
    return found


def _record(value: Mapping[str, object]) -> Record | None:
    name, role, pid, ticks = value.get("name"), value.get("role"), value.get("pid"), value.get("start_ticks")
    started, facts = value.get("started"), value.get("facts")
    known = [known_role for known_role in END_ORDER if known_role == role]
    if not (isinstance(name, str) and known and isinstance(pid, int) and isinstance(ticks, int)):
        return None
    return Record(
        name=name,
        role=known[0],
        pid=pid,
        start_ticks=ticks,
        started=float(started) if isinstance(started, int | float) else 0.0,
        facts={str(key): str(item) for key, item in facts.items()} if isinstance(facts, dict) else {},
    )


def belonging(stats: list[ProcessStat], run_directory: Path, keep: set[int]) -> list[ProcessStat]:
    """The processes of a deployment that live now, whether or not a record names them.

    Ours is a process that works in the deployment's `run` folder and has no terminal: a user's shell that changed into the
    folder has one, and is left alone. vLLM's children inherit the folder, and keep it when their server is killed. `keep`
    are pids never to be named (the caller's own).
    """
    wanted = os.path.realpath(run_directory)
    return [stat for stat in stats if stat.lives and stat.terminal == 0 and stat.pid not in keep and _works_in(stat.pid, wanted)]


def _works_in(pid: int, folder: str) -> bool:
    current = processes.working_directory(pid)
    return current is not None and current.removesuffix(" (deleted)") == folder
