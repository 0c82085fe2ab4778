"""Which GPUs each server of a shape gets, and how much of their memory: from what the shape says and what is free.

Pure. Knows nothing of how it is found out what is free (hardware.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poise.testbed import vllm_arguments
from poise.testbed.errors import TestbedError
from poise.testbed.hardware import Gpu
from poise.testbed.shapes import EngineShape, Shape
from poise.testbed.workers import visible_devices

# A GPU with this much in use is somebody's. A bare CUDA context, or a monitoring agent, holds a few hundred MiB.
IN_USE_MIB = 1024
# vLLM 0.32's default of --gpu-memory-utilization (config/cache.py).
MEMORY_SHARE = 0.92
SHARE_FLAG = vllm_arguments.MEMORY_SHARE[0]


@dataclass(frozen=True, slots=True)
class Place:
    """Of one server: its CUDA_VISIBLE_DEVICES (None: unset, it takes all there are) and further arguments for its memory."""

    cuda_visible_devices: str | None
    arguments: tuple[str, ...] = ()


def place(shape: Shape, gpus: Sequence[Gpu], user_visible: str | None = None) -> dict[str, Place]:
    """A place for each server by name. `user_visible`: the CUDA_VISIBLE_DEVICES of whoever asks, who may want a part of the node.

    Raises TestbedError where a shape names GPUs that are not there or that are in use, and where too few are free.
    """
    named = {engine.name: _named(shape, engine, gpus) for engine in shape.engines if engine.cuda_visible_devices is not None}
    if len(gpus) < shape.gpus:
        raise TestbedError(f"shape {shape.name} needs {shape.gpus} GPUs and this machine has {len(gpus)}: use shape single")
    taken = {index for indexes in named.values() for index in indexes}
    allowed = visible_devices(user_visible, [gpu.uuid for gpu in gpus])
    free = [index for index in sorted(allowed) if index not in taken and not _in_use(gpus[index])]
    waiting = [engine for engine in shape.engines if engine.name not in named]
    needed = sum(engine.gpus for engine in waiting)
    if needed > len(free):
        raise TestbedError(_too_few(shape, needed, free, allowed, gpus))
    whole = len(shape.engines) == 1 and needed == len(gpus)
    given: dict[str, Sequence[int]] = dict(named)
    places = {name: Place(_engine(shape, name).cuda_visible_devices) for name in named}
    for engine in waiting:
        given[engine.name], free = free[: engine.gpus], free[engine.gpus :]
        places[engine.name] = Place(None if whole else ",".join(str(index) for index in given[engine.name]))
    shares = _shares(shape, given)
    return {engine.name: Place(places[engine.name].cuda_visible_devices, shares.get(engine.name, ())) for engine in shape.engines}


def _named(shape: Shape, engine: EngineShape, gpus: Sequence[Gpu]) -> list[int]:
    """The GPUs that a shape names, by index."""
    value = engine.cuda_visible_devices or ""
    found = visible_devices(value, [gpu.uuid for gpu in gpus])
    if len(found) < len(value.split(",")):
        there = f"0 to {len(gpus) - 1}" if len(gpus) > 1 else "0 alone"
        raise TestbedError(
            f"shape {shape.name} puts engine {engine.name} on the GPUs {value} and this machine has {there}: "
            "change cuda_visible_devices, or leave it out"
        )
    for index in found[: engine.gpus]:
        if _in_use(gpus[index]):
            raise TestbedError(
                f"GPU {_use(index, gpus[index])}, and shape {shape.name} puts engine {engine.name} on it: "
                "end that, or leave cuda_visible_devices out of the shape so that a free one is taken"
            )
    return found


def _engine(shape: Shape, name: str) -> EngineShape:
    return next(engine for engine in shape.engines if engine.name == name)


def _too_few(shape: Shape, needed: int, free: Sequence[int], allowed: Sequence[int], gpus: Sequence[Gpu]) -> str:
    used = [f"GPU {_use(index, gpus[index])}" for index in allowed if _in_use(gpus[index])]
    hidden = len(gpus) - len(allowed)
    why = used + ([f"CUDA_VISIBLE_DEVICES hides {hidden}"] if hidden else [])
    return (
        f"shape {shape.name} needs {needed} free GPUs and {len(free)} of {len(gpus)} are ({'; '.join(why)}): "
        "end what uses them, or choose a smaller shape"
    )


def _in_use(gpu: Gpu) -> bool:
    return gpu.used_mib >= IN_USE_MIB


def _use(index: int, gpu: Gpu) -> str:
    """Index and use of a GPU, for a person."""
    who = f" by process {', '.join(str(pid) for pid in gpu.pids)}" if gpu.pids else ""
    return f"{index} has {gpu.used_mib} MiB in use{who}"


def _shares(shape: Shape, given: Mapping[str, Sequence[int]]) -> dict[str, tuple[str, ...]]:
    """Servers on one GPU get equal parts of what one alone would take; one whose arguments say a share keeps it.

    Raises TestbedError where the shares that the shape gives exceed a GPU.
    """
    on: dict[int, list[EngineShape]] = {}
    for engine in shape.engines:
        for index in given[engine.name][: engine.gpus]:
            on.setdefault(index, []).append(engine)
    found: dict[str, tuple[str, ...]] = {}
    for index, engines in on.items():
        if len(engines) < 2:
            continue
        said = {engine.name: share for engine in engines if (share := _said(shape, engine)) is not None}
        rest, waiting = MEMORY_SHARE - sum(said.values()), len(engines) - len(said)
        part = int(100 * rest / waiting) / 100 if waiting else 0.0
        if sum(said.values()) > 1 or (waiting and part <= 0):
            names = ", ".join(engine.name for engine in engines)
            raise TestbedError(
                f"shape {shape.name}: {names} share GPU {index} and their {SHARE_FLAG} leaves nothing for all of them: lower it"
            )
        for engine in engines:
            if engine.name not in said:
                least = min(part, float(found[engine.name][0].partition("=")[2]) if engine.name in found else 1.0)
                found[engine.name] = (f"{SHARE_FLAG}={least:.2f}",)
    return found


def _said(shape: Shape, engine: EngineShape) -> float | None:
    """The share that a server's own arguments ask for."""
    value = vllm_arguments.value_of(engine.arguments, *vllm_arguments.MEMORY_SHARE)
    if value is None:
        return None
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise TestbedError(f"shape {shape.name}: engine {engine.name} has {SHARE_FLAG} {value}: it has to be above 0 and at most 1")
    return share
