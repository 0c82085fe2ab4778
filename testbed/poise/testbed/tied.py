"""Runs a command that ends when the process that started it ends, even by kill -9.

`python -m poise.testbed.tied PARENT_PID COMMAND …`: prctl(PR_SET_PDEATHSIG, SIGKILL), then exec. For short helpers such as
pip; a vLLM server needs the keeper instead, because the setting is not inherited by its children.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(arguments: list[str]) -> None:
    parent, command = int(arguments[0]), arguments[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it ended before the setting was made
        sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 - exec without a shell is the purpose of this file


if __name__ == "__main__":
    main(sys.argv[1:])
