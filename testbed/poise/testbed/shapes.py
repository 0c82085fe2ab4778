"""The shapes of deployment that can be started: which engines, over how many GPUs. Data lies in shapes/*.toml.

Owns reading and checking that data. Knows nothing of processes.
"""

from __future__ import annotations

import importlib.resources
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass

from poise.testbed.errors import TestbedError


@dataclass(frozen=True, slots=True)
class EngineShape:
    """One vLLM server. `port` is the preferred one; `cuda_visible_devices` None leaves the variable unset (all GPUs)."""

    name: str
    port: int
    tensor_parallel_size: int
    cuda_visible_devices: str | None = None
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """A deployment. `gpus` is the number of GPUs it needs, and of cards that are simulated where there are none."""

    name: str
    title: str
    gpus: int
    engines: tuple[EngineShape, ...]


def names() -> list[str]:
    folder = importlib.resources.files("poise.testbed") / "shapes"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load(name: str) -> Shape:
    """Raises TestbedError for a name that is not there."""
    if name not in names():
        raise TestbedError(f"there is no shape {name!r}: choose from {', '.join(names())}")
    text = (importlib.resources.files("poise.testbed") / "shapes" / f"{name}.toml").read_text(encoding="utf-8")
    return parse(name, tomllib.loads(text))


def parse(name: str, data: Mapping[str, object]) -> Shape:
    """Raises TestbedError naming the key that is missing, unknown or of the wrong kind."""
    _only(name, data, {"title", "gpus", "engine"})
    title, gpus, tables = data.get("title"), data.get("gpus"), data.get("engine")
    if not isinstance(title, str) or not isinstance(gpus, int) or gpus < 1 or not isinstance(tables, list) or not tables:
        raise TestbedError(f"shape {name}: title (text), gpus (1 or more) and at least one [[engine]] are needed")
    engines = tuple(_engine(name, table) for table in tables)
    if len({engine.name for engine in engines}) != len(engines):
        raise TestbedError(f"shape {name}: two engines have the same name")
    return Shape(name, title, gpus, engines)


def _engine(shape: str, table: object) -> EngineShape:
    if not isinstance(table, dict):
        raise TestbedError(f"shape {shape}: [[engine]] has to be a table")
    _only(shape, table, {"name", "port", "tensor_parallel_size", "cuda_visible_devices", "arguments"})
    name, port, size = table.get("name"), table.get("port"), table.get("tensor_parallel_size", 1)
    visible, arguments = table.get("cuda_visible_devices"), table.get("arguments", [])
    if not isinstance(name, str) or not name.isidentifier():
        raise TestbedError(f"shape {shape}: an engine needs a name of letters, digits and _ (it becomes a file name)")
    if not isinstance(port, int) or not isinstance(size, int) or size < 1:
        raise TestbedError(f"shape {shape}: engine {name} needs port and tensor_parallel_size as whole numbers")
    if visible is not None and not isinstance(visible, str):
        raise TestbedError(f"shape {shape}: cuda_visible_devices of engine {name} has to be a text")
    if not isinstance(arguments, list) or not all(isinstance(argument, str) for argument in arguments):
        raise TestbedError(f"shape {shape}: arguments of engine {name} have to be a list of texts")
    return EngineShape(name, port, size, visible, tuple(arguments))


def _only(shape: str, table: Mapping[str, object], known: set[str]) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise TestbedError(f"shape {shape}: unknown key {unknown[0]!r}: known are {', '.join(sorted(known))}")
