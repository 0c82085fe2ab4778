"""Puts a fault on a deployment and takes it back.

Owns the order: the plan names the fault before anything changes, so that whoever comes later can undo it, however far it got.
"""

from __future__ import annotations

from poise.testbed import cards, records, spawning
from poise.testbed.deployment import Deployment
from poise.testbed.errors import TestbedError
from poise.testbed.faults import freezing, table
from poise.testbed.faults.fault import Fault, Target
from poise.testbed.progress import Progress


def apply(deployment: Deployment, fault: Fault, progress: Progress) -> None:
    """Puts the fault on the first engine of the deployment that it fits and returns when it is in force.

    Raises TestbedError when another fault is in force, when the shape has no such part or too few ranks, or when it needs
    simulated cards.
    """
    current = deployment.plan
    if current.fault is not None:
        raise TestbedError(f"the fault {current.fault} is in force: `poise testbed fault --undo` first")
    refused, engine = fault.refusal(current), fault.engine_of(current)
    if refused is not None or engine is None:
        raise TestbedError(refused or f"{fault.name} finds no engine in shape {current.shape}")
    deployment.note_fault(fault.name)
    target = Target(deployment, engine, progress)
    if fault.restarts:  # which is a step of its own
        fault.apply(target)
        return
    with progress.step(f"fault {fault.name}", fault.what):
        fault.apply(target)


def undo(deployment: Deployment, progress: Progress) -> list[str]:
    """Brings back the deployment as it was brought up: clients and brakes of faults ended, what was stopped set going, card faults
    cleared, every engine alive with its own settings, the router too.

    Goes by what is there and not by what was done, so that it also mends what a crash left half done. Without a fault in force it looks and
    changes nothing. Returns the names of the parts that were restarted.
    """
    current = deployment.plan
    further = [record.name for record in records.read_all(deployment.layout.records) if record.role == "fault"]
    if further:
        deployment.end(further)
    freezing.resume(deployment)
    if current.simulated_cards:
        cards.want_faults(deployment.layout, [])
    known = next((fault for fault in table.FAULTS if fault.name == current.fault), None)
    restarted = known.undo(deployment) if known is not None else []
    for healthy in current.healthy:
        engine, record = deployment.engine(healthy.name), deployment.record(healthy.name)
        alive = record is not None and record.lives and spawning.answers(healthy.port, "/health")
        if healthy != engine or not alive:
            deployment.restart_engine(healthy, current.fault, progress)
            restarted.append(healthy.name)
    if current.router is not None:
        router = deployment.record(current.router.name)
        if router is None or not router.lives:
            deployment.start_router(progress)
            restarted.append(current.router.name)
    if deployment.plan.fault is not None:
        deployment.note_fault(None)
    return restarted
