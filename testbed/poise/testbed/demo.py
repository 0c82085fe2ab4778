"""`poise testbed demo`: what `make up` runs on a machine without GPUs. One command shows a live deployment, one Ctrl-C ends it.

Owns the order: cards and exporter, page, vLLM, endless light load, and the waiting in between. Everything it starts belongs
to the deployment, so its end (even kill -9) ends everything.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from poise.testbed import lock, processes, spawning
from poise.testbed.deployment import Deployment
from poise.testbed.errors import TestbedError
from poise.testbed.planning import STEP_INSTALL, Request
from poise.testbed.ports import LOOPBACK
from poise.testbed.progress import Progress

PAGE_PORT = 9748
PAGE_READY_SECONDS = 60.0
STEP_PAGE = "page"
STEP_LOAD = "light load"
# The deployment is looked at this often: somebody else may take it down or put a fault on it.
LOOK_SECONDS = 1.0
# Light: two clients keep both ranks at work and leave the two cores of a small machine room for the page.
CLIENTS = 2


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """`page_port` of `poise up`; `progress_file` is read by it; `seconds` ends the demo by itself (None: never)."""

    page_port: int
    progress_file: str
    seconds: float | None = None


def run_demo(
    request: Request,
    settings: DemoSettings,
    progress: Progress,
    environ: Mapping[str, str],
    say: Callable[[str], None],
) -> None:
    """Runs until Ctrl-C, until `seconds` are over, or until the deployment is taken down by somebody else.

    Raises TestbedError when a part cannot be started, or when one of page, exporter and mirror dies.
    """

    def show_page(deployment: Deployment) -> None:
        exporter = deployment.plan.exporter_url
        if exporter is None:
            raise TestbedError("the demo needs the exporter")
        url = f"http://{LOOPBACK}:{settings.page_port}"
        with progress.step(STEP_PAGE, url):
            command = page_command(settings, exporter, deployment.layout.run / "history.db")
            record = deployment.spawn("page", "dashboard", command, {"url": url})
            spawning.wait_http(deployment.layout, record, settings.page_port, "/healthz", PAGE_READY_SECONDS)
        say(f"open {url}")

    with Deployment.up(request, progress, environ, say, when_watched=show_page) as deployment:
        plan = deployment.plan
        with progress.step(STEP_LOAD, f"{CLIENTS} clients until Ctrl-C"):
            deployment.spawn("load", "load", load_command(plan.url, plan.served_name))
        say(f"vLLM answers on {plan.url}; `poise testbed fault --list` shows what can be broken; Ctrl-C ends it")
        _wait_for_end(deployment, settings, say)


def page_command(settings: DemoSettings, exporter: str, history: Path) -> list[str]:
    """`poise up`, attached to the exporter of the deployment and showing the progress of the testbed. Its history is not this machine's."""
    return [
        *(sys.executable, "-m", "poise.cli", "up"),
        *("--listen", f"{LOOPBACK}:{settings.page_port}"),
        *("--exporter", exporter, "--no-exporter"),
        *("--progress", settings.progress_file, "--history", str(history)),
    ]


def load_command(url: str, model: str) -> list[str]:
    return [
        *(sys.executable, "-m", "poise.cli", "testbed", "load"),
        *("--url", url, "--model", model, "--concurrency", str(CLIENTS), "--forever"),
    ]


def _wait_for_end(deployment: Deployment, settings: DemoSettings, say: Callable[[str], None]) -> None:
    """Engines and router are not watched: a fault ends or restarts them, and the page is there to say so."""
    ends = None if settings.seconds is None else time.monotonic() + settings.seconds
    watched = [name for name in ("page", "exporter", "mirror") if deployment.record(name) is not None]
    while ends is None or time.monotonic() < ends:
        page = deployment.record("page")
        processes.wait_gone([] if page is None else [page.identity], LOOK_SECONDS)  # wakes at once when the page ends
        if not deployment.layout.plan.exists():
            say("the deployment was taken down")
            return
        # `fault --undo` restarts the exporter under the lock: what is missing after it was free is dead.
        if _dead(deployment, watched) and lock.holder(deployment.layout.lock) is None and (dead := _dead(deployment, watched)):
            raise TestbedError(f"{dead[0]} ended by itself; the end of its log:\n{spawning.tail(deployment.layout, dead[0])}")


def _dead(deployment: Deployment, names: list[str]) -> list[str]:
    return [name for name in names if (record := deployment.record(name)) is None or not record.lives]


def with_page(steps: list[str]) -> list[str]:
    """The steps of `up` with the demo's own between and behind them."""
    place = steps.index(STEP_INSTALL)
    return [*steps[:place], STEP_PAGE, *steps[place:], STEP_LOAD]
