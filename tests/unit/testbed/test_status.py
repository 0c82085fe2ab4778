"""What is said of parts that live, that do not answer, and that are gone."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from poise.testbed import cards, plan, records, startup, status, teardown
from poise.testbed.deployment import Deployment
from poise.testbed.launch import ROUTER_READY_PATH
from poise.testbed.paths import StateLayout
from poise.testbed.plan import DeploymentPlan, EnginePlan
from poise.testbed.records import Record, Role
from poise.testbed.status import State, WorkerStatus, engine_state, router_state

from tests.unit.testbed.deployments import layout_in, start
from tests.unit.testbed.test_plan import SPLIT
from tests.waiting import wait_until

GONE = 2**22 + 1  # no pid is as high

# `vllm serve` with its workers, as far as their titles go: cat waits for input that does not come.
SERVER = """
import subprocess, sys, time
workers = [subprocess.Popen([title], executable="/bin/cat", stdin=subprocess.PIPE) for title in sys.argv[1:]]
print("Application startup complete", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"there": False}, ("absent", "not started")),
        ({"lives": False}, ("dead", "its process is gone")),
        ({"answers": False}, ("starting", "it does not answer yet")),
        ({"answers": False, "answered_once": True}, ("silent", "it answered before and does not now")),
        ({"answers": False, "stopped": ["VLLM::Worker_TP1"]}, ("silent", "stopped: VLLM::Worker_TP1")),
        ({"stopped": ["VLLM::Worker_TP0", "VLLM::Worker_TP1"]}, ("degraded", "stopped: VLLM::Worker_TP0, VLLM::Worker_TP1")),
        ({"ranks": 1}, ("degraded", "1 of 2 ranks have a process")),
        ({"ranks": None}, ("ready", None)),
        ({}, ("ready", None)),
    ],
)
def test_the_state_of_a_server_and_why(facts: dict[str, object], said: tuple[State, str | None]) -> None:
    healthy: dict[str, object] = {
        "there": True,
        "lives": True,
        "answers": True,
        "answered_once": False,
        "ranks": 2,
        "wanted": 2,
        "stopped": [],
    }
    assert engine_state(**{**healthy, **facts}) == said  # type: ignore[arg-type]  # each case gives arguments of it


@pytest.mark.parametrize(
    ("there", "lives", "answers", "backends", "said"),
    [
        (False, False, False, ("ready", "ready"), ("absent", "not started")),
        (True, False, False, ("ready", "ready"), ("dead", "its process is gone: no request reaches the engines")),
        (True, True, False, ("ready", "ready"), ("starting", "it has not found prefill and decode healthy yet")),
        (True, True, False, ("ready", "starting"), ("starting", "it has not found prefill and decode healthy yet")),
        (True, True, False, ("ready", "dead"), ("degraded", "backend b is dead: it answers no request")),
        (True, True, True, ("ready", "silent"), ("degraded", "backend b is silent")),
        (True, True, True, ("ready", "ready"), ("ready", None)),
    ],
)
def test_the_state_of_a_router_and_why(
    there: bool, lives: bool, answers: bool, backends: tuple[State, State], said: tuple[State, str | None]
) -> None:
    assert router_state(there, lives, answers, list(zip("ab", backends, strict=True))) == said


class Answers(BaseHTTPRequestHandler):
    """200 on the paths that the server knows."""

    def do_GET(self) -> None:
        assert isinstance(self.server, Server)
        self.send_response(200 if self.path in self.server.paths else 503)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


class Server(ThreadingHTTPServer):
    paths: tuple[str, ...] = ()


@contextmanager
def serving(*paths: str) -> Iterator[int]:
    with Server(("127.0.0.1", 0), Answers) as server:
        server.paths = paths
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[StateLayout]:
    made = layout_in(tmp_path)
    yield made
    teardown.take_down(made)


def brought_up(layout: StateLayout, wanted: DeploymentPlan) -> Deployment:
    plan.write(layout.plan, replace(wanted, exporter_port=None, simulated_cards=0))
    return Deployment(layout, os.environ)


def record_dead(layout: StateLayout, name: str, role: Role, **facts: str) -> None:
    records.write(layout.records, Record(name, role, GONE, 5, 0.0, facts))


def states(found: status.Status) -> dict[str, tuple[State, str | None]]:
    return {part.name: (part.state, part.reason) for part in found.parts}


def test_a_router_whose_decode_was_killed_is_not_starting_but_says_what_it_lacks(layout: StateLayout) -> None:
    """It was said to be starting, for ever."""
    assert SPLIT.router is not None
    with serving("/health") as alive, serving() as router:
        prefill, decode = SPLIT.engines
        deployment = brought_up(layout, replace(SPLIT, engines=(replace(prefill, port=alive), decode)))
        start(layout, "prefill")
        record_dead(layout, "decode", "engine")
        answering = start(layout, "router", "router")
        records.write(layout.records, replace(answering, facts={"url": f"http://127.0.0.1:{router}"}))
        found = status.look(deployment)
        assert states(found) == {
            "router": ("degraded", "backend decode is dead: it answers no request"),
            "prefill": ("ready", None),
            "decode": ("dead", "its process is gone"),
        }
        assert not found.ready
        assert re.search(
            r"^  router   degraded  pid \d+ .*: backend decode is dead: it answers no request$", status.text(found), re.MULTILINE
        )


def test_a_router_that_was_killed_is_dead_while_its_engines_are_ready(layout: StateLayout) -> None:
    with serving("/health", ROUTER_READY_PATH) as alive:
        deployment = brought_up(layout, replace(SPLIT, engines=tuple(replace(engine, port=alive) for engine in SPLIT.engines)))
        for engine in SPLIT.engines:
            start(layout, engine.name)
        record_dead(layout, "router", "router", url=f"http://127.0.0.1:{alive}")
        found = status.look(deployment)
    assert states(found)["router"] == ("dead", "its process is gone: no request reaches the engines")
    assert [states(found)[name][0] for name in ("prefill", "decode")] == ["ready", "ready"]


def test_parts_of_the_plan_that_never_started_are_named_in_the_order_of_a_request(layout: StateLayout) -> None:
    plan.write(layout.plan, SPLIT)
    found = status.look(Deployment(layout, os.environ))
    assert [(part.name, part.state, part.pid) for part in found.parts] == [
        (name, "absent", None) for name in ("router", "prefill", "decode", "exporter", "mirror")
    ]
    assert "  mirror    absent    no process: not started" in status.text(found)
    assert found.as_dict()["ready"] is False


def staged(layout: StateLayout, port: int, titles: tuple[str, ...], **changes: object) -> tuple[Deployment, Record]:
    engine = replace(EnginePlan("server", port, 1, None, (), pipeline_parallel_size=2), **changes)  # type: ignore[arg-type]  # fields of it
    deployment = brought_up(layout, replace(SPLIT, shape="pp", router=None, engines=(engine,), healthy=()))
    server = start(layout, "server", command=["/usr/bin/env", "python3", "-c", SERVER, *titles])
    wait_until(lambda: startup.PHASES[-1].mark in layout.log("server").read_text(), "the server")
    wait_until(lambda: len(deployment.workers()) == len(titles), "its workers")
    return deployment, server


def test_stages_are_shown_with_their_ranks_and_cards_and_a_stopped_one_is_said(layout: StateLayout) -> None:
    with serving("/health") as port:
        deployment, _ = staged(layout, port, ("VLLM::Worker_PP0", "VLLM::Worker_PP1"))
        first, last = deployment.workers()
        cards.show(layout, {first.pid: 0, last.pid: 1}, ())
        (part,) = status.look(deployment).parts
        assert (part.state, part.tensor_parallel_size, part.pipeline_parallel_size) == ("ready", 1, 2)
        assert part.workers == (
            WorkerStatus(first.pid, "VLLM::Worker_PP0", None, 0, 0),
            WorkerStatus(last.pid, "VLLM::Worker_PP1", None, 1, 1),
        )
        os.kill(last.pid, signal.SIGSTOP)
        wait_until(lambda: status.look(deployment).parts[0].state == "degraded", "the stopped worker")
        os.kill(last.pid, signal.SIGKILL)
        wait_until(lambda: status.look(deployment).parts[0].reason == "1 of 2 ranks have a process", "its end")
        assert "pipeline parallel 2" in status.text(status.look(deployment))
    assert states(status.look(deployment))["server"] == ("silent", "it answered before and does not now")


@pytest.mark.parametrize(("visible", "expected"), [(None, [0, 1]), ("3,1", [3, 1]), ("GPU-a,GPU-b", [None, None])])
def test_on_real_cards_ranks_are_where_cuda_puts_them(layout: StateLayout, visible: str | None, expected: list[int | None]) -> None:
    with serving("/health") as port:
        deployment, _ = staged(layout, port, ("VLLM::Worker_PP0", "VLLM::Worker_PP1"), cuda_visible_devices=visible)
        plan.write(layout.plan, replace(deployment.plan, build="gpu"))
        (part,) = status.look(deployment).parts
        assert [worker.card for worker in part.workers] == expected
