"""`poise testbed demo`, which is `make up` on a machine without GPUs: what a person sees from the first second to the last.

Its name sorts before the other files: it starts a deployment of its own, and there is to be one at a time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from poise.testbed import ownership, plan, ports, processes, records, spawning, teardown
from poise.testbed.paths import StateLayout

from tests.vllm.deploying import read, total
from tests.waiting import wait_until

# An install on a fresh machine is part of the first of these tests.
START_SECONDS = 900.0
PAGE_SECONDS = 120.0


class Demo:
    """A running `poise testbed demo` on free ports."""

    def __init__(self, folder: Path) -> None:
        self.layout = StateLayout(folder / "state")
        self.page_port = ports.any_free()
        self.log = folder / "demo.log"
        words = ["demo", "--any-ports", "--page-port", str(self.page_port), "--state-dir", str(self.layout.root)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "poise.cli", "testbed", *words], stdout=log, stderr=log)

    def step(self, name: str) -> dict[str, object]:
        try:
            value = json.loads(self.layout.progress.read_text())
        except FileNotFoundError:
            return {}
        return next((step for step in value["steps"] if step["name"] == name), {})

    def running(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return True

    def wait_page(self) -> None:
        wait_until(lambda: self.running() and spawning.answers(self.page_port, "/"), "the page", PAGE_SECONDS)

    def nothing_left(self) -> bool:
        ours = ownership.belonging(processes.all_stats(), self.layout)
        return not ours and not self.layout.records.exists() and not spawning.answers(self.page_port, "/")


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    before = segments()
    started = Demo(tmp_path)
    yield started
    started.process.kill()
    started.process.wait()
    wait_until(started.nothing_left, "nothing of the demo")
    teardown.take_down(started.layout)
    assert segments() <= before


def segments() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(("psm_", "vllm_dist_", "sem.mp-"))}


def test_the_page_is_up_before_vllm_and_ctrl_c_while_it_starts_ends_everything(demo: Demo) -> None:
    demo.wait_page()
    assert demo.step("vLLM server").get("state") != "done"
    assert "Simulated" in read(f"http://127.0.0.1:{demo.page_port}/")
    wait_until(lambda: demo.running() and demo.step("vLLM server").get("state") == "running", "the start of vLLM", START_SECONDS)
    wait_until(lambda: "server" in [r.name for r in records.read_all(demo.layout.records)], "vLLM's process")
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(timeout=60) == 130
    assert demo.nothing_left()
    log = demo.log.read_text()
    assert "interrupted, nothing that it started is left running" in log
    assert "Traceback" not in log


def test_load_runs_when_vllm_is_ready_and_kill_dash_nine_of_the_demo_ends_everything(demo: Demo) -> None:
    wait_until(lambda: demo.running() and demo.step("light load").get("state") == "done", "load", START_SECONDS)
    url = plan.read(demo.layout.plan).engines[0].url
    before = total(read(f"{url}/metrics"), "vllm:generation_tokens_total")
    wait_until(lambda: total(read(f"{url}/metrics"), "vllm:generation_tokens_total") > before + 200, "tokens")
    demo.process.kill()
    began = time.monotonic()
    wait_until(demo.nothing_left, "nothing of the demo")
    print(f"everything ended {time.monotonic() - began:.1f} s after kill -9")
