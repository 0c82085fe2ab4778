"""From what is asked for to what will be started: the plan of a deployment, made and checked before anything runs.

Owns the request, the names of the steps, and the refusals that can be said at once. Starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from poise.testbed import environment, hardware, launch, model, ports
from poise.testbed.errors import TestbedError
from poise.testbed.plan import DeploymentPlan, EnginePlan, RouterPlan
from poise.testbed.shapes import Shape

EXPORTER_PORT = 9747

STEP_CARDS = "simulated cards"
STEP_EXPORTER = "exporter"
STEP_INSTALL = "vLLM installed"
STEP_MODEL = "model"
STEP_ROUTER = "router"


def step_engine(name: str) -> str:
    return f"vLLM {name}"


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be brought up. `fixed_ports` by part ("exporter", or one of `part_ports`); `any_ports` takes any that are
    free instead of the well-known ones. `watched` false leaves out exporter and simulated cards."""

    shape: Shape
    state_directory: Path
    cache_directory: Path
    model: str | None = None
    fixed_ports: Mapping[str, int] = field(default_factory=dict)
    any_ports: bool = False
    indexes: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    watched: bool = True


def make_plan(wanted: Request, machine: hardware.Hardware, say: Callable[[str], None]) -> DeploymentPlan:
    """The plan for this machine; `say` hears of ports that gave way. Raises TestbedError: too few GPUs, heads that do not
    divide, ports that are taken, a port for a part that is not there."""
    shape = wanted.shape
    build: environment.Build = "gpu" if machine.has_gpus else "cpu"
    if machine.has_gpus and len(machine.gpu_memory_mib) < shape.gpus:
        raise TestbedError(
            f"shape {shape.name} needs {shape.gpus} GPUs and this machine has {len(machine.gpu_memory_mib)}: use shape single"
        )
    chosen = model.choose(wanted.model, machine, shape.gpus_of_smallest_engine)
    known = model.tiny_shape() if chosen == model.TINY else model.read_shape(Path(chosen))
    for engine in shape.engines:
        model.check_parallel(known, engine.tensor_parallel_size, chosen)
    preferred = part_ports(shape)
    if wanted.watched:
        preferred["exporter"] = EXPORTER_PORT
    unknown = sorted(set(wanted.fixed_ports) - set(preferred))
    if unknown:
        raise TestbedError(f"there is no part {unknown[0]!r} to give a port: choose from {', '.join(preferred)}")
    fixed = dict.fromkeys(preferred, 0) | dict(wanted.fixed_ports) if wanted.any_ports else wanted.fixed_ports
    given = ports.plan(preferred, fixed)
    for remark in given.remarks:
        say(remark)
    return DeploymentPlan(
        shape=shape.name,
        build=build,
        environment=environment.locate(build, wanted.cache_directory).folder,
        model=chosen,
        served_name=launch.served_name(chosen),
        simulated_cards=0 if machine.has_gpus or not wanted.watched else shape.gpus,
        engines=tuple(
            EnginePlan(
                engine.name,
                given.ports[engine.name],
                engine.tensor_parallel_size,
                engine.cuda_visible_devices,
                (*engine.arguments, *wanted.arguments),
                engine.role,
                engine.kv_connector,
                given.ports.get(side_channel_part(engine.name)),
            )
            for engine in shape.engines
        ),
        exporter_port=given.ports.get("exporter"),
        router=None
        if shape.router is None
        else RouterPlan(
            shape.router.name,
            shape.router.kind,
            given.ports[shape.router.name],
            given.ports[metrics_part(shape.router.name)],
        ),
    )


def part_ports(shape: Shape) -> dict[str, int]:
    """The preferred port of everything in a shape that listens, by the name under which it can be given another."""
    preferred = {} if shape.router is None else {shape.router.name: shape.router.port}
    preferred |= {engine.name: engine.port for engine in shape.engines}
    preferred |= {side_channel_part(e.name): e.side_channel_port for e in shape.engines if e.side_channel_port is not None}
    return preferred if shape.router is None else {**preferred, metrics_part(shape.router.name): shape.router.metrics_port}


def side_channel_part(engine: str) -> str:
    return f"{engine}_side_channel"


def metrics_part(router: str) -> str:
    return f"{router}_metrics"


def step_names(wanted: Request, simulated: bool) -> list[str]:
    """The steps of `up`, in order, for a Progress."""
    watched = [STEP_CARDS, STEP_EXPORTER] if simulated else [STEP_EXPORTER]
    made = [STEP_MODEL] if simulated and wanted.model in (None, model.TINY) else []
    engines = [step_engine(engine.name) for engine in wanted.shape.engines]
    routed = [] if wanted.shape.router is None else [STEP_ROUTER]
    return [*(watched if wanted.watched else []), STEP_INSTALL, *made, *engines, *routed]
