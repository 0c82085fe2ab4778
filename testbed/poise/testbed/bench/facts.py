"""What a run was made with: the deployment as it was, versions, the machine. Owns what may be said of them.

Arguments of servers are told by an allow-list, of others only that they were there: a key may stand in one. No host name, no user name.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from poise.exporter.version import installed_version
from poise.testbed import launch
from poise.testbed.plan import DeploymentPlan, EnginePlan

# Arguments of `vllm serve` (0.32) that decide speed and hold no secret; what is not here is named without its value.
TOLD_ARGUMENTS = frozenset(
    {
        "--tensor-parallel-size",
        "--pipeline-parallel-size",
        "--data-parallel-size",
        "--dtype",
        "--quantization",
        "--kv-cache-dtype",
        "--block-size",
        "--max-model-len",
        "--max-num-seqs",
        "--max-num-batched-tokens",
        "--gpu-memory-utilization",
        "--kv-cache-memory-bytes",
        "--kv-transfer-config",
        "--distributed-executor-backend",
        "--enforce-eager",
        "--enable-chunked-prefill",
        "--no-enable-chunked-prefill",
        "--enable-prefix-caching",
        "--no-enable-prefix-caching",
        "--async-scheduling",
        "--no-async-scheduling",
        "--scheduling-policy",
    }
)
# Said elsewhere in the run, or of no meaning outside this machine.
LEFT_OUT = frozenset({"--served-model-name", "--host", "--port"})
_NAME = re.compile(r"--[a-z][a-z0-9-]*")
# The distributions whose versions decide what was measured.
DISTRIBUTIONS = ("vllm", "torch", "transformers", "nixl", "vllm_router")
LONGEST_VALUE = 256


def deployment_facts(plan: DeploymentPlan, direct: str | None) -> dict[str, object]:
    """Shape, model, engines and router. `direct` names the engine that was asked past the router."""
    return {
        "shape": plan.shape,
        "build": plan.build,
        "model": plan.served_name,
        "fault": plan.fault,
        "gpus": sum(engine.gpus for engine in plan.healthy),
        "router": None if plan.router is None else plan.router.kind,
        "asked": direct or (plan.engines[0].name if plan.router is None else plan.router.name),
        "engines": [_engine_facts(plan, engine) for engine in plan.engines],
    }


def _engine_facts(plan: DeploymentPlan, engine: EnginePlan) -> dict[str, object]:
    told, others = told_arguments(engine_words(plan, engine))
    return {
        "name": engine.name,
        "role": engine.role,
        "tensor_parallel_size": engine.tensor_parallel_size,
        "pipeline_parallel_size": engine.pipeline_parallel_size,
        "gpus": engine.gpus,
        "cuda_visible_devices": engine.cuda_visible_devices,
        "kv_connector": engine.kv_connector,
        "arguments": told,
        "other_arguments": others,
    }


def engine_words(plan: DeploymentPlan, engine: EnginePlan) -> list[str]:
    """The arguments of `vllm serve` behind the model."""
    return launch.engine_command(plan, engine, plan.served_name)[3:]


def told_arguments(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Values of the arguments that may be told ("" for a switch), and the names of those that may not."""
    told: dict[str, str] = {}
    others: list[str] = []
    for name, value in _arguments(words):
        if name in TOLD_ARGUMENTS:
            told[name] = value[:LONGEST_VALUE]
        elif name not in LEFT_OUT:
            others.append(name)
    return told, others


def _arguments(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(name, value) of each `--name value`, `--name=value` and `--switch`; words that belong to none are passed over."""
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not _NAME.fullmatch(name):
            continue
        following = words[position + 1] if position + 1 < len(words) else ""
        yield name, value if equals else ("" if following.startswith("--") else following)


def versions(plan: DeploymentPlan, driver: str, simulated: bool) -> dict[str, str]:
    """Of Poise, what is installed in vLLM's environment, and the driver ("simulated" where the cards are)."""
    found = {"poise": installed_version(), "python": platform.python_version(), **installed(plan.environment)}
    if simulated:
        return {**found, "driver": "simulated"}
    return {**found, "driver": driver} if driver else found


def installed(environment: Path) -> dict[str, str]:
    """The versions of DISTRIBUTIONS in a Python environment, by the names of their metadata folders. What is not there is left out."""
    found: dict[str, str] = {}
    for folder in sorted(environment.glob("lib/python3.*/site-packages/*.dist-info")):
        name, _, version = folder.name.removesuffix(".dist-info").partition("-")
        if name in DISTRIBUTIONS:
            found[name] = version
    return found


def machine(proc: Path = Path("/proc")) -> dict[str, object]:
    """Processor, cores that this process may use, memory in bytes, kernel. What cannot be read is left out."""
    found: dict[str, object] = {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
    }
    processor = _value(proc / "cpuinfo", "model name")
    memory = _value(proc / "meminfo", "MemTotal")
    if processor:
        found["processor"] = processor
    if memory and memory.split()[0].isdecimal():
        found["memory_bytes"] = int(memory.split()[0]) * 1024
    return found


def _value(path: Path, key: str) -> str | None:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key), None)
