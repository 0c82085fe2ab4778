"""Starts that are interrupted at random moments, over all shapes: nothing is left running, in /dev/shm or on disk but logs.

Moments: POISE_SOAK_MOMENTS (default 20), drawn with POISE_SOAK_SEED (default 1). Prints each; 20 or more are written to docs/soak.md.
"""

from __future__ import annotations

import contextlib
import os
import platform
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from poise.testbed import ownership, processes, records, shapes
from poise.testbed.paths import StateLayout

from tests.soak_page import write_section
from tests.waiting import wait_until

pytestmark = pytest.mark.soak

ROOT = Path(__file__).resolve().parents[2]
MOMENTS = int(os.environ.get("POISE_SOAK_MOMENTS", "20"))
SEED = int(os.environ.get("POISE_SOAK_SEED", "1"))
WRITTEN_FROM = 20
#: Cards, keeper and exporter come in the first seconds; servers and router take the rest. A start takes 20 to 45 s on two cores.
EARLY_SECONDS = 4.0
LATE_SECONDS = 45.0
#: What was killed is cleared by its keeper, which is a Python that has to get a core.
PATIENCE = 120.0


def interrupt(launcher: subprocess.Popen[bytes], layout: StateLayout) -> None:
    launcher.send_signal(signal.SIGINT)


def terminate(launcher: subprocess.Popen[bytes], layout: StateLayout) -> None:
    launcher.send_signal(signal.SIGTERM)


def interrupt_twice(launcher: subprocess.Popen[bytes], layout: StateLayout) -> None:
    launcher.send_signal(signal.SIGINT)
    time.sleep(0.3)  # as quick as an impatient person
    launcher.send_signal(signal.SIGINT)


def kill(launcher: subprocess.Popen[bytes], layout: StateLayout) -> None:
    """The keeper clears up. In the first second there is none yet: nothing runs, and what lies there is for the next `down`."""
    launcher.kill()
    launcher.wait()
    if not layout.log("keeper").exists():
        down(layout)


def kill_with_keeper(launcher: subprocess.Popen[bytes], layout: StateLayout) -> None:
    """Nobody is left who would clear up: `poise testbed down` does."""
    for record in records.read_all(layout.records):
        if record.name == "keeper":
            processes.send(record.identity, signal.SIGKILL)
    launcher.kill()
    launcher.wait()
    down(layout)


ENDINGS: tuple[Callable[[subprocess.Popen[bytes], StateLayout], None], ...] = (
    interrupt,
    terminate,
    interrupt_twice,
    kill,
    kill_with_keeper,
)


@dataclass(frozen=True)
class Moment:
    """One interrupted start and what came of it."""

    shape: str
    ending: str
    after: float
    reached: str
    code: int
    seconds: float

    @property
    def row(self) -> str:
        return f"| {self.shape} | {self.ending.replace('_', ' ')} | {self.after:.1f} | {self.reached} | {self.code} | {self.seconds:.1f} |"


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "poise.cli", "testbed", *words]


def down(layout: StateLayout) -> None:
    subprocess.run(command("down", "--state-dir", str(layout.root)), check=True, timeout=PATIENCE, stdout=subprocess.DEVNULL)


def reached(log: Path) -> str:
    """The step of `up` that was the last to begin."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith(("... ", "ok ", "FAIL "))]
    return re.split(r" \d+%| \(|:", lines[-1][5:])[0] if lines else "nothing yet"


def left(layout: StateLayout, before: set[str]) -> list[str]:
    """What of a deployment is still there: processes, shared memory, files but the lock and logs."""
    running = [f"process {stat.pid}" for stat in ownership.belonging(processes.all_stats(), layout)]
    files = (
        [path.name for path in layout.root.iterdir() if path.name not in ("lock", layout.marker.name, "logs")]
        if layout.root.exists()
        else []
    )
    folder = [] if not layout.temporary.exists() else [str(layout.temporary)]
    return [*running, *files, *folder, *sorted(set(os.listdir("/dev/shm")) - before)]


def one(shape: str, ending: Callable[[subprocess.Popen[bytes], StateLayout], None], after: float, folder: Path) -> Moment:
    layout, log, before = StateLayout(folder / "state"), folder / "log", set(os.listdir("/dev/shm"))
    folder.mkdir()
    with (
        log.open("wb") as output,
        subprocess.Popen(command("up", shape, "--any-ports", "--state-dir", str(layout.root)), stdout=output, stderr=output) as launcher,
    ):
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(after)
            at = reached(log)
            began = time.monotonic()
            if launcher.poll() is None:
                ending(launcher, layout)
                launcher.wait(PATIENCE)
            else:
                assert launcher.returncode == 0, log.read_text()
                at = "it is up"
                down(layout)
            wait_until(lambda: left(layout, before) == [], f"nothing of {shape} after {ending.__name__} at {after:.1f} s: {at}", PATIENCE)
        finally:
            launcher.kill()  # these tests may be interrupted as well: its keeper takes down what it had begun
    assert "Traceback" not in log.read_text(errors="replace") or ending is interrupt_twice, log.read_text()
    return Moment(shape, ending.__name__, after, at, launcher.returncode, time.monotonic() - began)


def test_a_start_that_is_interrupted_at_any_moment_leaves_nothing(tmp_path: Path) -> None:
    source = random.Random(SEED)
    found: list[Moment] = []
    for number in range(MOMENTS):
        shape = shapes.names()[number % len(shapes.names())]
        ending = source.choice(ENDINGS)
        after = source.uniform(0, EARLY_SECONDS if source.random() < 0.25 else LATE_SECONDS)
        found.append(one(shape, ending, after, tmp_path / str(number)))
        print(found[-1].row, flush=True)
    if MOMENTS >= WRITTEN_FROM:
        write_section(ROOT / "docs" / "soak.md", "Interrupted starts", report(found))


def report(found: list[Moment]) -> list[str]:
    """The section."""
    return [
        f"Written by `make soak` (`tests/soak/test_interrupted.py`): {len(found)} starts of `poise testbed up` with real vLLM, each interrupted at a moment drawn at",
        f"random (seed {SEED}), on {os.cpu_count()} cores, Linux {platform.release()}. Exit 130 is Ctrl-C or SIGTERM, -9 a kill. *Seconds* until nothing was left: no",
        "process, no file in /dev/shm, no temporary folder, nothing in the state directory but logs, the lock and the marker.",
        "",
        "| shape | ending | after, s | the step then | exit | seconds |",
        "| - | - | -: | - | -: | -: |",
        *(moment.row for moment in found),
    ]
