"""The exporter itself on this machine's driver: its page, its checklist, what it costs, and how fast it leaves."""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 30.0
LEAVE_SECONDS = 10.0
SCRAPES = 20


@dataclass(frozen=True, slots=True)
class Seen:
    """What the exporter gave, and sentences about it."""

    metrics: str
    checks: str
    log: str
    observations: list[tuple[str, str]]


def run(seconds: float, environment: dict[str, str], flags: Sequence[str], folder: Path) -> Seen:
    """Starts it, lets it read for so many seconds, scrapes it and ends it. `folder`: where its log is kept meanwhile."""
    log = folder / "exporter.log"
    command = [sys.executable, "-m", "poise.cli.main", "exporter", "--listen=127.0.0.1:0", "--interval=1s", *flags]
    began = time.monotonic()
    with log.open("w") as output, subprocess.Popen(command, env=environment, stderr=output, cwd=folder) as process:
        try:
            address = _address(log, process)
            while not _answers(f"{address}/readyz"):
                if time.monotonic() - began > START_SECONDS or process.poll() is not None:
                    return Seen("", "", log.read_text(), [("exporter", f"not ready after {time.monotonic() - began:.0f} s")])
                time.sleep(0.05)
            ready = time.monotonic() - began
            used, begun = _cpu(process.pid), time.monotonic()
            time.sleep(seconds)
            share = (_cpu(process.pid) - used) / (time.monotonic() - begun)
            took = []
            metrics = ""
            for _ in range(SCRAPES):
                begun = time.perf_counter()
                metrics = _get(f"{address}/metrics")
                took.append(time.perf_counter() - begun)
            checks = _get(f"{address}/checks")
            resident = int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())[1])  # type: ignore[index]  # the kernel writes it
            begun = time.monotonic()
            process.send_signal(signal.SIGTERM)
            code = process.wait(LEAVE_SECONDS)
            left = time.monotonic() - begun
        finally:
            process.kill()
    samples = [line for line in metrics.splitlines() if line and not line.startswith("#")]
    refused = sorted(
        {
            match[1] + " " + match[2]
            for line in samples
            if (match := re.search(r'unsupported_info\{.*metric="([^"]+)",reason="([^"]+)"', line))
        }
    )
    failing = sorted({match[1] for line in samples if (match := re.match(r'poise_collector_success\{collector="([^"]+)"\} 0', line))})
    return Seen(
        metrics,
        checks,
        log.read_text(),
        [
            ("exporter: start", f"ready after {ready:.1f} s"),
            (
                "exporter: page",
                f"{len(samples)} samples, {len(metrics)} bytes; scrape median {statistics.median(took) * 1e3:.1f} ms, longest {max(took) * 1e3:.1f} ms",
            ),
            ("exporter: cost", f"{share * 100:.2f} % of a core at an interval of 1 s, {resident / 1024:.0f} MB resident"),
            ("exporter: absent series", ", ".join(refused) or "none"),
            ("exporter: collectors that fail", ", ".join(failing) or "none"),
            ("exporter: end", f"exit code {code}, {left:.2f} s after SIGTERM"),
        ],
    )


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        match = re.search(r"(http://[^ ]+)/metrics", log.read_text())
        if match:
            return match[1]
        time.sleep(0.05)
    raise RuntimeError(f"the exporter does not say where it listens: {log.read_text()[-2000:]}")


def _answers(url: str) -> bool:
    try:
        _get(url)
    except OSError:
        return False
    return True


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=LEAVE_SECONDS) as answer:
        return str(answer.read().decode())


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
