"""What stands already in the state directory of a deployment that is asked for: nothing, remains, just that, or something else.

Owns the comparison of a request with what is up, and the rule of what `up` may clear away: what is dead, and what was left half started
of the same request. A server that answers is never ended by `up`. Looks only, changes nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from poise.testbed import launch, naming, planning, records, spawning, startup
from poise.testbed.errors import TestbedError
from poise.testbed.hardware import Hardware
from poise.testbed.paths import StateLayout
from poise.testbed.plan import DeploymentPlan, EnginePlan, RouterPlan, read
from poise.testbed.planning import Machine, Request
from poise.testbed.records import Record
from poise.testbed.shapes import EngineShape

# What is not compared: what `up` may choose anew at each start, what follows from something else, and what faults do.
NOT_ASKED_FOR = ("engines", "fault", "served_name")
LISTED = ("healthy", "router")  # compared part by part


def whole(layout: StateLayout, wanted: Request, look: Callable[[], Machine]) -> bool:
    """Whether what is asked for is up, with all its parts; False when nothing is there, or only what may be cleared away.

    Raises TestbedError, naming the difference and the way out, for everything that `up` may not touch: another deployment, one with a
    fault, one of which a part is dead while its servers answer, and one whose launcher still works with it.
    """
    recorded = {record.name: record for record in records.read_all(layout.records)}
    living = [record.name for record in recorded.values() if record.lives and record.role != "keeper"]
    if not living:
        return False
    try:
        current = read(layout.plan)
    except TestbedError as error:
        raise TestbedError(
            f"{', '.join(living)} of a deployment in {layout.root} still run, of which nothing else is known ({error}): "
            "`poise testbed down` ends them"
        ) from None
    found = differences(current, wanted, look())
    if found or current.fault is not None:
        parts = ", ".join(f"{engine.name} {engine.sizes}" for engine in current.healthy)
        what = f"shape {current.shape} ({parts})" + (f" with the fault {current.fault}" if current.fault else "")
        way_out = "`poise testbed down` first, or use another --state-dir"
        if not found:
            way_out = f"`poise testbed fault --undo` mends it, or {way_out}"
        raise TestbedError(f"{what} is up in {layout.root}{_but(found)}: {way_out}")
    missing = [*dead(current, recorded), *silent(current, recorded)]
    if not missing:
        return True
    what = f"shape {current.shape} is up in {layout.root} and not whole ({', '.join(missing)})"
    keeper = recorded.get(naming.KEEPER)
    if keeper is not None and keeper.lives:
        raise TestbedError(f"{what}, and the process that brought it up still works with it: end that, or `poise testbed down` first")
    released = keeper is None  # it forgets itself when `up` has finished; of one that was killed a record stays
    if any(_lives(recorded, engine) and (released or _has_served(layout, engine)) for engine in current.healthy):
        raise TestbedError(f"{what}: `poise testbed fault --undo` starts what is missing, `poise testbed down` ends the rest")
    return False


def _but(found: Sequence[str]) -> str:
    return f" with {', '.join(found)}" if found else ""


def dead(current: DeploymentPlan, recorded: Mapping[str, Record]) -> list[str]:
    """The planned parts without a living process, in words."""
    names = [*_listening(current), *([naming.MIRROR] if current.simulated_cards else [])]
    return [f"{name} is dead" for name in names if name not in recorded or not recorded[name].lives]


def silent(current: DeploymentPlan, recorded: Mapping[str, Record]) -> list[str]:
    """The planned parts that live and do not answer, in words."""
    return [
        f"{name} does not answer"
        for name, (port, path) in _listening(current).items()
        if name in recorded and recorded[name].lives and not spawning.answers(port, path)
    ]


def _listening(current: DeploymentPlan) -> dict[str, tuple[int, str]]:
    """Part → port, and the path under which it says that it is ready."""
    found = {engine.name: (engine.port, launch.ENGINE_READY_PATH) for engine in current.engines}
    if current.router is not None:
        found[current.router.name] = (current.router.port, launch.ROUTER_READY_PATH)
    if current.exporter_port is not None:
        found[naming.EXPORTER] = (current.exporter_port, launch.EXPORTER_READY_PATH)
    return found


def _lives(recorded: Mapping[str, Record], engine: EnginePlan) -> bool:
    return engine.name in recorded and recorded[engine.name].lives


def _has_served(layout: StateLayout, engine: EnginePlan) -> bool:
    """Whether a living server answers, or did so before."""
    return spawning.answers(engine.port, launch.ENGINE_READY_PATH) or startup.has_started(layout.log(engine.name))


# ---------------------------------------------------------------- the same, or something else


def differences(current: DeploymentPlan, wanted: Request, machine: Machine) -> list[str]:
    """What was asked for and is not what is up, in words; empty when a start would make the same again.

    The request is made into a plan, with what `up` is free to choose taken from what is up, and the plans are compared: what is added to
    either counts without a word here. Raises TestbedError for a request that could not be carried out whatever is up.
    """
    fixed = {part: port for part, port in wanted.fixed_ports.items() if port}
    given = planning.preferred_ports(wanted) | planning.ports_of(current) | fixed
    if not wanted.watched:
        given.pop(naming.EXPORTER, None)
    if _parts(current.healthy) != _parts(wanted.shape.engines) or current.shape != wanted.shape.name:
        return [f"other servers than are asked for (shape {wanted.shape.name})"]
    agreed = planning.arrange(wanted, _unused(machine), given)
    open_engines = {engine.name for engine in wanted.shape.engines if engine.cuda_visible_devices is None}
    healthy = tuple(
        replace(
            asked,
            cpu_binding=engine.cpu_binding,
            cuda_visible_devices=engine.cuda_visible_devices if engine.name in open_engines else asked.cuda_visible_devices,
        )
        for engine, asked in zip(current.healthy, agreed.healthy, strict=True)
    )
    return list(_differing(current, replace(agreed, healthy=healthy)))


def _parts(engines: Sequence[EnginePlan] | Sequence[EngineShape]) -> list[tuple[str, str, int, int]]:
    return [(engine.name, engine.role, engine.tensor_parallel_size, engine.pipeline_parallel_size) for engine in engines]


def _unused(machine: Machine) -> Machine:
    """What is up uses GPUs, which are not to count as somebody else's."""
    gpus = tuple(replace(gpu, used_mib=0, pids=()) for gpu in machine.hardware.gpus)
    return Machine(Hardware(gpus), machine.resources)


def _differing(current: DeploymentPlan, asked: DeploymentPlan) -> Iterator[str]:
    for field in fields(DeploymentPlan):
        if field.name not in (*NOT_ASKED_FOR, *LISTED):
            yield from _unlike(field.name, getattr(current, field.name), getattr(asked, field.name))
    for engine, other in zip(current.healthy, asked.healthy, strict=True):
        for field in fields(EnginePlan):
            yield from _unlike(f"{engine.name} {field.name}", getattr(engine, field.name), getattr(other, field.name))
    if current.router is None or asked.router is None:
        yield from _unlike("router", current.router, asked.router)
        return
    for field in fields(RouterPlan):
        yield from _unlike(f"{current.router.name} {field.name}", getattr(current.router, field.name), getattr(asked.router, field.name))


def _unlike(name: str, now: object, asked: object) -> Iterator[str]:
    if now != asked:
        yield f"{name.replace('_', ' ')} {_shown(now)} ({_shown(asked)} is asked for)"


def _shown(value: object) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, tuple):
        return shlex.join(str(entry) for entry in value)
    return shlex.quote(str(value)) if isinstance(value, str | Path) else str(value)
