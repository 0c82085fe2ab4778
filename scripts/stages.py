"""Runs the test stages one after the other and prints for each what passed, failed, was skipped and why, and its time against its budget.

Usage: stages.py [STAGE …]. A stage over its budget is said, and fails nothing: machines differ.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent


#: A stage that takes so many times its budget hangs: slow machines need two or three.
HANGS_AFTER_BUDGETS = 6
#: For the tests to end what they started, seconds.
TEARDOWN_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the tests, and how long it should take on two cores, in seconds."""

    name: str
    paths: tuple[str, ...]
    budget: int
    side_by_side: Literal["", "load", "loadfile"] = ""  # each core runs tests, or files, that share nothing (pytest-xdist's --dist)


STAGES = (
    Stage("unit", ("tests/unit",), 300, side_by_side="load"),
    Stage("contract", ("tests/contract", "tests/web"), 600, side_by_side="loadfile"),
    Stage("vllm", ("tests/vllm",), 1000),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a stage came to; `code` is pytest's exit code."""

    stage: Stage
    code: int
    passed: int
    failed: int
    skipped: int
    seconds: float


def run(stage: Stage, folder: Path) -> Outcome:
    """Run one stage with pytest, its output passed through."""
    print(f"\n=== stage {stage.name} (budget {stage.budget} s) ===", flush=True)
    report = folder / f"{stage.name}.xml"
    began = time.monotonic()
    workers = ["-n", str(os.cpu_count() or 1), f"--dist={stage.side_by_side}"] if stage.side_by_side else []
    command = [sys.executable, "-m", "pytest", "-q", "--durations=5", f"--junitxml={report}", *workers, *stage.paths]
    code = _run(command, HANGS_AFTER_BUDGETS * stage.budget)
    seconds = time.monotonic() - began
    if not report.exists():
        return Outcome(stage, code or 1, 0, 1, 0, seconds)
    suite = ElementTree.parse(report).getroot().find("testsuite")
    counts = suite.attrib if suite is not None else {}
    total, skipped = int(counts.get("tests", 0)), int(counts.get("skipped", 0))
    failed = int(counts.get("failures", 0)) + int(counts.get("errors", 0))
    return Outcome(stage, code, total - failed - skipped, failed, skipped, seconds)


def _run(command: list[str], limit: float) -> int:
    """The exit code of pytest; past `limit` seconds it is interrupted, which lets tests take down what they started, and then killed."""
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONUNBUFFERED": "1"}) as process:
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            print(f"\nstages: no end after {limit:.0f} s; interrupted", file=sys.stderr, flush=True)
            process.send_signal(signal.SIGINT)
        try:
            return process.wait(TEARDOWN_SECONDS) or 1
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait() or 1


def main(names: list[str]) -> int:
    """Run the named stages, or all."""
    known = {stage.name: stage for stage in STAGES}
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"stages: unknown stage {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    with TemporaryDirectory() as folder:
        outcomes = [run(known[name], Path(folder)) for name in names or known]
    print("\nstage      passed  failed  skipped   seconds   budget")
    for outcome in outcomes:
        over = "  over budget" if outcome.seconds > outcome.stage.budget else ""
        print(
            f"{outcome.stage.name:<10} {outcome.passed:>6}  {outcome.failed:>6}  {outcome.skipped:>7}  "
            f"{outcome.seconds:>8.0f} {outcome.stage.budget:>8}{over}"
        )
    print(
        f"{sum(o.passed for o in outcomes)} passed, {sum(o.failed for o in outcomes)} failed, {sum(o.skipped for o in outcomes)} skipped",
        flush=True,
    )
    return 1 if any(outcome.code for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
