"""Measures what alerting costs: `poise up` and a Prometheus evaluate the shipped rules over the same exporter, eight simulated cards and four engines.

With --write the figures go into docs/benchmarks.md. Evaluation times are what each says of itself in its last minute; memory and CPU are the processes'.
While ten range queries run on `poise up`, the exporter is scraped to see whether its page becomes slower.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import bench_exporter as bench
import bench_page
from poise.alerts.rule_set import rule_files
from poise.alerts.rules import render
from poise.alerts.settings import AlertSettings

#: What issue 5 wants: all rules of a node, `poise up` with its exporter, the exporter's page during long queries.
MOST_EVALUATION_SECONDS, MOST_BYTES, MOST_SCRAPE_SECONDS = 0.150, 300_000_000, 0.100
INTERVAL = 15
QUERIES = 10


@contextlib.contextmanager
def started(command: Sequence[str], ready: str, folder: Path, environment: dict[str, str] | None = None) -> Iterator[int]:
    """A process that answers at `ready`; its pid."""
    log = folder / "log"
    folder.mkdir(exist_ok=True)
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder, env=environment)
    try:
        end = time.monotonic() + bench.READY_SECONDS
        while True:
            try:
                with urllib.request.urlopen(ready, timeout=5):
                    break
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"bench: {command[0]} does not answer:\n{log.read_text()}") from None
                time.sleep(0.2)
        yield process.pid
    finally:
        process.terminate()
        process.wait(20)


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def total(text: str, name: str) -> float:
    """The sum of all samples of a series."""
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if re.match(rf"{name}(?:\{{|\s)", line))


def during_queries(up: str, port: int, stop: threading.Event) -> None:
    """Range queries over everything that there is, ten at a time, until told to stop."""

    def ask() -> None:
        now = time.time()
        given = {"query": "rate(poise_gpu_nvlink_tx_bytes_total[5m])", "start": now - 86_400, "end": now, "step": 60}
        while not stop.is_set():
            with contextlib.suppress(OSError):
                page(f"{up}/api/v1/query_range?{urllib.parse.urlencode(given)}")

    threads = [threading.Thread(target=ask) for _ in range(QUERIES)]
    for thread in threads:
        thread.start()
    stop.wait()
    for thread in threads:
        thread.join()


def measure(seconds: float, folder: Path) -> dict[str, float]:
    """All figures by name."""
    prometheus = shutil.which("prometheus")
    found: dict[str, float] = {}
    rules = folder / "rules"
    rules.mkdir()
    files = rule_files(AlertSettings(), "http://127.0.0.1:9748")
    for file in files:
        (rules / Path(file.name).name).write_text(render(file))
    found["rules"] = sum(len(file.rules) for file in files)
    with contextlib.ExitStack() as stack:
        node, environment = stack.enter_context(bench.node())
        stack.enter_context(bench.alive(node))
        words = stack.enter_context(bench.engines())
        exporter, up, other = (bench.free_port() for _ in range(3))
        poise = [sys.executable, "-m", "poise.cli"]
        exporter_pid = stack.enter_context(
            started(
                [*poise, "exporter", "--listen", f"127.0.0.1:{exporter}", "--no-discover", *words],
                f"http://127.0.0.1:{exporter}/readyz",
                folder / "exporter",
                environment,
            )
        )
        (folder / "prometheus.yml").write_text(
            json.dumps(
                {
                    "global": {"scrape_interval": "5s", "evaluation_interval": f"{INTERVAL}s"},
                    "rule_files": [f"{rules}/*.yml"],
                    "scrape_configs": [{"job_name": "poise", "static_configs": [{"targets": [f"127.0.0.1:{exporter}"]}]}],
                }
            )
        )
        state = {**os.environ, "POISE_STATE_DIR": str(folder / "state")}
        bench.say(f"`poise up` and Prometheus on one exporter for {seconds:.0f} s")
        url = f"http://127.0.0.1:{up}"
        command = [*poise, "up", "--listen", f"127.0.0.1:{up}", "--no-exporter", "--exporter", f"http://127.0.0.1:{exporter}"]
        up_pid = stack.enter_context(started(command, f"{url}/readyz", folder / "up", state))
        theirs = None
        if prometheus is not None:
            theirs = stack.enter_context(
                started(
                    [
                        prometheus,
                        f"--config.file={folder / 'prometheus.yml'}",
                        f"--storage.tsdb.path={folder / 'tsdb'}",
                        f"--web.listen-address=127.0.0.1:{other}",
                    ],
                    f"http://127.0.0.1:{other}/-/ready",
                    folder / "prometheus",
                )
            )
        time.sleep(seconds / 2)
        used = {pid: bench.cpu_seconds(pid) for pid in (up_pid, exporter_pid, *([theirs] if theirs else []))}
        evaluated = total(page(f"{url}/metrics"), "poise_evaluator_seconds_total")
        began = time.monotonic()
        time.sleep(seconds / 2)
        passed = time.monotonic() - began
        text = page(f"{url}/metrics")
        found["ours_seconds"] = (total(text, "poise_evaluator_seconds_total") - evaluated) / (passed / INTERVAL)
        found["ours_failing"] = total(text, "poise_evaluator_rules_failing")
        found["series"] = total(text, "poise_history_series")
        found["ours_cpu"] = (bench.cpu_seconds(up_pid) - used[up_pid]) / passed
        found["ours_bytes"] = bench.resident_bytes(up_pid)
        found["exporter_bytes"] = bench.resident_bytes(exporter_pid)
        if theirs is not None:
            found["theirs_seconds"] = total(page(f"http://127.0.0.1:{other}/metrics"), "prometheus_rule_group_last_duration_seconds")
            found["theirs_cpu"] = (bench.cpu_seconds(theirs) - used[theirs]) / passed
            found["theirs_bytes"] = bench.resident_bytes(theirs)
        stop = threading.Event()
        queries = threading.Thread(target=during_queries, args=(url, exporter, stop))
        bench.say("scrapes of the exporter during ten range queries of 24 h")
        queries.start()
        took = []
        for _ in range(100):
            start = time.perf_counter()
            bench.get(exporter)
            took.append(time.perf_counter() - start)
            time.sleep(0.1)
        stop.set()
        queries.join()
        found["scrape_p50"], found["scrape_p99"] = statistics.median(took), statistics.quantiles(took, n=100)[98]
    return found


def report(found: dict[str, float], seconds: float) -> str:
    """The section of the page."""

    def aim(what: str, value: float, most: float, text: str) -> str:
        return f"| {what} | {text} | {'reached' if value <= most else '**not reached**'} |"

    both = found["ours_bytes"] + found["exporter_bytes"]
    rows = [
        _row(f"all {found['rules']:.0f} rules once", found["ours_seconds"] * 1000, found.get("theirs_seconds", float("nan")) * 1000, "ms"),
        _row(
            "CPU, scraping every 5 s and rules every 15 s",
            found["ours_cpu"] * 100,
            found.get("theirs_cpu", float("nan")) * 100,
            "% of a core",
        ),
        _row("resident", found["ours_bytes"] / 1e6, found.get("theirs_bytes", float("nan")) / 1e6, "MB"),
    ]
    return "\n".join(
        [
            "## Alerting, beside Prometheus",
            "",
            f"Made by `make bench-alerts` (`scripts/bench_alerts.py`): eight simulated cards and four recorded engines, {found['series']:.0f} series, {seconds:.0f} s, 2 cores. "
            "Each evaluates the shipped rules over its own scrapes of one exporter; times are their own, of the second half.",
            "",
            "| | poise up | Prometheus |",
            "| - | -: | -: |",
            *rows,
            "",
            "| aim | measured | |",
            "| - | -: | - |",
            aim("all rules < 150 ms", found["ours_seconds"], MOST_EVALUATION_SECONDS, f"{found['ours_seconds'] * 1000:.0f} ms"),
            aim("`up` with its exporter < 300 MB", both, MOST_BYTES, f"{both / 1e6:.0f} MB"),
            aim(
                f"the exporter's /metrics p99 < 100 ms during {QUERIES} queries of 24 h",
                found["scrape_p99"],
                MOST_SCRAPE_SECONDS,
                f"{found['scrape_p99'] * 1000:.0f} ms (median {found['scrape_p50'] * 1000:.0f})",
            ),
            "",
        ]
    )


def _row(what: str, ours: float, theirs: float, unit: str) -> str:
    return f"| {what} | {ours:.3g} {unit} | {'n/a' if theirs != theirs else f'{theirs:.3g} {unit}'} |"


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the section into this page")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="poise-bench-") as folder:
        section = report(measure(arguments.seconds, Path(folder)), arguments.seconds)
    print(section)
    if arguments.write is not None:
        bench_page.put(arguments.write, Path(__file__), section)
    return 0


if __name__ == "__main__":
    sys.exit(main())
