"""What the testbed can use on this machine: NVIDIA GPUs through their driver, or none.

Knows nothing of vLLM. Simulated cards are never taken for real ones: only the kernel's driver counts.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from poise.testbed.errors import TestbedError

NVIDIA_SMI_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU: memory in MiB, what of it is used by whomever, and the processes that the driver names."""

    memory_mib: int
    uuid: str = ""
    used_mib: int = 0
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Hardware:
    """The NVIDIA GPUs in the driver's order, which is CUDA's with CUDA_DEVICE_ORDER=PCI_BUS_ID; empty without a driver."""

    gpus: tuple[Gpu, ...] = ()

    @property
    def has_gpus(self) -> bool:
        return bool(self.gpus)

    @property
    def gpu_memory_mib(self) -> tuple[int, ...]:
        return tuple(gpu.memory_mib for gpu in self.gpus)


def has_nvidia_driver(proc: Path = Path("/proc"), dev: Path = Path("/dev")) -> bool:
    """The kernel module is loaded, or its control device was given to this container."""
    return (proc / "driver" / "nvidia" / "version").exists() or (dev / "nvidiactl").exists()


def detect() -> Hardware:
    """Raises TestbedError when there is a driver that cannot be asked: simulating then would hide a real fault."""
    if not has_nvidia_driver():
        return Hardware(())
    program = shutil.which("nvidia-smi")
    if program is None:
        raise TestbedError("an NVIDIA driver is loaded but nvidia-smi is not on PATH: install the driver's utilities")
    cards = _ask(program, "--query-gpu=uuid,memory.total,memory.used")
    # A driver that cannot list processes, or lists none from inside a container, still says what memory is used.
    return Hardware(parse_gpus(cards, _ask(program, "--query-compute-apps=gpu_uuid,pid")))


def _ask(program: str, query: str) -> list[str]:
    command = [program, query, "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise TestbedError(f"nvidia-smi did not answer within {NVIDIA_SMI_SECONDS:.0f} s: the driver hangs") from None
    if answer.returncode != 0:
        raise TestbedError(f"nvidia-smi failed ({answer.returncode}): {(answer.stdout + answer.stderr).strip()}")
    return answer.stdout.splitlines()


def parse_gpus(cards: Iterable[str], processes: Iterable[str]) -> tuple[Gpu, ...]:
    """The GPUs from the answers to --query-gpu=uuid,memory.total,memory.used and --query-compute-apps=gpu_uuid,pid
    (csv,noheader,nounits); a GPU whose memory is not said cannot be used and is left out."""
    pids: dict[str, list[int]] = {}
    for row in csv.reader(processes, skipinitialspace=True):
        if len(row) == 2 and row[1].strip().isdecimal():
            pids.setdefault(row[0], []).append(int(row[1]))
    return tuple(
        Gpu(int(row[1]), row[0], int(row[2]) if row[2].strip().isdecimal() else 0, tuple(sorted(pids.get(row[0], ()))))
        for row in csv.reader(cards, skipinitialspace=True)
        if len(row) == 3 and row[1].strip().isdecimal()
    )
