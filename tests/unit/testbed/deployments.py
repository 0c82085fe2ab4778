"""Deployments of ordinary processes instead of vLLM: what ends and finds them does not care."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from poise.testbed import claim, ownership, processes, spawning
from poise.testbed.paths import StateLayout
from poise.testbed.records import Record, Role

# A server with a child that outlives it, as vLLM's engine core does when its server is killed.
FAMILY = "import subprocess, sys; subprocess.Popen(['sleep', '600']); print('started', flush=True); sys.stdin.close(); import time; time.sleep(600)"


def layout_in(folder: Path) -> StateLayout:
    layout = StateLayout(folder / "state")
    claim.make(layout)
    return layout


def start(layout: StateLayout, name: str = "server", role: Role = "engine", command: list[str] | None = None) -> Record:
    environ: Mapping[str, str] = {**os.environ, "TMPDIR": str(layout.temporary)}
    return spawning.spawn(layout, name, role, command or ["sleep", "600"], environ, {"url": "http://127.0.0.1:1"})


def start_family(layout: StateLayout, name: str = "server", role: Role = "engine") -> Record:
    return start(layout, name, role, [sys.executable, "-c", FAMILY])


def ours(layout: StateLayout) -> list[int]:
    """Pids of everything of the deployment that lives."""
    return [stat.pid for stat in ownership.belonging(processes.all_stats(), layout)]
