"""What the testbed changes in a vLLM process, as far as it can be seen without vLLM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from poise.testbed import launch

# A server that forks as vLLM forks its engine core, and a child that says which sockets it still has.
FAMILY = """
import os, socket, sys
listening, waiting = socket.create_server(("127.0.0.1", 0)), socket.socket()
waiting.bind(("127.0.0.1", 0))
client = socket.create_connection(listening.getsockname())
served, _ = listening.accept()
pair = socket.socketpair()
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
answers = []
served.sendall(b"x")
answers.append(client.recv(1) == b"x")
pair[0].sendall(b"y")
answers.append(pair[1].recv(1) == b"y")
for gone in (listening, waiting):
    try:
        gone.getsockname()
        answers.append("kept")
    except OSError:
        answers.append("released")
print(*answers, flush=True)
os._exit(0)
"""


def test_a_forked_child_lets_go_of_the_ports_of_its_server_and_of_nothing_else() -> None:
    environ = {**os.environ, "PYTHONPATH": str(launch.PATCH)}
    answer = subprocess.run([sys.executable, "-c", FAMILY], env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.split() == ["True", "True", "released", "released"]


# As much of vLLM 0.32 as the change needs: the runner of the CPU worker and the group of pipeline stages.
RUNNER = """
class CPUModelRunner:
    def __init__(self):
        self.intermediate_tensors, self.max_num_tokens, self.device = None, 2048, "cpu"
        self.model_config = type("Config", (), {"dtype": "bfloat16"})

    def load_model(self, load_dummy_weights=False):
        self.model = type("Model", (), {"make_empty_intermediate_tensors": staticmethod(lambda **wanted: wanted)})
"""
GROUP = """
import os

def get_pp_group():
    return type("Group", (), {"is_first_rank": os.environ["STAGE"] == "0"})
"""
LOADED = """
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
runner = CPUModelRunner()
runner.load_model(load_dummy_weights=False)
print(runner.intermediate_tensors)
"""


@pytest.mark.parametrize(("stage", "made"), [("0", "None"), ("1", "{'batch_size': 2048, 'dtype': 'bfloat16', 'device': 'cpu'}")])
def test_stages_behind_the_first_have_buffers_for_what_comes_from_before(tmp_path: Path, stage: str, made: str) -> None:
    for name, text in (("v1/worker/cpu_model_runner.py", RUNNER), ("distributed/__init__.py", GROUP)):
        (tmp_path / "vllm" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "vllm" / name).write_text(text)
    environ = {**os.environ, "PYTHONPATH": f"{launch.PATCH}:{tmp_path}", "STAGE": stage}
    answer = subprocess.run([sys.executable, "-c", LOADED], env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.strip() == made


# What vLLM 0.32 does in vllm/entrypoints/serve/instrumentator/metrics.py, in a module of that name, and requests as a server makes them.
METRICS = """
from starlette.responses import PlainTextResponse
from starlette.routing import Route

def attach_router(app):
    app.routes.append(Route("/metrics", lambda request: PlainTextResponse("page")))
    app.routes.append(Route("/health", lambda request: PlainTextResponse("well")))
"""
CLIENT = """
import asyncio, os, sys
from pathlib import Path
from starlette.applications import Starlette
from vllm.entrypoints.serve.instrumentator.metrics import attach_router

hole = Path(os.environ["POISE_TESTBED_BLACKHOLE"])
app = Starlette()
attach_router(app)

async def ask(path, leaves=None):
    sent = []
    told = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive():
        for message in told:
            return message
        await (leaves or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "root_path": "", "query_string": b"", "headers": []}
    await app(scope, receive, send)
    return b"".join(message.get("body", b"") for message in sent).decode()

async def main():
    print(await ask("/metrics"), await ask("/health"))
    hole.touch()
    waiting = asyncio.ensure_future(ask("/metrics"))
    leaves = asyncio.Event()
    leaver = asyncio.ensure_future(ask("/metrics", leaves))
    print(await ask("/health"))
    done, _ = await asyncio.wait({waiting, leaver}, timeout=0.5)
    print(len(done))
    leaves.set()
    await leaver
    print(waiting.done())
    hole.unlink()
    print(await waiting)

asyncio.run(main())
"""


def test_the_metrics_page_waits_while_its_file_is_there_and_nothing_else_does(tmp_path: Path) -> None:
    package = tmp_path / "modules" / "vllm" / "entrypoints" / "serve" / "instrumentator"
    package.mkdir(parents=True)
    (package / "metrics.py").write_text(METRICS)
    environ = {
        **os.environ,
        "PYTHONPATH": f"{launch.PATCH}:{tmp_path / 'modules'}",
        "POISE_TESTBED_BLACKHOLE": str(tmp_path / "server.blackhole"),
    }
    answer = subprocess.run([sys.executable, "-c", CLIENT], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert answer.stdout.split() == ["page", "well", "well", "0", "False", "page"], answer.stderr
