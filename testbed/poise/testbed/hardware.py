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
class Hardware:
    """`gpu_memory_mib` holds one entry for each NVIDIA GPU, in the driver's order; empty without a driver."""

    gpu_memory_mib: tuple[int, ...]

    @property
    def has_gpus(self) -> bool:
        return bool(self.gpu_memory_mib)


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
    query = [program, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise TestbedError(f"nvidia-smi did not answer within {NVIDIA_SMI_SECONDS:.0f} s: the driver hangs") from None
    if answer.returncode != 0:
        raise TestbedError(f"nvidia-smi failed ({answer.returncode}): {(answer.stdout + answer.stderr).strip()}")
    return Hardware(parse_memory(answer.stdout.splitlines()))


def parse_memory(lines: Iterable[str]) -> tuple[int, ...]:
    """MiB of each GPU from `nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits`."""
    return tuple(int(row[0]) for row in csv.reader(lines) if row and row[0].strip().isdecimal())
