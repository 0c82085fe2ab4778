"""The shapes of deployment that can be started: which engines, over how many GPUs. Data lies in shapes/*.toml.

Owns reading and checking that data. Knows nothing of processes.
"""

from __future__ import annotations

import importlib.resources
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from poise.testbed.errors import TestbedError

EngineRole = Literal["mixed", "prefill", "decode"]
RouterKind = Literal["vllm-router"]


@dataclass(frozen=True, slots=True)
class EngineShape:
    """One vLLM server. Ports are the preferred ones; `cuda_visible_devices` None leaves the variable unset (all GPUs).

    A server that does prefill or decode alone has a `kv_connector` (vLLM's name) and a port of its side channel, over which
    decode asks prefill where the KV cache lies.
    """

    name: str
    port: int
    tensor_parallel_size: int
    cuda_visible_devices: str | None = None
    arguments: tuple[str, ...] = ()
    role: EngineRole = "mixed"
    kv_connector: str | None = None
    side_channel_port: int | None = None


@dataclass(frozen=True, slots=True)
class RouterShape:
    """The one address of a deployment that is split into prefill and decode. Ports are the preferred ones."""

    name: str
    kind: RouterKind
    port: int
    metrics_port: int


@dataclass(frozen=True, slots=True)
class Shape:
    """A deployment. `gpus` is the number of GPUs it needs, and of cards that are simulated where there are none."""

    name: str
    title: str
    gpus: int
    engines: tuple[EngineShape, ...]
    router: RouterShape | None = None

    @property
    def gpus_of_smallest_engine(self) -> int:
        """Over how many GPUs the weights are spread at least: each server holds all of them."""
        return min(engine.tensor_parallel_size for engine in self.engines)


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
    _only(name, data, {"title", "gpus", "engine", "router"})
    title, gpus, tables = data.get("title"), data.get("gpus"), data.get("engine")
    if not isinstance(title, str) or not isinstance(gpus, int) or gpus < 1 or not isinstance(tables, list) or not tables:
        raise TestbedError(f"shape {name}: title (text), gpus (1 or more) and at least one [[engine]] are needed")
    engines = tuple(_engine(name, table) for table in tables)
    router = _router(name, data["router"]) if "router" in data else None
    parts = [engine.name for engine in engines] + ([router.name] if router else [])
    if len(set(parts)) != len(parts):
        raise TestbedError(f"shape {name}: two parts have the same name")
    roles = {engine.role for engine in engines}
    if roles != ({"prefill", "decode"} if router else {"mixed"}):
        raise TestbedError(f"shape {name}: engines of role prefill, engines of role decode and a [router] come together or not at all")
    return Shape(name, title, gpus, engines, router)


def _engine(shape: str, table: object) -> EngineShape:
    if not isinstance(table, dict):
        raise TestbedError(f"shape {shape}: [[engine]] has to be a table")
    _only(shape, table, set(EngineShape.__dataclass_fields__))
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
    role, connector, side_channel = table.get("role", "mixed"), table.get("kv_connector"), table.get("side_channel_port")
    if role == "mixed":
        if connector is not None or side_channel is not None:
            raise TestbedError(f"shape {shape}: engine {name} has a kv_connector or side_channel_port but no role prefill or decode")
        return EngineShape(name, port, size, visible, tuple(arguments))
    if role not in ("prefill", "decode"):
        raise TestbedError(f"shape {shape}: role of engine {name} has to be mixed, prefill or decode")
    if not isinstance(connector, str) or not isinstance(side_channel, int):
        raise TestbedError(f"shape {shape}: engine {name} of role {role} needs kv_connector (text) and side_channel_port (whole number)")
    known: EngineRole = "prefill" if role == "prefill" else "decode"
    return EngineShape(name, port, size, visible, tuple(arguments), known, connector, side_channel)


def _router(shape: str, table: object) -> RouterShape:
    if not isinstance(table, dict):
        raise TestbedError(f"shape {shape}: [router] has to be a table")
    _only(shape, table, set(RouterShape.__dataclass_fields__))
    name, kind, port, metrics_port = (table.get(key) for key in ("name", "kind", "port", "metrics_port"))
    if not isinstance(name, str) or not name.isidentifier():
        raise TestbedError(f"shape {shape}: a router needs a name of letters, digits and _ (it becomes a file name)")
    if kind != "vllm-router" or not isinstance(port, int) or not isinstance(metrics_port, int):
        raise TestbedError(f'shape {shape}: router {name} needs kind = "vllm-router", port and metrics_port as whole numbers')
    return RouterShape(name, "vllm-router", port, metrics_port)


def _only(shape: str, table: Mapping[str, object], known: set[str]) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise TestbedError(f"shape {shape}: unknown key {unknown[0]!r}: known are {', '.join(sorted(known))}")
