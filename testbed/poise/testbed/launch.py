"""Command lines and environments of the parts of a deployment: what is run, not how it is watched.

Pure: values in, values out. The recipes for vLLM's CPU build were measured with 0.32.0 on a 2-core machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from poise.testbed.model import SERVED_TINY, TINY
from poise.testbed.paths import StateLayout
from poise.testbed.plan import DeploymentPlan, EnginePlan, RouterPlan
from poise.testbed.ports import LOOPBACK

PATCH = Path(__file__).with_name("vllm_patch")

# Without .pyc files a start takes minutes; another Python's path or a private card list must not reach vLLM.
DROPPED = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONSTARTUP")

# Bytes for the KV cache of each worker: about 60,000 tokens of the tiny model. VLLM_CPU_KVCACHE_SPACE knows only whole GiB.
CPU_KV_CACHE_BYTES = 128 * 1024 * 1024
CPU_MAX_MODEL_LEN = 2048
CPU_MAX_NUM_SEQS = 16
# The tiny model's matrices are too small to be worth sharing out: a second thread waits more than it computes.
TINY_THREADS = 1

# vLLM's words for who makes the KV cache of a prompt and who uses it (--kv-transfer-config, 0.32).
KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}

# vllm-router 0.1.17 looks at its workers once a minute and calls one dead after three misses; a testbed in which servers are
# killed and come back is not to wait minutes for either.
ROUTER_HEALTH_SECONDS = 2
ROUTER_FAILURES = 2

# What answers 200 once a part is ready. vllm-router 0.1.17 does so there once both prefill and decode are healthy.
ENGINE_READY_PATH = "/health"
ROUTER_READY_PATH = "/readiness"
EXPORTER_READY_PATH = "/readyz"


def engine_command(plan: DeploymentPlan, engine: EnginePlan, model: str) -> list[str]:
    """The arguments of `vllm serve`; `model` is a folder or a name on Hugging Face, unless the engine has one of its own."""
    command = [
        str(plan.environment / "bin" / "vllm"),
        "serve",
        engine.model or model,
        *("--served-model-name", plan.served_name),
        *("--host", LOOPBACK, "--port", str(engine.port)),
        *("--tensor-parallel-size", str(engine.tensor_parallel_size)),
    ]
    if engine.pipeline_parallel_size > 1:
        command += ["--pipeline-parallel-size", str(engine.pipeline_parallel_size)]
    if plan.build == "cpu":
        command += [
            *("--dtype", "bfloat16"),
            *("--max-model-len", str(CPU_MAX_MODEL_LEN)),
            *("--max-num-seqs", str(CPU_MAX_NUM_SEQS)),
            *("--kv-cache-memory-bytes", str(CPU_KV_CACHE_BYTES)),
            "--enforce-eager",
        ]
    if engine.kv_connector is not None:
        command += ["--kv-transfer-config", json.dumps(_kv_transfer(plan, engine))]
    return [*command, *engine.arguments]


def _kv_transfer(plan: DeploymentPlan, engine: EnginePlan) -> dict[str, str]:
    """--kv-transfer-config. The CPU build has to be told that its KV cache lies in main memory."""
    wanted = {"kv_connector": str(engine.kv_connector), "kv_role": KV_ROLES.get(engine.role, "kv_both")}
    if engine.engine_id is not None:
        wanted["engine_id"] = engine.engine_id
    return {**wanted, "kv_buffer_device": "cpu"} if plan.build == "cpu" else wanted


def engine_environment(plan: DeploymentPlan, engine: EnginePlan, layout: StateLayout, environ: Mapping[str, str]) -> dict[str, str]:
    """What `vllm serve` finds in its environment. On GPUs a CUDA_VISIBLE_DEVICES of the user stays unless the plan has one."""
    result = clean(environ, layout)
    result["PATH"] = f"{plan.environment / 'bin'}:{environ.get('PATH', '/usr/bin:/bin')}"
    # vLLM reports usage to its authors otherwise.
    result |= {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if plan.build == "cpu":
        result.pop("CUDA_VISIBLE_DEVICES", None)
        result |= {
            "PYTHONPATH": str(PATCH),
            # vLLM's own default wants one NUMA node for each rank.
            "VLLM_CPU_OMP_THREADS_BIND": _binding(engine),
            "OMP_NUM_THREADS": str(TINY_THREADS),
            # Else the first request of a tensor-parallel server waits 16 s for a C++ compiler.
            "TORCHDYNAMO_DISABLE": "1",
            # `vllm serve` spawns otherwise, and engine core and workers import everything anew (vllm_patch).
            "VLLM_WORKER_MULTIPROC_METHOD": environ.get("VLLM_WORKER_MULTIPROC_METHOD", _method(engine)),
            "VLLM_HOST_IP": LOOPBACK,
            "GLOO_SOCKET_IFNAME": "lo",
            "POISE_TESTBED_BLACKHOLE": str(layout.blackhole(engine.name)),
        }
    if engine.side_channel_port is not None:
        result |= {"VLLM_NIXL_SIDE_CHANNEL_HOST": engine.side_channel_host, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(engine.side_channel_port)}
        if plan.build == "cpu":
            # UCX tries every transport and network device of the machine otherwise.
            result |= {"UCX_TLS": "tcp,self,sm", "UCX_NET_DEVICES": "lo"}
    if plan.model == TINY:
        result |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if engine.cuda_visible_devices is not None:
        result["CUDA_VISIBLE_DEVICES"] = engine.cuda_visible_devices
        if plan.build == "gpu":
            # The plan counts as the driver does; CUDA by itself puts the fastest first.
            result["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return result


def _binding(engine: EnginePlan) -> str:
    """VLLM_CPU_OMP_THREADS_BIND: the cores of each rank; a fault may leave the server fewer ranks than it was planned with."""
    return "nobind" if engine.cpu_binding is None else "|".join(engine.cpu_binding.split("|")[: engine.gpus])


def _method(engine: EnginePlan) -> str:
    """How workers are started. OpenMP reads its binding when it is loaded, which a forked worker did in its parent; and a machine with cores to
    bind ranks to has cores to import on."""
    return "fork" if engine.cpu_binding is None else "spawn"


def router_command(plan: DeploymentPlan, router: RouterPlan) -> list[str]:
    """vllm-router 0.1.17 in front of the plan's prefill and decode engines."""
    return [
        str(plan.environment / "bin" / router.kind),
        *("--host", LOOPBACK, "--port", str(router.port)),
        *("--prometheus-host", LOOPBACK, "--prometheus-port", str(router.metrics_port)),
        *("--policy", "round_robin", "--vllm-pd-disaggregation", "--kv-connector", "nixl"),
        *(word for engine in plan.engines if engine.role == "prefill" for word in ("--prefill", engine.url)),
        *(word for engine in plan.engines if engine.role == "decode" for word in ("--decode", engine.url)),
        *("--worker-startup-check-interval", str(ROUTER_HEALTH_SECONDS)),
        *("--health-check-interval-secs", str(ROUTER_HEALTH_SECONDS)),
        *("--health-failure-threshold", str(ROUTER_FAILURES), "--health-success-threshold", "1"),
    ]


def router_environment(plan: DeploymentPlan, layout: StateLayout, environ: Mapping[str, str]) -> dict[str, str]:
    """What the router finds in its environment: it needs no GPU, and none of what leads Python astray."""
    return clean(environ, layout) | {"PATH": f"{plan.environment / 'bin'}:{environ.get('PATH', '/usr/bin:/bin')}"}


def served_name(model: str) -> str:
    """The name under which requests ask for the model."""
    return SERVED_TINY if model == TINY else model


def exporter_command(port: int, expected_gpus: int | None) -> list[str]:
    """`poise exporter` on loopback only: a testbed is not to be seen from other machines."""
    command = [sys.executable, "-m", "poise.cli", "exporter", "--listen", f"{LOOPBACK}:{port}"]
    return command if expected_gpus is None else [*command, "--expected-gpus", str(expected_gpus)]


def mirror_command(layout: StateLayout) -> list[str]:
    return [sys.executable, "-m", "poise.testbed.mirror", str(layout.root)]


def keeper_command(layout: StateLayout, descriptor: int) -> list[str]:
    return [sys.executable, "-m", "poise.testbed.keeper", str(layout.root), str(descriptor)]


def clean(environ: Mapping[str, str], layout: StateLayout) -> dict[str, str]:
    """The environment without what would lead vLLM astray, with the deployment's own temporary folder."""
    result = {name: value for name, value in environ.items() if name not in DROPPED}
    result["TMPDIR"] = str(layout.temporary)
    return result
