"""What a deployment looks like now: parts, their processes, ranks, cards and readiness. Reads only.

Owns the picture as data and as text, and what makes a part ready. Knows nothing of how to change it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from poise.testbed import cards, lock, processes, records, spawning, startup, workers
from poise.testbed.deployment import Deployment
from poise.testbed.launch import ROUTER_READY_PATH
from poise.testbed.paths import StateLayout
from poise.testbed.plan import DeploymentPlan, EnginePlan
from poise.testbed.processes import ProcessStat
from poise.testbed.records import Record
from poise.testbed.workers import Worker

READY_TIMEOUT_SECONDS = 2.0

# ready; starting: lives, does not answer yet; silent: lives, answered once and does not now; degraded: works in part; dead; absent: was never started.
State = Literal["ready", "starting", "silent", "degraded", "dead", "absent"]


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One process that computes. A rank is None where its title names none (that size is 1); `card` None: on none that is known."""

    pid: int
    title: str
    tensor_rank: int | None
    pipeline_rank: int | None
    card: int | None


@dataclass(frozen=True, slots=True)
class PartStatus:
    """One part. `reason` says why it is not ready, `engine_role` is mixed, prefill or decode."""

    name: str
    role: str
    pid: int | None
    state: State
    reason: str | None
    seconds: float | None
    url: str | None
    engine_role: str | None
    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    workers: tuple[WorkerStatus, ...]


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
        return {**asdict(self), "ready": self.ready}

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
    recorded = {record.name: record for record in records.read_all(layout.records)}
    planned = {engine.name: engine for engine in plan.engines}
    engines = [_engine(layout, engine, recorded.get(engine.name), stats, shown, plan, moment) for engine in plan.engines]
    parts = engines if plan.router is None else [_router(plan.router.name, recorded.get(plan.router.name), engines, moment), *engines]
    for name, expected in (("exporter", plan.exporter_port is not None), ("mirror", plan.simulated_cards > 0)):
        if expected or name in recorded:
            parts.append(_plain(name, recorded.get(name), moment))
    known = {part.name for part in parts} | planned.keys()
    parts += [_plain(record.role, record, moment) for name, record in sorted(recorded.items()) if name not in known]
    holder = lock.holder(layout.lock)
    return Status(
        state_directory=str(layout.root),
        shape=plan.shape,
        build=plan.build,
        model=plan.served_name,
        simulated_cards=plan.simulated_cards,
        fault=plan.fault,
        busy=None if holder is None else str(holder),
        parts=tuple(parts),
    )


def _engine(
    layout: StateLayout,
    engine: EnginePlan,
    record: Record | None,
    stats: Sequence[ProcessStat],
    shown: Mapping[int, int],
    plan: DeploymentPlan,
    now: float,
) -> PartStatus:
    """A server: its sizes are those that it was started with, which a fault may just be changing."""
    facts = {} if record is None else record.facts
    tensor = int(facts.get("tensor_parallel_size", engine.tensor_parallel_size))
    stages = int(facts.get("pipeline_parallel_size", engine.pipeline_parallel_size))
    lives = record is not None and record.lives
    ranks = workers.workers_of(record.pid, tensor, stats, pipeline_parallel_size=stages) if record is not None and lives else []
    answers = lives and spawning.answers(engine.port, "/health", READY_TIMEOUT_SECONDS)
    stopped = {stat.pid for stat in stats if stat.state in ("T", "t")}
    state, reason = engine_state(
        there=record is not None,
        lives=lives,
        answers=answers,
        answered_once=lives and not answers and startup.has_started(layout.log(engine.name)),
        ranks=len(ranks) if tensor * stages > 1 else None,
        wanted=tensor * stages,
        stopped=[worker.title for worker in ranks if worker.pid in stopped],
    )
    return PartStatus(
        name=engine.name,
        role="engine",
        pid=None if record is None else record.pid,
        state=state,
        reason=reason,
        seconds=None if record is None else max(0.0, now - record.started),
        url=engine.url,
        engine_role=engine.role,
        tensor_parallel_size=tensor,
        pipeline_parallel_size=stages,
        workers=tuple(
            WorkerStatus(
                w.pid, w.title, workers.rank_along("TP", w.title), workers.rank_along("PP", w.title), _card(w, engine, plan, shown)
            )
            for w in ranks
        ),
    )


def engine_state(
    there: bool, lives: bool, answers: bool, answered_once: bool, ranks: int | None, wanted: int, stopped: Sequence[str]
) -> tuple[State, str | None]:
    """State of a server and why it is not ready. `ranks` of `wanted` have a process; None where they have none of their own."""
    if not there:
        return "absent", "not started"
    if not lives:
        return "dead", "its process is gone"
    if stopped:
        return "degraded" if answers else "silent", f"stopped: {', '.join(stopped)}"
    if not answers:
        return ("silent", "it answered before and does not now") if answered_once else ("starting", "it does not answer yet")
    if ranks is not None and ranks < wanted:
        return "degraded", f"{ranks} of {wanted} ranks have a process"
    return "ready", None


def _card(worker: Worker, engine: EnginePlan, plan: DeploymentPlan, shown: Mapping[int, int]) -> int | None:
    """On simulated cards where the mirror shows it, on real ones where CUDA puts it by the plan's numbers."""
    if plan.simulated_cards or plan.build == "cpu":
        return shown.get(worker.pid)
    if engine.cuda_visible_devices is None:
        return worker.local_rank
    entries = engine.cuda_visible_devices.split(",")
    entry = entries[worker.local_rank].strip() if worker.local_rank < len(entries) else ""
    return int(entry) if entry.isdecimal() else None


def _router(name: str, record: Record | None, engines: Sequence[PartStatus], now: float) -> PartStatus:
    url = None if record is None else record.facts.get("url")
    lives = record is not None and record.lives
    answers = lives and url is not None and spawning.answers(_port(url), ROUTER_READY_PATH, READY_TIMEOUT_SECONDS)
    state, reason = router_state(record is not None, lives, answers, [(engine.name, engine.state) for engine in engines])
    return _part(name, "router", record, state, reason, now)


def router_state(there: bool, lives: bool, answers: bool, backends: Sequence[tuple[str, State]]) -> tuple[State, str | None]:
    """State of a router and why it is not ready: `answers` is its own word on whether prefill and decode are healthy."""
    if not there:
        return "absent", "not started"
    if not lives:
        return "dead", "its process is gone: no request reaches the engines"
    gone = [f"{name} is {state}" for name, state in backends if state in ("dead", "absent", "silent")]
    if gone:
        return "degraded", f"backend {', '.join(gone)}" + ("" if answers else ": it answers no request")
    return ("ready", None) if answers else ("starting", "it has not found prefill and decode healthy yet")


def _plain(role: str, record: Record | None, now: float) -> PartStatus:
    """Any other part, by the name of its record."""
    if record is None:
        return _part(role, role, None, "absent", "not started", now)
    if not record.lives:
        return _part(record.name, record.role, record, "dead", "its process is gone", now)
    path, url = {"exporter": "/readyz"}.get(record.role), record.facts.get("url")
    if path is None or url is None or spawning.answers(_port(url), path, READY_TIMEOUT_SECONDS):
        return _part(record.name, record.role, record, "ready", None, now)
    return _part(record.name, record.role, record, "starting", "it does not answer", now)


def _part(name: str, role: str, record: Record | None, state: State, reason: str | None, now: float) -> PartStatus:
    pid, url = (None, None) if record is None else (record.pid, record.facts.get("url"))
    seconds = None if record is None else max(0.0, now - record.started)
    return PartStatus(name, role, pid, state, reason, seconds, url, None, None, None, ())


def _port(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


def text(status: Status) -> str:
    """For a terminal."""
    where = f"{status.simulated_cards} simulated cards" if status.simulated_cards else status.build
    lines = [f"shape {status.shape}, model {status.model}, {where}, in {status.state_directory}"]
    if status.fault:
        lines.append(f"fault in force: {status.fault} (`poise testbed fault --undo`)")
    if status.busy:
        lines.append(f"working now: {status.busy}")
    width = max((len(part.name) for part in status.parts), default=0)
    for part in status.parts:
        process = f"pid {part.pid:<8} {part.seconds:>6.0f} s" if part.pid is not None and part.seconds is not None else "no process"
        words = [process, *([part.url] if part.url else []), *_sizes(part)]
        reason = f": {part.reason}" if part.reason else ""
        lines.append(f"  {part.name:<{width}}  {part.state:<9} {', '.join(words)}{reason}")
        for worker in part.workers:
            place = f"card {worker.card}" if worker.card is not None else "no card"
            lines.append(f"  {'':<{width}}  {'worker':<9} pid {worker.pid:<8} {place}, {worker.title}")
    return "\n".join(lines)


def _sizes(part: PartStatus) -> list[str]:
    role = [part.engine_role] if part.engine_role not in (None, "mixed") else []
    tensor = [f"tensor parallel {part.tensor_parallel_size}"] if part.tensor_parallel_size else []
    stages = [f"pipeline parallel {part.pipeline_parallel_size}"] if (part.pipeline_parallel_size or 1) > 1 else []
    return [*(str(word) for word in role), *tensor, *stages]
