"""Carrying a run out, with a stand-in for `vllm bench serve` that replays what the real one said and wrote. The real one is in tests/vllm."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from poise.testbed import interrupts, plan, processes
from poise.testbed.bench import drive, profile, run, watch
from poise.testbed.bench.drive import Outcome
from poise.testbed.bench.profile import Overrides
from poise.testbed.deployment import Deployment
from poise.testbed.errors import TestbedError
from poise.testbed.progress import Progress, Step

from tests.unit.testbed.bench.runs import ENGINE, RECORDED, page
from tests.unit.testbed.deployments import layout_in

# Replays one recorded run; the words behind it are the arguments of the client.
REPLAY = f"""#!{sys.executable}
import json, os, pathlib, shutil, signal, sys, time
arguments = dict(zip(sys.argv[1:], sys.argv[2:]))
recorded, folder = pathlib.Path({str(RECORDED)!r}), pathlib.Path(arguments["--result-dir"])
case = json.loads((pathlib.Path(__file__).parent / "case.json").read_text())
rate = arguments.get("--request-rate")
sys.stdout.write((recorded / "chat.out").read_text().partition("====")[0])
sys.stdout.flush()
sys.stderr.write((recorded / case.get("stderr", "chat.err")).read_text())
sys.stderr.flush()
if rate is not None and rate == case.get("hangs_at"):
    os.kill(case["interrupts"], signal.SIGINT)
    time.sleep(600)
if "status" in case:
    sys.exit(case["status"])
sys.stdout.write("============ Serving Benchmark Result ============\\n")
shutil.copy(recorded / case.get("result", "chat.json"), folder / arguments["--result-filename"])
"""

Prepare = Callable[..., Deployment]


@pytest.fixture
def deployed(tmp_path: Path) -> Prepare:
    """A deployment without exporter whose environment holds the stand-in; `case` says how it behaves."""

    def prepare(**case: Any) -> Deployment:
        layout = layout_in(tmp_path)
        folder = tmp_path / "environment" / "bin"
        folder.mkdir(parents=True)
        client = folder / "vllm"
        client.write_text(REPLAY)
        client.chmod(client.stat().st_mode | stat.S_IXUSR)
        (folder / "case.json").write_text(json.dumps(case))
        engines = (ENGINE,)
        plan.write(layout.plan, plan.DeploymentPlan("tp", "cpu", folder.parent, "served/model", "served/model", 2, engines, None))
        return Deployment(layout, os.environ)

    return prepare


class Told:
    """The last words of each step."""

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}
        self.details: list[str] = []

    def show(self, title: str, steps: object, current: Step, changed: bool) -> None:
        self.steps[current.name] = current
        self.details.append(current.detail)


def driven(deployment: Deployment, name: str, told: Told, say: Callable[[str], None] = lambda _: None, **options: Any) -> Outcome:
    chosen = profile.changed(profile.load(name, "cpu"), Overrides(warmup_requests=0, **options))
    progress = Progress("load", [], [told], lambda: 0.0)
    return drive.run_profile(deployment, chosen, deployment.layout.runs, progress, os.environ, say=say)


def test_a_run_is_carried_out_and_saved(deployed: Prepare) -> None:
    told, deployment = Told(), deployed()
    outcome = driven(deployment, "chat", told, requests=64)
    content = run.read(outcome.path)
    step = content["steps"][0]
    assert outcome.path.parent == deployment.layout.runs
    assert (step["client"]["completed"], step["client"]["output_tokens"], content["interrupted"]) == (64, 3220, False)
    assert (step["observed"], step["unobserved"]) == (None, "the deployment was brought up without an exporter")
    assert content["workload"]["tokenizer"] == "served/model"
    assert told.steps["chat"].state == "done"
    assert told.steps["chat"].detail == "64 requests in 19.6 s, 164 output tokens/s"
    assert any(detail.startswith("64 of 64 requests, ") for detail in told.details), "the client's own progress is shown"
    assert list(deployment.layout.temporary.glob("bench-*")) == []


def test_cards_that_the_exporter_finds_only_after_the_start_are_those_of_the_run(
    deployed: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As seen: the first run after `up` had no cards, and could not be compared with the others."""
    pages = iter([replace(page("tp-before.prom"), engines={}), page("tp-before.prom")])
    monkeypatch.setattr(watch, "reader", lambda url: lambda: next(pages, page("tp-after.prom")))
    deployment = deployed()
    plan.write(deployment.layout.plan, replace(deployment.plan, exporter_port=1))
    content = driven(deployment, "chat", Told(), requests=64).content
    assert [card["name"] for card in content["cards"]] == ["Simulated NVIDIA H20-3e"] * 2


def test_a_dead_exporter_costs_what_it_would_have_shown_and_not_the_run(deployed: Prepare) -> None:
    deployment = deployed()
    plan.write(deployment.layout.plan, replace(deployment.plan, exporter_port=1))
    content = driven(deployment, "chat", Told(), requests=64).content
    assert content["steps"][0]["unobserved"].startswith("the exporter on http://127.0.0.1:1 gave no page")
    assert (content["cards"], content["steps"][0]["client"]["completed"]) == ([], 64)


def test_a_ramp_ends_where_it_saturates(deployed: Prepare) -> None:
    """Each step replays 64 answers in 19.6 s: enough for up to 4 requests/s, too few for 8."""
    content = driven(deployed(), "ramp", Told(), requests=64).content
    assert [(step["rate"], step["saturated"]) for step in content["steps"]] == [(1.0, False), (2.0, False), (4.0, False), (8.0, True)]
    assert [step["seed"] for step in content["steps"]] == [1, 1001, 2001, 3001]
    assert not content["interrupted"]


def test_the_last_words_of_a_client_that_fails_are_said_and_nothing_is_saved(deployed: Prepare) -> None:
    deployment, told = deployed(status=1, stderr="bad-rate.err"), Told()
    with pytest.raises(
        TestbedError, match=r"^`vllm bench serve` ended with status 1: AssertionError: Obtained non-positive request rate -1.0\.$"
    ):
        driven(deployment, "chat", told, requests=64)
    assert told.steps["chat"].state == "failed"
    assert not deployment.layout.runs.exists()


def test_when_every_request_fails_the_first_error_is_said(deployed: Prepare) -> None:
    deployment = deployed(result="dead.json")
    with pytest.raises(TestbedError, match=r"all 4 requests to http://127\.0\.0\.1:\d+ failed: aiohttp.*Cannot connect to host"):
        driven(deployment, "chat", Told(), requests=64)
    assert not deployment.layout.runs.exists()


def test_ctrl_c_ends_the_client_and_keeps_the_steps_behind_it(deployed: Prepare) -> None:
    deployment, said = deployed(hangs_at="2", interrupts=os.getpid()), list[str]()
    with interrupts.as_exceptions(), pytest.raises(KeyboardInterrupt):
        driven(deployment, "ramp", Told(), said.append, requests=64)
    saved = run.saved(deployment.layout.runs)
    assert said == [f"1 of 7 steps were whole and are kept in {saved[0][0]}"]
    assert [(content["interrupted"], len(content["steps"])) for _, content in saved] == [(True, 1)]
    assert clients(deployment) == []
    assert list(deployment.layout.temporary.glob("bench-*")) == []


def test_ctrl_c_in_the_first_step_leaves_nothing(deployed: Prepare) -> None:
    deployment = deployed(hangs_at="3", interrupts=os.getpid())
    with interrupts.as_exceptions(), pytest.raises(KeyboardInterrupt):
        driven(deployment, "burst", Told())
    assert run.saved(deployment.layout.runs) == []
    assert clients(deployment) == []


def clients(deployment: Deployment) -> list[int]:
    """Pids of stand-ins that still run."""
    program = str(deployment.plan.environment / "bin" / "vllm").encode()
    found = []
    for entry in processes.all_stats():
        try:
            command = (processes.PROC / str(entry.pid) / "cmdline").read_bytes()
        except OSError:  # it ended
            continue
        if program in command and entry.lives:
            found.append(entry.pid)
    return found


def test_a_warm_up_that_nobody_answers_is_said(deployed: Prepare) -> None:
    deployment = deployed()
    chosen = profile.changed(profile.load("chat", "cpu"), Overrides(warmup_requests=1))
    with pytest.raises(TestbedError, match=r"all 1 requests of the warm-up to http://127\.0\.0\.1:\d+ failed: "):
        drive.run_profile(deployment, chosen, deployment.layout.runs, Progress("", [], [Told()], lambda: 0.0), os.environ)
