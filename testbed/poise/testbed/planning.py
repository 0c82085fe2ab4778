"""From what is asked for to what will be started: the plan of a deployment, made and checked before anything runs.

Owns the request, the names of the steps, and the refusals that can be said at once. Starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from poise.testbed import cards, environment, hardware, launch, model, naming, placing, ports, resources
from poise.testbed.errors import TestbedError
from poise.testbed.plan import DeploymentPlan, EnginePlan, RouterPlan
from poise.testbed.resources import Resources
from poise.testbed.shapes import EngineShape, Shape

EXPORTER_PORT = 9747

STEP_CARDS = "simulated cards"
STEP_EXPORTER = "exporter"
STEP_INSTALL = f"vLLM {naming.INSTALLED}"
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
    too few GPUs or GPUs in use, more than can be simulated, heads or layers that do not divide, too little memory or disk, ports that are
    taken, a port for a part that is not there."""
    if not machine.hardware.has_gpus and wanted.watched:
        cards.profile(wanted.shape.gpus)
    agreed = arrange(wanted, machine, _ports(wanted, say))
    environment.check_space(agreed.build, wanted.cache_directory)
    if agreed.build == "cpu":
        weights = 0 if agreed.model == model.TINY else model.weight_bytes(Path(agreed.model))
        resources.check(wanted.shape, resources.needed(wanted.shape, weights, launch.CPU_KV_CACHE_BYTES), machine.resources)
    return agreed


def arrange(wanted: Request, machine: Machine, given: Mapping[str, int]) -> DeploymentPlan:
    """The plan with these ports, by part. Raises TestbedError where GPUs are too few or in use and where heads or layers do not divide;
    whether there is room for it is not looked at."""
    engines = (replace(engine, arguments=(*engine.arguments, *wanted.arguments)) for engine in wanted.shape.engines)
    shape = replace(wanted.shape, engines=tuple(engines))
    gpus = machine.hardware.gpus
    build: environment.Build = "gpu" if gpus else "cpu"
    places = placing.place(shape, gpus or (hardware.Gpu(0),) * shape.gpus, machine.user_visible)
    chosen = model.choose(wanted.model, machine.hardware, shape.gpus_of_smallest_engine)
    known = model.tiny_shape() if chosen == model.TINY else model.read_shape(Path(chosen))
    for engine in shape.engines:
        model.check_parallel(known, engine.tensor_parallel_size, chosen, engine.pipeline_parallel_size)
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
            side_channel_port=given.get(naming.side_channel(engine.name)),
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
        exporter_port=given.get(naming.EXPORTER),
        router=None if router is None else RouterPlan(router.name, router.kind, given[router.name], given[naming.metrics(router.name)]),
    )


def _ports(wanted: Request, say: Callable[[str], None]) -> Mapping[str, int]:
    """A port for each part that listens."""
    preferred = preferred_ports(wanted)
    fixed = dict.fromkeys(preferred, 0) | dict(wanted.fixed_ports) if wanted.any_ports else wanted.fixed_ports
    given = ports.plan(preferred, fixed)
    for remark in given.remarks:
        say(remark)
    return given.ports


def preferred_ports(wanted: Request) -> dict[str, int]:
    """The preferred port of everything that will listen. Raises TestbedError when a port is fixed for a part that is not there."""
    preferred = part_ports(wanted.shape)
    if wanted.watched:
        preferred[naming.EXPORTER] = EXPORTER_PORT
    unknown = sorted(set(wanted.fixed_ports) - set(preferred))
    if unknown:
        raise TestbedError(f"there is no part {unknown[0]!r} to give a port: choose from {', '.join(preferred)}")
    return preferred


def ports_of(plan: DeploymentPlan) -> dict[str, int]:
    """The port of everything in a plan that listens, by the names of `preferred_ports`."""
    found = {engine.name: engine.port for engine in plan.healthy}
    found |= {naming.side_channel(e.name): e.side_channel_port for e in plan.healthy if e.side_channel_port is not None}
    if plan.router is not None:
        found |= {plan.router.name: plan.router.port, naming.metrics(plan.router.name): plan.router.metrics_port}
    return found if plan.exporter_port is None else {**found, naming.EXPORTER: plan.exporter_port}


def part_ports(shape: Shape) -> dict[str, int]:
    """The preferred port of everything in a shape that listens, by the name under which it can be given another."""
    preferred = {} if shape.router is None else {shape.router.name: shape.router.port}
    preferred |= {engine.name: engine.port for engine in shape.engines}
    preferred |= {naming.side_channel(e.name): e.side_channel_port for e in shape.engines if e.side_channel_port is not None}
    return preferred if shape.router is None else {**preferred, naming.metrics(shape.router.name): shape.router.metrics_port}


def step_names(wanted: Request, simulated: bool) -> list[str]:
    """The steps of `up`, in order, for a Progress."""
    watched = [STEP_CARDS, STEP_EXPORTER] if simulated else [STEP_EXPORTER]
    made = [STEP_MODEL] if simulated and wanted.model in (None, model.TINY) else []
    engines = [step_engine(engine.name) for engine in wanted.shape.engines]
    routed = [] if wanted.shape.router is None else [STEP_ROUTER]
    return [*(watched if wanted.watched else []), STEP_INSTALL, *made, *engines, *routed]
