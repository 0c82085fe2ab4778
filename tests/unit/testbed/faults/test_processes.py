"""The processes of faults: clients of their own, and stopping what computes. Ordinary processes stand in for vLLM's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from poise.testbed import faults, plan, processes, teardown
from poise.testbed.deployment import Deployment
from poise.testbed.faults import clients, freezing
from poise.testbed.load import LoadSettings
from poise.testbed.progress import Progress
from poise.testbed.records import Record

from tests.unit.testbed.deployments import layout_in, ours, start
from tests.unit.testbed.test_plan import PLAN
from tests.waiting import wait_until

#: A server with a child whose title is that of a worker, as vLLM gives it with setproctitle.
SERVER = "import subprocess, time; subprocess.Popen(['VLLM::Worker'], executable='cat', stdin=subprocess.PIPE); time.sleep(600)"
#: The child alone, as a single engine on a GPU has it.
CORE_SERVER = SERVER.replace("VLLM::Worker", "VLLM::EngineCore")


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    layout = layout_in(tmp_path)
    engines = (replace(PLAN.engines[0], tensor_parallel_size=1, arguments=()),)
    plan.write(layout.plan, replace(PLAN, engines=engines, healthy=(), fault=None, simulated_cards=0, exporter_port=None))
    yield Deployment(layout, os.environ)
    teardown.take_down(layout)


def serve(deployment: Deployment, program: str = SERVER) -> tuple[Record, processes.ProcessIdentity]:
    """A server, and what computes for it."""
    server = start(deployment.layout, "server", "engine", [sys.executable, "-c", program])
    wait_until(lambda: len(freezing.computing(deployment, "server")) == 1, "the worker")
    (worker,) = freezing.computing(deployment, "server")
    return server, worker


def state(identity: processes.ProcessIdentity) -> str:
    stat = processes.read_stat(identity.pid)
    return "gone" if stat is None else stat.state


@pytest.mark.parametrize("program", [SERVER, CORE_SERVER], ids=["worker", "core"])
def test_what_computes_is_stopped_while_the_server_runs_and_set_going_again(deployment: Deployment, program: str) -> None:
    server, worker = serve(deployment, program)
    assert freezing.stop(deployment, "server") == 1
    wait_until(lambda: state(worker) == "T", "the worker stopped")
    assert state(server.identity) != "T"
    freezing.resume(deployment)
    wait_until(lambda: state(worker) != "T", "the worker going")
    freezing.resume(deployment)
    assert state(worker) in "SR"


def test_of_a_dead_engine_nothing_computes(deployment: Deployment) -> None:
    assert freezing.stop(deployment, "server") == 0


def test_a_brake_stops_over_and_over_and_leaves_its_engine_going_when_it_is_ended(deployment: Deployment) -> None:
    _, worker = serve(deployment)
    brake = deployment.spawn("fault_brake", "fault", freezing.command(deployment, "server", 0.8))
    for wanted in ("T", "S", "T"):
        wait_until(lambda wanted=wanted: state(worker) == wanted, f"state {wanted}")
    deployment.end(["fault_brake"])
    assert not brake.lives
    assert state(worker) == "S"


def test_undoing_goes_by_what_is_there_whoever_left_it_and_twice_changes_nothing(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, worker = serve(deployment)
    monkeypatch.setattr("poise.testbed.spawning.answers", lambda port, path: True)  # nothing here speaks HTTP
    brake = deployment.spawn("fault_brake", "fault", freezing.command(deployment, "server", 0.999))
    wait_until(lambda: state(worker) == "T", "the worker stopped")
    os.kill(brake.pid, signal.SIGKILL)  # as when a launcher is killed half way: the fault is noted, and what it did stays
    deployment.note_fault("slow-decode")
    progress = Progress("undo", [], [], lambda: 0.0)
    for _ in range(2):
        assert faults.undo(Deployment.open(deployment.layout.root), progress) == []
        wait_until(lambda: state(worker) == "S", "the worker going")
        assert deployment.plan.fault is None
        assert deployment.record("fault_brake") is None
        assert deployment.record("server") == server
    assert sorted(ours(deployment.layout)) == sorted([server.pid, worker.pid])


def test_clients_ask_until_they_are_ended_and_their_key_is_in_no_command_line(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Semaphore(0)
    keys: set[str | None] = set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            keys.add(self.headers["Authorization"])
            asked.release()
            self.send_error(503)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    monkeypatch.setenv("VLLM_API_KEY", "sk-planted")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        settings = LoadSettings(f"http://127.0.0.1:{server.server_port}", "tiny", concurrency=3, headers={"Authorization": "sk-planted"})
        command = clients.command(settings)
        record = deployment.spawn("fault_clients", "fault", command)
        assert all(asked.acquire(timeout=30) for _ in range(4))
        deployment.end(["fault_clients"])
        server.shutdown()
        thread.join()
    assert not record.lives
    assert keys == {"Bearer sk-planted"}
    assert "sk-planted" not in " ".join(command)


def test_more_clients_than_descriptors_get_more_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "ulimit -S -n 100; exec " + " ".join(
        f"'{word}'" for word in clients.command(LoadSettings("http://127.0.0.1:9", "tiny", concurrency=150, seconds=0.5))
    )
    ended = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "Too many open files" not in ended.stdout + ended.stderr
