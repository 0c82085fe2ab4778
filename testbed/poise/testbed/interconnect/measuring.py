"""Runs the all-reduce program in vLLM's environment and makes figures of what it says. Knows no command line and no verdict."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from poise.exporter.interconnect_results import Run, Size
from poise.testbed import processes, shared_memory
from poise.testbed.errors import TestbedError
from poise.testbed.interconnect import allreduce
from poise.testbed.interconnect.sizes import show_size
from poise.testbed.launch import DROPPED
from poise.testbed.piping import run_tied

#: Most seconds for one size, warm-up apart: large messages over loopback would take minutes otherwise.
SECONDS_A_SIZE = 5.0
#: Loading torch and connecting takes some ten seconds on a loaded machine, a size with its check and warm-up less.
SILENCE_SECONDS = 180.0
#: Left out of the environment: the node is measured, not what somebody set for an experiment. Where to look and what to print stays.
LEFT_OUT = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE")
#: Without peer-to-peer: through host memory. The switch's own sums (NVLS) would go on without it.
NO_P2P = {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}
CPU_RANKS = 2


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one run is to do. `cards` are UUIDs in rank order, empty for gloo on the CPU; `rounds` is how often each size is timed."""

    python: Path
    cards: tuple[str, ...]
    sizes: tuple[int, ...]
    rounds: int
    p2p: str  # on, off, none

    @property
    def ranks(self) -> int:
        return len(self.cards) or CPU_RANKS


@dataclass(slots=True)
class _Heard:
    """What the program has said so far."""

    library: str = ""
    sizes: list[Size] = field(default_factory=list)
    error: str = ""


def environment_of(wanted: Wanted, environ: Mapping[str, str]) -> dict[str, str]:
    """What the program finds in its environment."""
    result = {name: value for name, value in environ.items() if name not in DROPPED and name not in LEFT_OUT}
    result.pop("CUDA_VISIBLE_DEVICES", None)
    if wanted.cards:
        result |= {"CUDA_VISIBLE_DEVICES": ",".join(wanted.cards)}
        return result | NO_P2P if wanted.p2p == "off" else result
    return result | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def measure(wanted: Wanted, environ: Mapping[str, str], note: Callable[..., None], echo: Callable[[str], None]) -> tuple[Run, str]:
    """One run and the version of the library. `note` is called with news about once a second, `echo` with NCCL's own lines.

    Raises TestbedError when the program fails, or says nothing for long.
    """
    heard = _Heard()
    held: set[shared_memory.Segment] = set()

    def line(text: str) -> None:
        if text.startswith(allreduce.MARK):
            _take(heard, text.removeprefix(allreduce.MARK))
            done = len(heard.sizes)
            if heard.sizes:
                note(show_size(heard.sizes[-1].size_bytes), fraction=done / len(wanted.sizes))
        elif " NCCL " in text:
            echo(text)

    def tick() -> None:
        note()
        if wanted.cards:
            here = processes.own_identity().pid
            held.update(shared_memory.held_by(stat.pid for stat in processes.descendants(here, processes.all_stats())))

    task = {
        "backend": "nccl" if wanted.cards else "gloo",
        "ranks": wanted.ranks,
        "sizes": list(wanted.sizes),
        "rounds": wanted.rounds,
        "seconds": SECONDS_A_SIZE,
    }
    command = [str(wanted.python), "-I", str(Path(allreduce.__file__)), json.dumps(task)]
    try:
        status, output = run_tied(command, environment_of(wanted, environ), line, tick, silence=SILENCE_SECONDS)
    finally:
        # NCCL removes its segments once both sides have them; what was killed before that leaves them.
        shared_memory.remove(held)
    if heard.error or status != 0 or len(heard.sizes) < len(wanted.sizes):
        raise TestbedError(explain(heard.error, output, status))
    return Run(wanted.p2p, tuple(heard.sizes)), heard.library


def _take(heard: _Heard, text: str) -> None:
    with suppress(ValueError, LookupError, TypeError):  # a line that two ranks wrote at once; what it lacks is missed at the end
        said = json.loads(text)
        heard.library = said.get("library", heard.library)
        heard.error = heard.error or said.get("error", "")
        if "times" in said:
            heard.sizes.append(size_of(said["size_bytes"], said["times"]))


def size_of(size_bytes: int, times: Sequence[float]) -> Size:
    """Median and spread over the rounds."""
    return Size(size_bytes, statistics.median(times), min(times), max(times))


def explain(error: str, output: Sequence[str], status: int) -> str:
    """What went wrong, in one line with the way out."""
    if "out of memory" in error:
        return f"{error}: the cards have no room for messages of that size; end what holds their memory, or give smaller --sizes"
    if "No space left on device" in error or any("No space left on device" in text for text in output):
        return "/dev/shm is full or too small for NCCL: in a container start it with --ipc=host or --shm-size=1g"
    last = error or next((text.strip() for text in reversed(output) if text.strip()), "it said nothing")
    return f"the all-reduce failed (status {status}): {last}; NCCL_DEBUG=INFO shows what NCCL does"
