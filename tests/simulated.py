"""Simulated cards for tests: a node of a profile, and the real pynvml answering from it, in this process or in another.

Fixtures of the same names are in tests/conftest.py. Knows nothing of what is tested.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from poise.testbed.nvml.inprocess import simulated_pynvml
from poise.testbed.nvml.node import SimulatedNode

SUBPROCESS_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Simulation:
    """A node and pynvml, which loads the simulated library of the node's driver. nvmlInit has not been called."""

    node: SimulatedNode
    pynvml: ModuleType


@contextmanager
def simulation(folder: Path, profile: str) -> Iterator[Simulation]:
    """A fresh node of `profile` with its state in `folder`, and this process's pynvml pointed at it.

    On leaving, held calls are released and the session is shut down, whatever the test left behind.
    """
    with SimulatedNode.create(folder / "node.nvml", profile) as node, simulated_pynvml(node) as pynvml:
        yield Simulation(node, pynvml)


def run_python(node: SimulatedNode, code: str) -> str:
    """What `code` prints in a process that starts on the node and finds the library by its soname, as any program does."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **node.environment()},
        capture_output=True,
        text=True,
        timeout=SUBPROCESS_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
