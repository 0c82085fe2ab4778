"""From what is asked for to what will be started: the plan of a deployment, made and checked before anything runs.

Owns the request, the names of the steps, and the refusals that can be said at once. Starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from poise.testbed import environment, hardware, launch, model, placing, ports, resources
from poise.testbed.errors import TestbedError
from poise.testbed.plan import DeploymentPlan, EnginePlan, RouterPlan
from poise.testbed.resources import Resources
from poise.testbed.shapes import EngineShape, Shape

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


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is: GPUs, cores and memory, and which of the GPUs whoever asks wants to be used (CUDA_VISIBLE_DEVICES)."""

    hardware: hardware.Hardware
    resources: Resources
    user_visible: str | None = None


def look(environ: Mapping[str, str]) -> Machine:
    """This machine now. Raises TestbedError when there is a driver that cannot be asked."""
    found = hardware.detect()
    return Machine(found, resources.measure(), environ.get("CUDA_VISIBLE_DEVICES") if found.has_gpus else None)


def make_plan(wanted: Request, machine: Machine, say: Callable[[str], None]) -> DeploymentPlan:
    """The plan for this machine; `say` hears of ports that gave way. Raises TestbedError for all that can be told before anything starts:
    too few GPUs or GPUs in use, heads or layers that do not divide, too little memory or disk, ports that are taken, a port for a part
    that is not there."""
    engines = (replace(engine, arguments=(*engine.arguments, *wanted.arguments)) for engine in wanted.shape.engines)
    shape = replace(wanted.shape, engines=tuple(engines))
    gpus = machine.hardware.gpus
    build: environment.Build = "gpu" if gpus else "cpu"
    given = _ports(wanted, say)
    places = placing.place(shape, gpus or (hardware.Gpu(0),) * shape.gpus, machine.user_visible)
    chosen = model.choose(wanted.model, machine.hardware, shape.gpus_of_smallest_engine)
    known = model.tiny_shape() if chosen == model.TINY else model.read_shape(Path(chosen))
    for engine in shape.engines:
        model.check_parallel(known, engine.tensor_parallel_size, chosen, engine.pipeline_parallel_size)
    environment.check_space(build, wanted.cache_directory)
    if build == "cpu":
        weights = 0 if chosen == model.TINY else model.weight_bytes(Path(chosen))
        resources.check(shape, resources.needed(shape, weights, launch.CPU_KV_CACHE_BYTES), machine.resources)
    bound = resources.bind(shape, machine.resources.cores, build, launch.TINY_THREADS if chosen == model.TINY else None)

    def planned(engine: EngineShape) -> EnginePlan:
        place = places[engine.name]
        return EnginePlan(
            name=engine.name,
            port=given[engine.name],
            tensor_parallel_size=engine.tensor_parallel_size,
            cuda_visible_devices=place.cuda_visible_devices,
            arguments=(*(place.arguments if gpus else ()), *engine.arguments),
            role=engine.role,
            kv_connector=engine.kv_connector,
            side_channel_port=given.get(side_channel_part(engine.name)),
            pipeline_parallel_size=engine.pipeline_parallel_size,
            cpu_binding=bound.get(engine.name),
        )

    router = shape.router
    return DeploymentPlan(
        shape=shape.name,
        build=build,
        environment=environment.locate(build, wanted.cache_directory).folder,
        model=chosen,
        served_name=launch.served_name(chosen),
        simulated_cards=0 if gpus or not wanted.watched else shape.gpus,
        engines=tuple(planned(engine) for engine in shape.engines),
        exporter_port=given.get("exporter"),
        router=None if router is None else RouterPlan(router.name, router.kind, given[router.name], given[metrics_part(router.name)]),
    )


def _ports(wanted: Request, say: Callable[[str], None]) -> Mapping[str, int]:
    """A port for each part that listens."""
    preferred = part_ports(wanted.shape)
    if wanted.watched:
        preferred["exporter"] = EXPORTER_PORT
    unknown = sorted(set(wanted.fixed_ports) - set(preferred))
    if unknown:
        raise TestbedError(f"there is no part {unknown[0]!r} to give a port: choose from {', '.join(preferred)}")
    fixed = dict.fromkeys(preferred, 0) | dict(wanted.fixed_ports) if wanted.any_ports else wanted.fixed_ports
    given = ports.plan(preferred, fixed)
    for remark in given.remarks:
        say(remark)
    return given.ports


def same(plan: DeploymentPlan, shape: Shape) -> bool:
    """Whether a deployment was brought up with this shape: by name, and by its servers, whose number and sizes can be asked for."""
    brought_up = [(e.name, e.role, e.tensor_parallel_size, e.pipeline_parallel_size) for e in plan.healthy]
    wanted = [(e.name, e.role, e.tensor_parallel_size, e.pipeline_parallel_size) for e in shape.engines]
    return plan.shape == shape.name and brought_up == wanted


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
