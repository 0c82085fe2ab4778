"""The faults that can be put on a deployment, what each should raise, and how each is taken back.

Owns the table and the doing. How a fault on a simulated card looks is the mirror's business (it reads the wish from a file).
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, replace
from typing import Literal

from poise.testbed import cards, processes, shapes, spawning, workers
from poise.testbed.deployment import Deployment
from poise.testbed.errors import TestbedError
from poise.testbed.plan import DeploymentPlan, EnginePlan
from poise.testbed.processes import wait_gone
from poise.testbed.progress import Progress

Kind = Literal["engine", "rank", "part", "cards"]

# A killed worker takes its server with it: vLLM 0.32 needed 9 s when idle machines ran it.
SERVER_END_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Fault:
    """`kind`: "engine" restarts a server with other settings, "rank" kills a worker, "part" kills a server or the router whole,
    "cards" shows on simulated cards only. `alerts` are the rules (alerts/rules) that it should raise, `least_ranks` the
    tensor-parallel size it makes sense for; `part` is the role of what a fault of a part kills."""

    name: str
    kind: Kind
    what: str
    alerts: tuple[str, ...]
    least_ranks: int
    part: Literal["prefill", "decode", "router"] | None = None

    @property
    def expected(self) -> str:
        """For a person: the alerts, or that none is known."""
        return f"should raise {', '.join(self.alerts)}" if self.alerts else "no alert is made for it"


FAULTS = (
    Fault(
        "one-visible",
        "engine",
        "the server sees one card only (CUDA_VISIBLE_DEVICES=0) and runs with tensor-parallel size 1",
        ("NodeGPUUnowned",),
        2,
    ),
    Fault(
        "one-card",
        "engine",
        "the server sees all cards but runs with tensor-parallel size 1",
        ("EngineSaturatedAndIdle", "EngineGPUsUnused"),
        2,
    ),
    Fault("kill-rank", "rank", "the worker of the last rank is killed (SIGKILL)", ("EngineDown",), 1),
    Fault(
        "rank-gone",
        "cards",
        "the last rank's process is gone from its card while the server lives",
        ("EngineRankMissing",),
        2,
    ),
    Fault("slow-clock", "cards", "the last rank's card is held at a low SM clock (power cap)", ("EngineRankStraggler",), 2),
    Fault("link-down", "cards", "one NVLink between the cards is down", ("NVLinkLinkDown",), 2),
    Fault("card-lost", "cards", "the last rank's card has fallen off the bus (XID 79)", ("GPULost",), 2),
    Fault("kill-prefill", "part", "the prefill server is killed with its workers (SIGKILL)", ("EngineDown",), 1, "prefill"),
    Fault("kill-decode", "part", "the decode server is killed with its workers (SIGKILL)", ("EngineDown",), 1, "decode"),
    Fault("kill-router", "part", "the router is killed (SIGKILL) while the servers behind it live", (), 1, "router"),
)


def find(name: str) -> Fault:
    """Raises TestbedError for a name that is not there."""
    for fault in FAULTS:
        if fault.name == name:
            return fault
    raise TestbedError(f"there is no fault {name!r}: choose from {', '.join(fault.name for fault in FAULTS)}")


def apply(deployment: Deployment, fault: Fault, progress: Progress) -> None:
    """Puts the fault on the first engine of the deployment that it makes sense for and returns when it is in force.

    Raises TestbedError when another fault is in force, when the shape has no such part or too few ranks, or when it needs
    simulated cards.
    """
    current = deployment.plan
    if current.fault is not None:
        raise TestbedError(f"the fault {current.fault} is in force: `poise testbed fault --undo` first")
    engine = next((e for e in current.engines if e.tensor_parallel_size >= fault.least_ranks), None)
    if engine is None:
        raise TestbedError(
            f"{fault.name} needs an engine with tensor-parallel size {fault.least_ranks} or more and shape {current.shape} has none: "
            "use shape tp or hybrid"
        )
    part = _part(current, fault)
    if fault.part is not None and part is None:
        raise TestbedError(
            f"{fault.name} needs a deployment of prefill and decode and shape {current.shape} is none: use shape pd or hybrid"
        )
    if fault.kind == "cards" and not current.simulated_cards:
        raise TestbedError(f"{fault.name} can only be shown on simulated cards: this deployment has none")
    if fault.kind == "engine":
        deployment.restart_engine(changed_engine(engine, fault), fault.name, progress)
        return
    with progress.step(f"fault {fault.name}", fault.what):
        deployment.note_fault(fault.name)
        if part is not None:
            deployment.kill(part)
        elif fault.kind == "rank":
            _kill_last_rank(deployment, engine)
        else:
            cards.want_faults(deployment.layout, [fault.name], last_card(engine, current.simulated_cards))


def _part(plan: DeploymentPlan, fault: Fault) -> str | None:
    """The name of the part that the fault kills; None when it kills none, or the deployment has none of that role."""
    if fault.part == "router":
        return None if plan.router is None else plan.router.name
    return next((engine.name for engine in plan.engines if engine.role == fault.part), None)


def last_card(engine: EnginePlan, cards_there: int) -> int | None:
    """The index of the card on which CUDA puts the engine's last rank; None when it sees too few."""
    visible = workers.visible_devices(engine.cuda_visible_devices, [""] * cards_there)
    return visible[engine.tensor_parallel_size - 1] if engine.tensor_parallel_size <= len(visible) else None


def changed_engine(engine: EnginePlan, fault: Fault) -> EnginePlan:
    """The engine as the fault wants it. one-visible is what a container with one GPU gives; one-card a forgotten option."""
    changed = replace(engine, tensor_parallel_size=1)
    if fault.name == "one-visible":
        first = (engine.cuda_visible_devices or "0").split(",")[0]
        return replace(changed, cuda_visible_devices=first)
    return changed


def undo(deployment: Deployment, progress: Progress) -> list[str]:
    """Brings back the deployment as its shape says: card faults cleared, every engine alive with its own settings, the router
    too.

    Without a fault in force it looks and changes nothing. Returns the names of the parts that were restarted.
    """
    current = deployment.plan
    if current.simulated_cards:
        cards.want_faults(deployment.layout, [])
    shape = shapes.load(current.shape)
    restarted = []
    if current.fault == "card-lost" and current.exporter_port is not None:
        # A card that fell off the bus comes back with a reboot, and with it every exporter forgets the XID.
        deployment.restart_exporter()
        restarted.append("exporter")
    for engine in current.engines:
        healthy = next(wanted for wanted in shape.engines if wanted.name == engine.name)
        wanted = replace(
            engine,
            tensor_parallel_size=healthy.tensor_parallel_size,
            cuda_visible_devices=healthy.cuda_visible_devices,
        )
        record = deployment.record(engine.name)
        alive = record is not None and record.lives and spawning.answers(engine.port, "/health")
        if wanted != engine or not alive:
            deployment.restart_engine(wanted, None, progress)
            restarted.append(engine.name)
    if current.router is not None:
        router = deployment.record(current.router.name)
        if router is None or not router.lives:
            deployment.start_router(progress)
            restarted.append(current.router.name)
    if deployment.plan.fault is not None:
        deployment.note_fault(None)
    return restarted


def _kill_last_rank(deployment: Deployment, engine: EnginePlan) -> None:
    record = deployment.record(engine.name)
    ranks = deployment.workers(engine.name)
    if record is None or not ranks:
        raise TestbedError(f"{engine.name} has no worker that could be killed: `poise testbed status`")
    processes.send(ranks[-1].identity, signal.SIGKILL)
    began = time.monotonic()
    if wait_gone([record.identity], SERVER_END_SECONDS):
        raise TestbedError(f"{engine.name} still lives {time.monotonic() - began:.0f} s after its last rank was killed")
