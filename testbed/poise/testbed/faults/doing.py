"""Puts a fault on a deployment and takes it back.

Owns the order: the plan names the fault before anything changes, so that whoever comes later can undo it, however far it got; and
nobody else changes the deployment meanwhile, so that there is never a second one beside it.
"""

from __future__ import annotations

from poise.testbed import cards, launch, naming, records, spawning
from poise.testbed.deployment import Deployment
from poise.testbed.errors import TestbedError
from poise.testbed.faults import freezing, table
from poise.testbed.faults.fault import Fault, Target
from poise.testbed.plan import EnginePlan
from poise.testbed.progress import Progress


def apply(deployment: Deployment, fault: Fault, progress: Progress) -> None:
    """Puts the fault on the first engine of the deployment that it fits and returns when it is in force.

    Raises TestbedError when another fault is in force, when the shape has no such part or too few ranks, when it needs simulated cards
    or what shows it on them is dead, and when somebody else works on the deployment.
    """
    with deployment.changing(f"fault {fault.name}"):
        current = deployment.plan
        if current.fault is not None:
            raise TestbedError(f"the fault {current.fault} is in force: `poise testbed fault --undo` first")
        refused, engine = fault.refusal(current), fault.engine_of(current)
        if refused is not None or engine is None:
            raise TestbedError(refused or f"{fault.name} finds no engine in shape {current.shape}")
        if fault.needs.simulated_cards and not _lives(deployment, naming.MIRROR):
            raise TestbedError(
                f"the mirror, which would show {fault.name} on its card, is dead: `poise testbed fault --undo` starts it anew"
            )
        deployment.note_fault(fault.name)
        target = Target(deployment, engine, progress)
        if fault.restarts:  # which is a step of its own
            fault.apply(target)
            return
        with progress.step(f"fault {fault.name}", fault.what):
            fault.apply(target)


def undo(deployment: Deployment, progress: Progress) -> list[str]:
    """Brings back the deployment as it was brought up: clients and brakes of faults ended, what was stopped set going, the traces of every
    fault removed, every engine alive with its own settings, router, exporter and mirror too.

    Goes by what is there and not by what was done or noted, so that it also mends what a crash left half done and what died by itself. What
    is healthy is left alone. Returns the names of the parts that were restarted. Raises TestbedError when somebody else works on the
    deployment.
    """
    with deployment.changing("fault --undo"):
        current = deployment.plan
        further = [record.name for record in records.read_all(deployment.layout.records) if record.role == "fault"]
        if further:
            deployment.end(further)
        freezing.resume(deployment)
        restarted: list[str] = []
        if current.simulated_cards and not _lives(deployment, naming.MIRROR):  # before all that it has to show
            deployment.restart_mirror()
            restarted.append(naming.MIRROR)
        for its_own in dict.fromkeys(fault.undo for fault in table.FAULTS):
            restarted += its_own(deployment)
        if current.simulated_cards:
            cards.want_faults(deployment.layout, [])
        port = current.exporter_port
        if port is not None and not (_lives(deployment, naming.EXPORTER) and spawning.answers(port, launch.EXPORTER_READY_PATH)):
            deployment.restart_exporter()
            restarted.append(naming.EXPORTER)
        broken = [engine for engine in current.healthy if engine != deployment.engine(engine.name) or not _answers(deployment, engine)]
        for engine in broken:  # a request goes through the router once the last of them is back
            deployment.restart_engine(engine, current.fault, progress, through_router=engine is broken[-1])
            restarted.append(engine.name)
        if current.router is not None and not _lives(deployment, current.router.name):
            deployment.start_router(progress)
            restarted.append(current.router.name)
        if deployment.plan.fault is not None:
            deployment.note_fault(None)
        return restarted


def _lives(deployment: Deployment, name: str) -> bool:
    record = deployment.record(name)
    return record is not None and record.lives


def _answers(deployment: Deployment, engine: EnginePlan) -> bool:
    return _lives(deployment, engine.name) and spawning.answers(engine.port, launch.ENGINE_READY_PATH)
