"""Where the testbed keeps things on disk: the cache (vLLM's environment, models) and the state of one deployment.

Owns the names of folders and files. What makes a folder the testbed's own is in claim.py. Knows nothing of what is written into them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# 107 bytes less a slash and the 36 characters of a UUID, with some to spare for prefixes.
LONGEST_TEMPORARY = 60
# Not tempfile.gettempdir(): TMPDIR may be another one, or be deep, for whoever takes the deployment down.
SHORT = Path("/tmp")


def cache_directory(environ: Mapping[str, str]) -> Path:
    """${XDG_CACHE_HOME:-~/.cache}/poise: what can be made again, environments and models."""
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else _home(environ) / ".cache") / "poise"


def state_directory(environ: Mapping[str, str], argument: str | None = None) -> Path:
    """The folder of one deployment.

    `argument` (--state-dir) wins, then POISE_STATE_DIR/testbed, then ${XDG_STATE_HOME:-~/.local/state}/poise/testbed.
    """
    if argument:
        return Path(argument).absolute()
    own = environ.get("POISE_STATE_DIR")
    if own:
        return Path(own).absolute() / "testbed"
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base else _home(environ) / ".local" / "state") / "poise" / "testbed"


def _home(environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME")
    return Path(home) if home else Path.home()


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The files inside one state directory."""

    root: Path

    @property
    def marker(self) -> Path:
        """Says that the folder is the testbed's own: what lies in it may be removed."""
        return self.root / "poise-testbed.json"

    @property
    def plan(self) -> Path:
        """What was asked for: shape, ports, model, hardware. Written before anything starts."""
        return self.root / "deployment.json"

    @property
    def lock(self) -> Path:
        """Held (flock) by whoever starts, changes or ends the deployment."""
        return self.root / "lock"

    @property
    def records(self) -> Path:
        """One JSON file for each process, written by that process itself before it becomes what it is to be."""
        return self.root / "processes"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def runs(self) -> Path:
        """Saved runs of measured load, one JSON file each; they stay when the deployment ends."""
        return self.root / "runs"

    @property
    def comparisons(self) -> Path:
        """Tables and plots of comparisons, a folder each; they stay as well."""
        return self.root / "comparisons"

    @property
    def run(self) -> Path:
        """Working directory of everything that is started: marks a process as belonging to this deployment."""
        return self.root / "run"

    @property
    def cards(self) -> Path:
        """State of the simulated NVML library (a file mapped by the library and by the mirror)."""
        return self.root / "cards.nvml"

    @property
    def faults(self) -> Path:
        """The faults wanted on the simulated cards: written by `fault`, read by the mirror."""
        return self.root / "faults.json"

    def blackhole(self, engine: str) -> Path:
        """While this file is there the engine's metrics page never answers (vllm_patch)."""
        return self.root / f"{engine}.blackhole"

    @property
    def mirror(self) -> Path:
        """What the mirror last did: which worker it shows on which card, which faults it applied."""
        return self.root / "mirror.json"

    @property
    def progress(self) -> Path:
        """Progress of the demo, for its page."""
        return self.root / "progress.json"

    @property
    def shared_memory(self) -> Path:
        """The segments in /dev/shm that our processes were seen to hold."""
        return self.root / "shared_memory.json"

    @property
    def temporary(self) -> Path:
        """TMPDIR of everything that is started, emptied when the deployment ends. vLLM makes Unix sockets in it, whose paths
        may have 107 bytes (unix(7)), so a deep state directory gets a short folder elsewhere."""
        inside = self.root / "tmp"
        if len(os.fsencode(inside)) <= LONGEST_TEMPORARY:
            return inside
        return SHORT / f"poise-{hashlib.sha256(os.fsencode(self.root)).hexdigest()[:12]}"

    @property
    def passing_files(self) -> tuple[Path, ...]:
        """Files that are only true while a deployment runs."""
        held = sorted(self.root.glob("*.blackhole"))
        return (self.plan, self.faults, self.mirror, self.cards, self.progress, self.shared_memory, *held)

    @property
    def passing_folders(self) -> tuple[Path, ...]:
        """Folders that are only there while a deployment runs."""
        return (self.records, self.run, self.temporary)

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"
