"""Looks at the GPUs of this machine once: see scripts/gpu_check.sh, which starts it, and docs/gpu-check.md.

Each step runs in a thread of its own with a deadline: a driver that hangs costs its step, not the report.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from gpu_probe import costs, exporter_run, load, raw
from gpu_probe.nvml import Nvml
from gpu_probe.questions import QUESTIONS
from poise.exporter.nvml.library import LIBRARY_NAME

Result = TypeVar("Result")

#: What one step may take; all of them together stay below three minutes.
STEP_SECONDS = 40.0
ALL_SECONDS = 170.0


class Steps:
    """Runs steps and keeps what went wrong. Not to be used from several threads."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: what one step may take."""
        self._seconds = seconds
        self._end = time.monotonic() + ALL_SECONDS
        self.hung: list[str] = []
        self.failed: list[str] = []

    def run(self, name: str, step: Callable[[], Result], default: Result) -> Result:
        """What the step gives, or `default` when it fails, hangs or there is no time left."""
        left = min(self._seconds, self._end - time.monotonic())
        if left <= 0:
            self.failed.append(f"{name}: no time left")
            return default
        found: list[Result] = []

        def work() -> None:
            try:
                found.append(step())
            except Exception as error:  # said in the report; the other steps go on
                self.failed.append(f"{name}: {type(error).__name__}: {error}")

        begun = time.monotonic()
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        thread.join(left)
        print(f"gpu_check: {name}, {time.monotonic() - begun:.1f} s", file=sys.stderr, flush=True)
        if thread.is_alive():
            self.hung.append(f"{name}: no answer after {left:.0f} s")
        return found[0] if found else default


class Mask:
    """Puts stand-ins for UUIDs, serials and the host's name, the same one for the same thing everywhere."""

    def __init__(self, nvml: Nvml | None, keep: bool) -> None:
        self._stand_ins: dict[str, str] = {}
        if keep:
            return
        for number, gpu in enumerate(nvml.gpus if nvml else ()):
            prefix = gpu.uuid.partition("-")[0] or "GPU"
            self._stand_ins[gpu.uuid] = f"{prefix}-00000000-0000-0000-0000-{number:012d}"
            if gpu.serial:
                self._stand_ins[gpu.serial] = f"{number:013d}"
        host = socket.gethostname()
        if len(host) > 2:
            self._stand_ins[host] = "node"

    def __call__(self, text: str) -> str:
        for real in sorted(self._stand_ins, key=len, reverse=True):
            text = text.replace(real, self._stand_ins[real])
        # UUIDs of other things: MIG devices, the fabric's cluster.
        return re.sub(r"\bMIG-[0-9a-f-]{30,}", "MIG-masked", text) if self._stand_ins else text


def versions(nvml: Nvml | None) -> dict[str, Any]:
    """What runs here."""

    def read(path: str) -> str:
        try:
            return Path(path).read_text(errors="replace").strip()
        except OSError as error:
            return f"unknown ({error.strerror})"

    status = read("/proc/self/status")
    return {
        "driver": nvml.driver.info.driver if nvml else "",
        "nvml": nvml.driver.info.nvml if nvml else "",
        "cuda": nvml.driver.info.cuda if nvml else "",
        "kernel_module": read("/proc/driver/nvidia/version"),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "uid": os.getuid(),
        "capabilities": next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), ""),
        "pids": next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), []),
        "cards": [gpu.name for gpu in nvml.gpus] if nvml else [],
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def report(told: dict[str, Any], answers: list[tuple[str, str]], rows: list[costs.Cost], ticks: dict[str, Any], steps: Steps) -> str:
    """The whole of it for a person."""
    lines = ["# GPU check", "", *(f"{name}: {value}" for name, value in told.items()), "", "## Questions", ""]
    for question, observation in answers:
        lines += [question, f"    → {observation}"]
    lines += ["", "## Cost of each call, first card", "", f"{'call':<58} {'calls':>5} {'median µs':>11} {'p99 µs':>11}"]
    lines += [cost.row() for cost in rows]
    if ticks:
        lines += [
            "",
            "## A tick of Poise",
            "",
            f"{ticks['cards']} cards one after the other: median {ticks['median_ms']:.2f} ms, longest {ticks['longest_ms']:.2f} ms, the first {ticks['first_ms']:.2f} ms",
            *(f"{name:<20} longest run {value:8.3f} ms" for name, value in ticks["longest_run_ms_by_collector"].items()),
            *(f"{name}: {error}" for name, error in ticks["errors"].items()),
        ]
    lines += ["", "## What went wrong", "", *(steps.hung + steps.failed or ["nothing"])]
    return "\n".join(lines) + "\n"


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check.sh", description="Looks at the GPUs of this machine once, in less than three minutes.")
    parser.add_argument("--wheels", metavar="DIR", help="wheels of prometheus-client and nvidia-ml-py, for a Python that lacks them")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where the capture goes (default: gpu-check-HOST-TIME here)")
    parser.add_argument("--library", metavar="FILE", help="the libnvidia-ml.so.1 to ask (default: as the loader finds it)")
    parser.add_argument("--keep-identities", action="store_true", help="keep UUIDs, serials and the host's name (default: stand-ins)")
    parser.add_argument("--seconds", type=float, default=15.0, help="how long the exporter reads before it is scraped (default: 15)")
    parser.add_argument("--step-seconds", type=float, default=STEP_SECONDS, help="what one step may take (default: %(default)g)")
    parser.add_argument("--no-load", action="store_true", help="do not load the first card, where PyTorch is at hand")
    parser.add_argument("--no-discover", action="store_true", help="do not let the exporter look for vLLM")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """0 when every step came to its end, 1 when one failed or hung, 2 without a usable driver."""
    chosen = arguments(words)
    name = f"gpu-check-{socket.gethostname() if chosen.keep_identities else 'node'}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder: Path = chosen.output or Path(name)
    folder.mkdir(parents=True, exist_ok=True)
    steps = Steps(chosen.step_seconds)
    environment = dict(os.environ)
    if chosen.library:
        library_folder = str(Path(chosen.library).resolve().parent)
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(part for part in (library_folder, os.environ.get("LD_LIBRARY_PATH", "")) if part)
    flags = ["--no-discover"] if chosen.no_discover else []
    seen = steps.run("exporter", lambda: exporter_run.run(chosen.seconds, environment, flags, folder), None)
    nvml = steps.run("NVML", lambda: Nvml(chosen.library or LIBRARY_NAME), None)
    answers: list[tuple[str, str]] = []
    rows: list[costs.Cost] = []
    ticks: dict[str, Any] = {}
    raw_answers: dict[str, Any] = {}
    if nvml is not None and nvml.gpus:
        gpu = nvml.gpus[0]
        answers += [("A card does not answer", failure) for failure in nvml.failures]
        for question in QUESTIONS:
            observation = steps.run(question.name, lambda question=question: question.ask(nvml, gpu), "")
            answers.append((question.text, observation or "no answer, see below"))
        rows = steps.run("cost of calls", lambda: list(costs.calls(nvml)), [])
        ticks = steps.run("ticks", lambda: costs.ticks(nvml), {})
        raw_answers = steps.run("raw answers", lambda: raw.dump(nvml), {})
        if not chosen.no_load:
            answers += steps.run("load", lambda: load.run(nvml, gpu), [("load", "failed, see below")])
    answers += seen.observations if seen else []
    mask = Mask(nvml, chosen.keep_identities)
    told = versions(nvml)
    text = mask(report(told, answers, rows, ticks, steps))
    cost = {row.name: {"code": row.code, "calls": row.calls, "median_us": row.median, "p99_us": row.p99} for row in rows}
    written = {
        "report.txt": text,
        "versions.json": mask(json.dumps(told, indent=1)),
        "nvml.json": mask(json.dumps({**raw_answers, "questions": dict(answers), "cost": cost, "ticks": ticks}, indent=1)),
        "metrics.prom": mask(seen.metrics) if seen else "",
        "checks.json": mask(seen.checks) if seen else "",
        "exporter.log": mask(seen.log) if seen else "",
    }
    for file_name, content in written.items():
        (folder / file_name).write_text(content, encoding="utf-8")
    print(text)
    print(f"gpu_check: written to {folder}/: {', '.join(written)}", flush=True)
    code = 2 if nvml is None or not nvml.gpus else 1 if steps.failed or steps.hung else 0
    if steps.hung:
        # A thread is stuck in the driver: the C library's exit handlers may wait for it.
        sys.stdout.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
