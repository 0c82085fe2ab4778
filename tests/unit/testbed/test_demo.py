"""The demo's own decisions; the whole of it runs with a real vLLM in tests/vllm."""

from __future__ import annotations

from pathlib import Path

from poise.testbed import demo, shapes
from poise.testbed.paths import StateLayout
from poise.testbed.planning import Request, step_names


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
    command = demo.page_command(demo.DemoSettings(9748, "/state/progress.json"), "http://127.0.0.1:9747")
    assert command[3:] == [
        *("up", "--listen", "127.0.0.1:9748"),
        *("--exporter", "http://127.0.0.1:9747", "--no-exporter"),
        *("--progress", "/state/progress.json"),
    ]


def test_steps_follow_what_there_is_to_do() -> None:
    layout = StateLayout(Path("/nowhere"))
    pair = Request(shapes.load("pair"), layout.root, layout.root, watched=False)
    assert step_names(pair, simulated=True) == ["vLLM installed", "model", "vLLM first", "vLLM second"]
    split = Request(shapes.load("pd"), layout.root, layout.root)
    assert step_names(split, simulated=True)[-3:] == ["vLLM prefill", "vLLM decode", "router"]
    gpus = Request(shapes.load("single"), layout.root, layout.root)
    assert step_names(gpus, simulated=False) == ["exporter", "vLLM installed", "vLLM server"]
