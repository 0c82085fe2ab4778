"""Starts one process of a deployment so that it can always be found again: `python -m poise.testbed.starter`.

The forked child makes its own session, writes its record, then turns into the command by exec (pid and start time stay).
The parent reports at once whether the exec worked and ends; the child lives on without the launcher. Killed at any moment,
either nothing was started or a record names what was.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from poise.testbed.files import write_json
from poise.testbed.processes import boot_id, own_identity

STARTER = "poise.testbed.starter"
#: In the environment of everything that is started; its value is the deployment's own (claim.py).
MARK = "POISE_TESTBED_DEPLOYMENT"
# Seconds in which fork, record and exec must be done; on a loaded machine they take well under one.
TIMEOUT_SECONDS = 60.0


def main(arguments: list[str]) -> int:
    """Arguments: folder of records, JSON {"name", "role", "facts"}, deployment (the value of the mark), log file, command …; environment and
    working directory are inherited. Prints the pid; exit status 1 and a reason on stderr when the command could not be run."""
    folder, description, (deployment, log), command = Path(arguments[0]), json.loads(arguments[1]), arguments[2:4], arguments[4:]
    reading, writing = os.pipe()  # closed by a successful exec
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            _become(folder, description, deployment, log, command)
        except BaseException as error:
            os.write(writing, str(error).encode())
        os._exit(127)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        problem = stream.read().decode()
    if problem:
        print(problem, file=sys.stderr)
        return 1
    print(pid)
    return 0


def _become(folder: Path, description: dict[str, object], deployment: str, log: str, command: list[str]) -> None:
    # The mark is in the environment from exec on and not before: who has it is in a session of ours.
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    identity = own_identity()
    record = {**description, "pid": identity.pid, "start_ticks": identity.start_ticks, "started": time.time(), "boot": boot_id() or ""}
    write_json(folder / f"{description['name']}.json", record)
    # Last, where it often outlives a new title: vLLM changes variables before it retitles its workers.
    environ = {name: value for name, value in os.environ.items() if name != MARK} | {MARK: deployment}
    os.execvpe(command[0], command, environ)  # noqa: S606 - exec without a shell is the purpose of this file


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
