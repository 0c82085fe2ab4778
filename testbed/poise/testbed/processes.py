"""Processes as Linux knows them: identity, liveness, groups, waiting for an end, ending.

Reads /proc and sends signals. Knows nothing of vLLM, records or shapes.
A pid alone names nobody: pids are used again. An identity is pid plus start time (field 22 of /proc/PID/stat, proc(5)).
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
# States in /proc/PID/stat of a process that was sent SIGSTOP and runs nothing: stopped, traced, or waiting in the kernel.
STILL = ("T", "t", "D")
STOPPING_SECONDS = 0.002
# A worker of vLLM that is killed gives back gigabytes first: 12 s were seen when five others wanted each core.
KILLED_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The fields of /proc/PID/stat that the testbed needs. `start_ticks` counts clock ticks since boot."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    terminal: int  # device number of the controlling terminal, 0 without
    start_ticks: int

    @property
    def lives(self) -> bool:
        """A zombie has ended: only its parent has not looked yet."""
        return self.state not in ("Z", "X")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, never another that got the same pid later."""

    pid: int
    start_ticks: int


def parse_stat(text: str) -> ProcessStat:
    """Parses /proc/PID/stat (proc(5)); the command between the parentheses may hold spaces and parentheses."""
    opening, closing = text.index("("), text.rindex(")")
    fields = text[closing + 2 :].split()
    return ProcessStat(
        pid=int(text[:opening]),
        state=fields[0],
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        terminal=int(fields[4]),
        start_ticks=int(fields[19]),
    )


def read_stat(pid: int, proc: Path = PROC) -> ProcessStat | None:
    """None when the process is gone."""
    try:
        return parse_stat((proc / str(pid) / "stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None


def boot_id(proc: Path = PROC) -> str | None:
    """Names this boot of the machine: pids and start times are used again after the next. None where it cannot be read."""
    try:
        return (proc / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    except OSError:
        return None


def all_stats(proc: Path = PROC) -> list[ProcessStat]:
    """Every process that can be seen."""
    found = (read_stat(int(name), proc) for name in os.listdir(proc) if name.isdigit())
    return [stat for stat in found if stat is not None]


def own_identity() -> ProcessIdentity:
    stat = read_stat(os.getpid())
    if stat is None:
        raise OSError("/proc/self/stat cannot be read: is /proc mounted?")
    return ProcessIdentity(stat.pid, stat.start_ticks)


def is_alive(identity: ProcessIdentity, proc: Path = PROC) -> bool:
    stat = read_stat(identity.pid, proc)
    return stat is not None and stat.lives and stat.start_ticks == identity.start_ticks


def command_line(pid: int, proc: Path = PROC) -> list[str]:
    """The arguments of a process, empty when it is gone. A retitled process (vLLM's workers) has one, padded with NULs."""
    try:
        raw = (proc / str(pid) / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [part.decode("utf-8", "replace") for part in raw.rstrip(b"\0").split(b"\0")] if raw.strip(b"\0") else []


def environment(pid: int, proc: Path = PROC) -> dict[str, str]:
    """The environment at exec time; empty when the process is gone, belongs to somebody else, or wiped it (setproctitle)."""
    pairs = (part.decode("utf-8", "replace").partition("=") for part in _raw_environment(pid, proc).split(b"\0") if part)
    return {name: value for name, equals, value in pairs if equals}


def environment_entry(pid: int, name: str, proc: Path = PROC) -> str | None:
    """One variable of the environment at exec time; None where `environment` has it not."""
    wanted = os.fsencode(name) + b"="
    found = next((part for part in _raw_environment(pid, proc).split(b"\0") if part.startswith(wanted)), None)
    return None if found is None else found.removeprefix(wanted).decode("utf-8", "replace")


def is_wiped(pid: int, proc: Path = PROC) -> bool:
    """Whether the process has overwritten its environment, from its beginning on (setproctitle 1.3.8: up to the first variable that was changed
    since its start); also while it turns into another program."""
    return b"=" not in _raw_environment(pid, proc).partition(b"\0")[0]


def _raw_environment(pid: int, proc: Path) -> bytes:
    """Empty when the process is gone or belongs to somebody else."""
    try:
        return (proc / str(pid) / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def working_directory(pid: int, proc: Path = PROC) -> str | None:
    try:
        return os.readlink(proc / str(pid) / "cwd")
    except OSError:
        return None


def descendants(root: int, stats: Iterable[ProcessStat]) -> list[ProcessStat]:
    """Everything below `root` in the tree of `stats`, without `root`, parents before children."""
    children: dict[int, list[ProcessStat]] = {}
    for stat in stats:
        children.setdefault(stat.parent, []).append(stat)
    found: list[ProcessStat] = []
    waiting = [root]
    while waiting:
        for child in sorted(children.get(waiting.pop(), ()), key=lambda stat: stat.pid):
            found.append(child)
            waiting.append(child.pid)
    return found


def all_below(roots: Iterable[int], stats: Iterable[ProcessStat]) -> set[int]:
    """Pids of everything below any of `roots`."""
    known = list(stats)
    return {stat.pid for root in roots for stat in descendants(root, known)}


def ancestors(pid: int, stats: Iterable[ProcessStat]) -> list[int]:
    """Pids of the parent of `pid`, of the parent's parent, and so on."""
    parents = {stat.pid: stat.parent for stat in stats}
    found: list[int] = []
    while (pid := parents.get(pid, 0)) > 0 and pid not in found:
        found.append(pid)
    return found


def send(identity: ProcessIdentity, number: signal.Signals) -> bool:
    """Signals exactly this process; False when it has ended. The pidfd closes the gap between looking and signalling."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(identity):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def wait_gone(identities: Iterable[ProcessIdentity], timeout: float) -> list[ProcessIdentity]:
    """Waits until all have ended or `timeout` seconds passed; returns those that still live. Wakes on their end, no polling."""
    deadline = time.monotonic() + timeout
    open_descriptors: dict[int, ProcessIdentity] = {}
    poller = select.poll()
    try:
        for identity in identities:
            try:
                descriptor = os.pidfd_open(identity.pid)
            except ProcessLookupError:
                continue
            if not is_alive(identity):
                os.close(descriptor)
                continue
            open_descriptors[descriptor] = identity
            poller.register(descriptor, select.POLLIN)
        while open_descriptors:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            for descriptor, _ in poller.poll(remaining * 1000):
                poller.unregister(descriptor)
                os.close(descriptor)
                del open_descriptors[descriptor]
        return list(open_descriptors.values())
    finally:
        for descriptor in open_descriptors:
            os.close(descriptor)


def stop_all(members: Callable[[], Iterable[ProcessStat]], timeout: float) -> list[ProcessIdentity]:
    """Stops (SIGSTOP) the processes that `members` names, and those that it names anew because one of them had just forked,
    until none runs any more or `timeout` seconds passed. Returns all of them; SIGKILL ends a stopped process too."""
    deadline = time.monotonic() + timeout
    stopped: dict[ProcessIdentity, None] = {}
    while True:
        running = False
        for stat in members():
            identity = ProcessIdentity(stat.pid, stat.start_ticks)
            if identity not in stopped:
                stopped[identity] = None
                running = send(identity, signal.SIGSTOP) or running
            elif stat.lives and stat.state not in STILL:
                running = True
        if not running or time.monotonic() > deadline:
            return list(stopped)
        time.sleep(STOPPING_SECONDS)  # the signal reaches a thread when it next enters the kernel


def end(identities: Iterable[ProcessIdentity], grace: float, after_kill: float = KILLED_SECONDS) -> list[ProcessIdentity]:
    """SIGTERM, `grace` seconds, SIGKILL to those that stayed, `after_kill` seconds; returns what lives even then."""
    wanted = list(identities)
    if grace > 0:
        for identity in wanted:
            send(identity, signal.SIGTERM)
    rest = wait_gone(wanted, grace)
    for identity in rest:
        send(identity, signal.SIGKILL)
    return wait_gone(rest, after_kill)
