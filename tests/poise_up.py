"""`poise up` as a process of its own, for tests that look at it from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

#: Seconds for things that take one: this machine may be busy with other tests.
PATIENCE = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(url: str, timeout: float = 5) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def wait_for(condition: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {patience:g} s"
        time.sleep(0.05)


@contextlib.contextmanager
def up(
    *words: str, log: Path, environment: Mapping[str, str] | None = None, within: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A running `poise up` and its URL; ended at the end, whatever happens. `within`: a command that becomes the one behind it."""
    port = free_port()
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*within, sys.executable, "-m", "poise.cli", "up", "--listen", f"127.0.0.1:{port}", *words],
            stdout=stream,
            stderr=stream,
            cwd=log.parent,
            # A history of its own, not this machine's.
            env={**os.environ, "POISE_STATE_DIR": str(log.parent / f"state-{port}"), **(environment or {})},
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: process.poll() is not None or get(f"{url}/healthz")[0] == 200, "poise up answers")
        yield process, url
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def overview(url: str) -> dict[str, object]:
    document = json.loads(get(f"{url}/api/poise/v1/overview")[1] or "{}")
    assert isinstance(document, dict)
    return document


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
