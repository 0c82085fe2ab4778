"""The record of each process that a deployment started: who it is, so that anybody can find and end it later.

Owns the record files. A record is a hint and no evidence: whose a process is, ownership.py knows. Knows nothing of vLLM. The rule that makes kill -9 harmless: a process writes
its own record (starter.py) before it turns into what it is to be, so nothing runs without one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from poise.testbed import processes
from poise.testbed.files import read_json_object, write_json
from poise.testbed.processes import ProcessIdentity

Role = Literal["engine", "router", "exporter", "mirror", "dashboard", "load", "fault", "keeper"]

NAME = re.compile(r"[A-Za-z0-9_]+")
HIGHEST_PID = 2**31 - 1  # pid_t

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
    boot: str = ""  # of the machine, when it was started (processes.boot_id); "" in records of earlier versions

    @property
    def identity(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.start_ticks)

    @property
    def lives(self) -> bool:
        return self.boot in ("", processes.boot_id()) and processes.is_alive(self.identity)


def write(folder: Path, record: Record) -> None:
    write_json(folder / f"{record.name}.json", asdict(record))


def remove(folder: Path, name: str) -> None:
    (folder / f"{name}.json").unlink(missing_ok=True)


def read_all(folder: Path) -> list[Record]:
    """All records that can be understood, by name. A file that cannot be, or that is not called after its process, is left where it is: the
    process is found without (ownership.py)."""
    if not folder.is_dir():
        return []
    found = []
    for path in sorted(folder.glob("*.json")):
        value = read_json_object(path)
        record = None if value is None else _record(value)
        if record is not None and record.name == path.stem:
            found.append(record)
    return found


def _record(value: Mapping[str, object]) -> Record | None:
    name, role, pid, ticks = value.get("name"), value.get("role"), value.get("pid"), value.get("start_ticks")
    started, facts = value.get("started"), value.get("facts")
    known = [known_role for known_role in END_ORDER if known_role == role]
    if not (isinstance(name, str) and NAME.fullmatch(name) and known and isinstance(pid, int) and isinstance(ticks, int)):
        return None
    if not 0 < pid <= HIGHEST_PID:
        return None
    boot = value.get("boot")
    return Record(
        name=name,
        role=known[0],
        pid=pid,
        start_ticks=ticks,
        started=float(started) if isinstance(started, int | float) else 0.0,
        facts={str(key): str(item) for key, item in facts.items()} if isinstance(facts, dict) else {},
        boot=boot if isinstance(boot, str) else "",
    )
