"""What a deployment is to be: written to the state directory before anything starts, read by everybody who changes it later.

Owns that file. Holds no secret: arguments that carry one are refused. Knows nothing of how things are started.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from poise.testbed.environment import Build
from poise.testbed.errors import TestbedError
from poise.testbed.files import read_json_object, write_json
from poise.testbed.paths import StateLayout
from poise.testbed.ports import LOOPBACK
from poise.testbed.shapes import EngineRole, RouterKind


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One vLLM server as it is to be started now.

    Faults set `model` (a folder; None: the deployment's), `side_channel_host` and `engine_id` (of the KV transfer; None: vLLM draws one
    at each start).
    """

    name: str
    port: int
    tensor_parallel_size: int
    cuda_visible_devices: str | None
    arguments: tuple[str, ...]
    role: EngineRole = "mixed"
    kv_connector: str | None = None
    side_channel_port: int | None = None
    pipeline_parallel_size: int = 1
    cpu_binding: str | None = None  # cores for each rank as in VLLM_CPU_OMP_THREADS_BIND, None: none
    model: str | None = None
    side_channel_host: str = LOOPBACK
    engine_id: str | None = None

    @property
    def gpus(self) -> int:
        """How many GPUs the server needs, and how many workers it has: a rank each."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def sizes(self) -> str:
        """Its parallel sizes in words."""
        stages = f", pipeline parallel {self.pipeline_parallel_size}" if self.pipeline_parallel_size > 1 else ""
        return f"tensor parallel {self.tensor_parallel_size}{stages}"

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"


@dataclass(frozen=True, slots=True)
class RouterPlan:
    """The router in front of prefill and decode."""

    name: str
    kind: RouterKind
    port: int
    metrics_port: int

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def metrics_url(self) -> str:
        return f"http://{LOOPBACK}:{self.metrics_port}"


@dataclass(frozen=True, slots=True)
class DeploymentPlan:
    """`build` says whether there are GPUs ("gpu") or simulated cards ("cpu"); `simulated_cards` is 0 with GPUs.

    `engines` is what runs now, `healthy` what was brought up: a fault changes the one, undoing it goes by the other.
    """

    shape: str
    build: Build
    environment: Path
    model: str
    served_name: str
    simulated_cards: int
    engines: tuple[EnginePlan, ...]
    exporter_port: int | None
    fault: str | None = None
    router: RouterPlan | None = None
    healthy: tuple[EnginePlan, ...] = ()  # filled from `engines` where it is not given

    def __post_init__(self) -> None:
        if not self.healthy:
            object.__setattr__(self, "healthy", self.engines)

    @property
    def url(self) -> str:
        """Where clients send their requests: the router, without one the first engine."""
        return self.engines[0].url if self.router is None else self.router.url

    @property
    def exporter_url(self) -> str | None:
        return None if self.exporter_port is None else f"http://{LOOPBACK}:{self.exporter_port}"


def write(path: Path, plan: DeploymentPlan) -> None:
    write_json(path, {**asdict(plan), "environment": str(plan.environment)})


def read(path: Path) -> DeploymentPlan:
    """Raises TestbedError when no deployment is there, or its file is damaged or was made by another version of Poise."""
    value = read_json_object(path)
    if value is None and os.path.lexists(path):
        raise TestbedError(f"{path} cannot be read (damaged?): `poise testbed down` ends what runs there, then up again")
    if value is None and any(StateLayout(path.parent).records.glob("*.json")):
        raise TestbedError(f"{path} is gone, but there are records of its processes: `poise testbed down` ends them, then up again")
    if value is None:
        raise TestbedError(f"no deployment in {path.parent}: start one with `poise testbed up tp`")
    try:
        return _parse(value)
    except (KeyError, TypeError, ValueError) as error:
        raise TestbedError(f"{path} was written by another version ({error}): `poise testbed down`, then up again") from None


def _parse(value: Mapping[str, object]) -> DeploymentPlan:
    engines, healthy, build = value["engines"], value["healthy"], value["build"]
    if not isinstance(engines, list) or not isinstance(healthy, list) or build not in ("cpu", "gpu"):
        raise ValueError("engines, healthy or build")
    known: Build = "cpu" if build == "cpu" else "gpu"
    exporter, fault = value["exporter_port"], value["fault"]
    return DeploymentPlan(
        shape=_text(value, "shape"),
        build=known,
        environment=Path(_text(value, "environment")),
        model=_text(value, "model"),
        served_name=_text(value, "served_name"),
        simulated_cards=_number(value, "simulated_cards"),
        engines=tuple(_engine(engine) for engine in engines),
        exporter_port=exporter if isinstance(exporter, int) else None,
        fault=fault if isinstance(fault, str) else None,
        router=_router(value["router"]),
        healthy=tuple(_engine(engine) for engine in healthy),
    )


def _engine(value: Mapping[str, object]) -> EnginePlan:
    visible, arguments, role = value["cuda_visible_devices"], value["arguments"], value["role"]
    connector, side_channel, binding = value["kv_connector"], value["side_channel_port"], value["cpu_binding"]
    other_model, engine_id = value["model"], value["engine_id"]
    if not isinstance(arguments, list):
        raise ValueError("arguments")
    return EnginePlan(
        name=_text(value, "name"),
        port=_number(value, "port"),
        tensor_parallel_size=_number(value, "tensor_parallel_size"),
        cuda_visible_devices=visible if isinstance(visible, str) else None,
        arguments=tuple(str(argument) for argument in arguments),
        role="prefill" if role == "prefill" else "decode" if role == "decode" else "mixed",
        kv_connector=connector if isinstance(connector, str) else None,
        side_channel_port=side_channel if isinstance(side_channel, int) else None,
        pipeline_parallel_size=_number(value, "pipeline_parallel_size"),
        cpu_binding=binding if isinstance(binding, str) else None,
        model=other_model if isinstance(other_model, str) else None,
        side_channel_host=_text(value, "side_channel_host"),
        engine_id=engine_id if isinstance(engine_id, str) else None,
    )


def _router(value: object) -> RouterPlan | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise TypeError("router")
    return RouterPlan(_text(value, "name"), "vllm-router", _number(value, "port"), _number(value, "metrics_port"))


def _text(value: Mapping[str, object], key: str) -> str:
    found = value[key]
    if not isinstance(found, str):
        raise TypeError(key)
    return found


def _number(value: Mapping[str, object], key: str) -> int:
    found = value[key]
    if not isinstance(found, int):
        raise TypeError(key)
    return found
