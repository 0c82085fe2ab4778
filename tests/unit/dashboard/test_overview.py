"""The whole context: what stands on the page in each phase of a node's life."""

from __future__ import annotations

import json
from dataclasses import replace

from poise.dashboard.observation import ExporterMode, ExporterStatus, Observation
from poise.dashboard.overview import overview
from poise.dashboard.progress import Progress, Step
from poise.dashboard.rendering import document
from poise.dashboard.texts import ENGLISH
from poise.history.recent import RecentWindow

from tests.node_scenes import eight_cards, one_visible, tensor_parallel
from tests.unit.dashboard.pages import page_of

RUNNING = Progress("testbed", (Step("install", "done", "", 1.0, 74.0), Step("engine", "running", "loading", 0.4, 3.0)), 1_790_000_000.0)


def test_before_any_answer_the_page_says_that_it_waits_and_shows_the_work() -> None:
    page = overview(Observation(1_790_000_001.0, 5.0, RecentWindow(), progress=RUNNING), ENGLISH)
    assert page.waiting
    assert page.sources[0].state == "waiting"
    assert page.verdict.state == "unknown"
    assert page.progress is not None
    assert [(step.name, step.state, step.fraction) for step in page.progress.steps] == [
        ("install", "done", 1.0),
        ("engine", "running", 0.4),
    ]
    assert page.progress.quiet == ""
    assert page.deployments == page.unowned == ()


def test_silent_work_says_so_and_finished_work_leaves_the_page() -> None:
    silent = overview(Observation(1_790_000_040.0, 5.0, RecentWindow(), progress=RUNNING), ENGLISH)
    assert silent.progress is not None
    assert silent.progress.quiet.replace("\u00a0", " ") == "no news for 40 s"
    done = replace(RUNNING, steps=(Step("install", "done"),))
    assert overview(Observation(1_790_000_010.0, 5.0, RecentWindow(), progress=done), ENGLISH).progress is not None
    assert overview(Observation(1_790_000_040.0, 5.0, RecentWindow(), progress=done), ENGLISH).progress is None
    failed = replace(RUNNING, steps=(Step("install", "failed", "no network"),))
    late = overview(Observation(1_790_009_999.0, 5.0, RecentWindow(), progress=failed), ENGLISH)
    assert late.progress is not None
    assert late.progress.state == "failed"


def test_simulated_cards_are_said_by_the_node_and_by_the_checks() -> None:
    assert not page_of(tensor_parallel()).simulated
    simulated = replace(tensor_parallel(), simulated=True)
    assert page_of(simulated).simulated
    assert page_of(replace(simulated, checks=())).simulated


def test_when_the_exporter_is_gone_the_last_state_is_shown_as_old() -> None:
    page = page_of(tensor_parallel(), silent=60, error="connection refused")
    assert page.sources[0].state == "down"
    assert "60" in page.stale
    assert page.verdict.state == "unknown"
    assert len(page.deployments) == 1
    assert page_of(tensor_parallel()).stale == ""


def test_notices_of_exporter_and_progress_file_are_shown() -> None:
    status = ExporterStatus(ExporterMode.CHILD, "The exporter ended (exit code 3).", 2)
    assert page_of(tensor_parallel(), exporter=status).notice == "The exporter ended (exit code 3)."


def test_checks_open_by_themselves_only_when_the_verdict_had_no_room() -> None:
    scene = one_visible()
    assert not page_of(scene).checks_open
    many = tuple({**scene.checks[1], "check": f"c{n}"} for n in range(5))
    assert page_of(replace(scene, checks=many)).checks_open
    repeats = ({**many[0], "status": "fail"}, {**many[1], "status": "fail", "state": "ok"})
    assert not page_of(replace(scene, checks=repeats)).checks_open, "a verdict with room left has dropped only what repeats it"


def test_the_json_twin_is_the_context() -> None:
    page = page_of(eight_cards())
    twin = json.loads(document(page))
    assert twin["node"] == "gpu-node-1"
    assert twin["verdict"]["state"] == "problem"
    assert twin["deployments"][0]["engines"][0]["figures"][0]["first"]["value"] == 4.0
    assert twin["unowned"][0]["state"] == "lost"
