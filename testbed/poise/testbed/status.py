"""What a deployment looks like now: parts, their processes, cards and readiness. Reads only.

Owns the picture as data and as text. Knows nothing of how to change it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from poise.testbed import cards, lock, processes, records, spawning, workers
from poise.testbed.deployment import ROUTER_READY_PATH, Deployment

READY_TIMEOUT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class PartStatus:
    """One part. `state`: ready, starting (lives but does not answer) or dead. `cards` has a card's index for each worker."""

    name: str
    role: str
    pid: int
    state: str
    seconds: float
    url: str | None
    engine_role: str | None  # mixed, prefill or decode
    tensor_parallel_size: int | None
    workers: tuple[tuple[int, str, int | None], ...]  # pid, title, card


@dataclass(frozen=True, slots=True)
class Status:
    """`busy` says who works on the deployment at this moment, None for nobody."""

    state_directory: str
    shape: str
    build: str
    model: str
    simulated_cards: int
    fault: str | None
    busy: str | None
    parts: tuple[PartStatus, ...]

    def as_dict(self) -> Mapping[str, object]:
        return asdict(self)

    @property
    def ready(self) -> bool:
        return all(part.state == "ready" for part in self.parts)


def look(deployment: Deployment, now: float | None = None) -> Status:
    """Raises TestbedError when there is no deployment."""
    plan = deployment.plan
    layout = deployment.layout
    moment = time.time() if now is None else now
    stats = processes.all_stats()
    shown = cards.worker_cards(layout)
    parts = []
    for record in records.read_all(layout.records):
        size = int(record.facts["tensor_parallel_size"]) if "tensor_parallel_size" in record.facts else None
        found = workers.workers_of(record.pid, size, stats) if size is not None and record.lives else []
        parts.append(
            PartStatus(
                name=record.name,
                role=record.role,
                pid=record.pid,
                state=_state(record),
                seconds=max(0.0, moment - record.started),
                url=record.facts.get("url"),
                engine_role=record.facts.get("role"),
                tensor_parallel_size=size,
                workers=tuple((worker.pid, worker.title, shown.get(worker.pid)) for worker in found),
            )
        )
    holder = lock.holder(layout.lock)
    return Status(
        state_directory=str(layout.root),
        shape=plan.shape,
        build=plan.build,
        model=plan.served_name,
        simulated_cards=plan.simulated_cards,
        fault=plan.fault,
        busy=None if holder is None else f"{holder[1]} (process {holder[0].pid})",
        parts=tuple(parts),
    )


def _state(record: records.Record) -> str:
    if not record.lives:
        return "dead"
    path = {"engine": "/health", "router": ROUTER_READY_PATH, "exporter": "/readyz"}.get(record.role)
    url = record.facts.get("url")
    if path is None or url is None:
        return "ready"
    return "ready" if spawning.answers(int(url.rsplit(":", 1)[1]), path, READY_TIMEOUT_SECONDS) else "starting"


def text(status: Status) -> str:
    """For a terminal."""
    where = f"{status.simulated_cards} simulated cards" if status.simulated_cards else status.build
    lines = [f"shape {status.shape}, model {status.model}, {where}, in {status.state_directory}"]
    if status.fault:
        lines.append(f"fault in force: {status.fault} (`poise testbed fault --undo`)")
    if status.busy:
        lines.append(f"working now: {status.busy}")
    for part in status.parts:
        role = f", {part.engine_role}" if part.engine_role not in (None, "mixed") else ""
        size = f", tensor parallel {part.tensor_parallel_size}" if part.tensor_parallel_size else ""
        url = f" {part.url}" if part.url else ""
        lines.append(f"  {part.name:<10} {part.state:<9} pid {part.pid:<8} {part.seconds:>6.0f} s{url}{role}{size}")
        for pid, title, card in part.workers:
            place = f"card {card}" if card is not None else "no card"
            lines.append(f"  {'':<10} {'worker':<9} pid {pid:<8} {place}, {title}")
    return "\n".join(lines)
