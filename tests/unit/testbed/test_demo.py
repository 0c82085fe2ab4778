"""The demo's own decisions; the whole of it runs with a real vLLM in tests/vllm."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from poise.testbed import demo, lock, plan, processes, shapes, teardown
from poise.testbed.deployment import Deployment
from poise.testbed.errors import TestbedError
from poise.testbed.paths import StateLayout
from poise.testbed.planning import Request, step_names

from tests.unit.testbed.deployments import layout_in, start
from tests.unit.testbed.test_plan import PLAN


def test_the_page_comes_before_the_long_work_and_the_load_last() -> None:
    layout = StateLayout(Path("/nowhere"))
    request = Request(shapes.load("tp"), layout.root, layout.root)
    assert demo.with_page(step_names(request, simulated=True)) == [
        "simulated cards",
        "exporter",
        "page",
        "vLLM installed",
        "model",
        "vLLM server",
        "light load",
    ]


def test_the_page_attaches_to_the_exporter_of_the_deployment_and_shows_its_progress() -> None:
    command = demo.page_command(demo.DemoSettings(9748, "/state/progress.json"), "http://127.0.0.1:9747", Path("/state/run/history.db"))
    assert command[3:] == [
        *("up", "--listen", "127.0.0.1:9748"),
        *("--exporter", "http://127.0.0.1:9747", "--no-exporter"),
        *("--progress", "/state/progress.json", "--history", "/state/run/history.db"),
    ]


def test_steps_follow_what_there_is_to_do() -> None:
    layout = StateLayout(Path("/nowhere"))
    pair = Request(shapes.load("pair"), layout.root, layout.root, watched=False)
    assert step_names(pair, simulated=True) == ["vLLM installed", "model", "vLLM first", "vLLM second"]
    split = Request(shapes.load("pd"), layout.root, layout.root)
    assert step_names(split, simulated=True)[-3:] == ["vLLM prefill", "vLLM decode", "router"]
    gpus = Request(shapes.load("single"), layout.root, layout.root)
    assert step_names(gpus, simulated=False) == ["exporter", "vLLM installed", "vLLM server"]


def test_the_demo_goes_on_while_the_exporter_is_restarted_and_ends_when_it_dies(tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    plan.write(layout.plan, PLAN)
    for name, role in (("page", "dashboard"), ("exporter", "exporter")):
        start(layout, name, role)  # type: ignore[arg-type]  # both are roles
    said: list[str] = []

    def watch() -> None:
        try:
            demo._wait_for_end(Deployment(layout, os.environ), demo.DemoSettings(1, "", 60.0), said.append)
        except TestbedError as error:
            said.append(str(error).splitlines()[0])

    try:
        watching = threading.Thread(target=watch)
        watching.start()
        with lock.held(layout.lock, "restarting the exporter"):
            teardown.end_processes(layout, ["exporter"])
            watching.join(1.5 * demo.LOOK_SECONDS)
            exporter = start(layout, "exporter", "exporter")
        watching.join(1.5 * demo.LOOK_SECONDS)
        assert said == []
        processes.send(exporter.identity, signal.SIGKILL)
        watching.join(30)
        assert said == ["exporter ended by itself; the end of its log:"]
    finally:
        teardown.take_down(layout)
