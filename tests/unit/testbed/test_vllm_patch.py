"""What the testbed changes in a vLLM process, as far as it can be seen without vLLM."""

from __future__ import annotations

import os
import subprocess
import sys

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
