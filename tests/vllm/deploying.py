"""What tests of real vLLM servers share: bringing one up with its progress in the test's output, and reading pages."""

from __future__ import annotations

import os
import re
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from poise.testbed import paths, shapes
from poise.testbed.deployment import Deployment
from poise.testbed.planning import Request, step_names
from poise.testbed.progress import Progress, TerminalSink


def request_for(shape: str, state: Path, watched: bool = True) -> Request:
    """A deployment on any free ports; vLLM's environment is the user's cached one."""
    return Request(
        shape=shapes.load(shape),
        state_directory=state,
        cache_directory=paths.cache_directory(os.environ),
        any_ports=True,
        watched=watched,
    )


def progress_of(title: str, steps: list[str]) -> Progress:
    sink = TerminalSink(sys.stderr, lambda: 100, time.monotonic)
    return Progress(title, steps, [sink], time.monotonic)


def bring_up(shape: str, state: Path) -> Deployment:
    request = request_for(shape, state)
    return Deployment.up(request, progress_of(request.shape.title, step_names(request, simulated=True)))


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def samples(page: str, name: str) -> list[tuple[Mapping[str, str], float]]:
    """(labels, value) of each sample of one series on a metrics page."""
    found = []
    for line in page.splitlines():
        match = re.fullmatch(re.escape(name) + r"(?:\{(.*)\})? (\S+)", line)
        if match:
            labels = dict(re.findall(r'(\w+)="([^"]*)"', match[1] or ""))
            found.append((labels, float(match[2])))
    return found


def total(page: str, name: str) -> float:
    return sum(value for _, value in samples(page, name))
