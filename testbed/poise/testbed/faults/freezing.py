"""Stopping (SIGSTOP) the processes of an engine that compute, for a while or over and over, and setting them going again.

A process that is stopped for a share of the time is as slow as one on a card that throttles, and vLLM cannot tell the two apart. The
process that does so is `python -m poise.testbed.faults brake STATE_DIRECTORY ENGINE SHARE`, until SIGTERM.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from poise.testbed import ownership, processes
from poise.testbed.deployment import Deployment
from poise.testbed.processes import ProcessIdentity, ProcessStat

PROGRAM = "brake"
# Short against everything that anybody waits for: a request of a client, a poll of the exporter, a health check of the router.
PERIOD_SECONDS = 0.25
# A single engine on a GPU has no workers: its core computes (vLLM 0.32, uniproc executor).
CORE_TITLE = "VLLM::EngineCore"


def computing(deployment: Deployment, engine: str) -> list[ProcessIdentity]:
    """The processes of an engine that compute: its workers, without any its core. Empty when it is dead."""
    workers = [worker.identity for worker in deployment.workers(engine)]
    if workers:
        return workers
    record = deployment.record(engine)
    below = [] if record is None or not record.lives else _ours_below(deployment, record.pid)
    return [
        ProcessIdentity(stat.pid, stat.start_ticks) for stat in below if " ".join(processes.command_line(stat.pid)).startswith(CORE_TITLE)
    ]


def _ours_below(deployment: Deployment, pid: int) -> list[ProcessStat]:
    """Descendants of a process, unless somebody edited its record and they are not ours to stop."""
    return processes.descendants(pid, ownership.belonging(processes.all_stats(), deployment.layout))


def stop(deployment: Deployment, engine: str) -> int:
    """Stops what computes for an engine; returns how many processes there were."""
    return sum(processes.send(identity, signal.SIGSTOP) for identity in computing(deployment, engine))


def resume(deployment: Deployment) -> None:
    """Sets going whatever of the deployment is stopped, whatever it is; on running processes it does nothing."""
    for stat in ownership.belonging(processes.all_stats(), deployment.layout):
        processes.send(ProcessIdentity(stat.pid, stat.start_ticks), signal.SIGCONT)


def command(deployment: Deployment, engine: str, share: float) -> list[str]:
    return [sys.executable, "-m", "poise.testbed.faults", PROGRAM, str(deployment.layout.root), engine, str(share)]


def hold_back(deployment: Deployment, engine: str, share: float, ending: threading.Event) -> None:
    """Stops what computes for `share` of each period until `ending` is set, and leaves it running."""
    found: list[ProcessIdentity] = []
    try:
        while not ending.is_set():
            found = [identity for identity in found if processes.is_alive(identity)] or computing(deployment, engine)
            for identity in found:
                processes.send(identity, signal.SIGSTOP)
            ending.wait(share * PERIOD_SECONDS)
            for identity in found:
                processes.send(identity, signal.SIGCONT)
            ending.wait((1 - share) * PERIOD_SECONDS)
    finally:
        for identity in found:
            processes.send(identity, signal.SIGCONT)


def main(arguments: Sequence[str]) -> int:
    """`arguments`: state directory, engine, share of the time."""
    root, engine, share = arguments
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    hold_back(Deployment.open(Path(root)), engine, float(share), ending)
    return 0
