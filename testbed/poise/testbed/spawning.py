"""Starts recorded processes of a deployment through the starter, and waits for what they promise.

Knows records, logs and HTTP readiness; nothing of shapes or of what a part is for.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from poise.testbed import claim, records
from poise.testbed.errors import TestbedError
from poise.testbed.paths import StateLayout
from poise.testbed.ports import LOOPBACK
from poise.testbed.processes import wait_gone
from poise.testbed.records import Record, Role
from poise.testbed.starter import STARTER, TIMEOUT_SECONDS

# How often a server is asked whether it is ready: nothing announces it.
ASK_SECONDS = 0.5
ASK_TIMEOUT_SECONDS = 5.0
LOG_TAIL_LINES = 12
# The mark of what is started in a state directory of an earlier version, which has no marker: there the working directory tells.
UNKNOWN = "unknown"


def spawn(
    layout: StateLayout,
    name: str,
    role: Role,
    command: Sequence[str],
    environ: Mapping[str, str],
    facts: Mapping[str, str],
    pass_descriptors: Sequence[int] = (),
) -> Record:
    """Starts one process of the deployment, in a session of its own, output to its log; returns its record.

    Raises TestbedError when the command cannot be run.
    """
    log = layout.log(name)
    log.unlink(missing_ok=True)
    description = json.dumps({"name": name, "role": role, "facts": dict(facts)})
    deployment = claim.identity(layout) or UNKNOWN
    starter = [sys.executable, "-m", STARTER, str(layout.records), description, deployment, str(log), *command]
    answer = subprocess.run(
        starter,
        env=dict(environ),
        cwd=layout.run,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        pass_fds=pass_descriptors,
        check=False,
    )
    if answer.returncode != 0:
        reason = (answer.stderr.strip() or "no reason given").splitlines()[-1]
        raise TestbedError(f"{name} could not be started ({command[0]}): {reason}")
    for record in records.read_all(layout.records):
        if record.name == name:
            return record
    raise TestbedError(f"{name} left no record in {layout.records}: is the disk full?")


def wait_http(
    layout: StateLayout,
    record: Record,
    port: int,
    path: str,
    timeout: float,
    news: Callable[[], None] = lambda: None,
) -> None:
    """Waits until http://127.0.0.1:port/path answers 200; `news` is called at each try.

    Raises TestbedError with the end of the log when the process ends first or `timeout` seconds pass.
    """
    deadline = time.monotonic() + timeout
    while not answers(port, path):
        news()
        if not wait_gone([record.identity], ASK_SECONDS):
            raise TestbedError(
                f"{record.name} ended before it was ready; the end of {layout.log(record.name)}:\n{tail(layout, record.name)}"
            )
        if time.monotonic() > deadline:
            raise TestbedError(
                f"{record.name} was not ready after {timeout:.0f} s; the end of {layout.log(record.name)}:\n{tail(layout, record.name)}"
            )


def answers(port: int, path: str, timeout: float = ASK_TIMEOUT_SECONDS) -> bool:
    """Whether a GET of the path on loopback gives status 200."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=timeout)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def tail(layout: StateLayout, name: str, lines: int = LOG_TAIL_LINES) -> str:
    """The last lines of a log, for an error message."""
    try:
        text = layout.log(name).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return "(no log)"
    return "\n".join(text.splitlines()[-lines:]) or "(empty, as when it was killed)"
