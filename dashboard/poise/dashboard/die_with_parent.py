"""Runs a command that ends when the process that started it ends, even by kill -9.

`python -IS die_with_parent.py PARENT_PID COMMAND…`: prctl(PR_SET_PDEATHSIG, SIGKILL), then exec, which keeps the setting. A step of its
own instead of code between fork and exec, which is not safe in a process with threads. Imports nothing of Poise.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(arguments: list[str]) -> None:
    """Tie this process to its parent and become the command. Exits when the parent is gone already."""
    parent, command = int(arguments[0]), arguments[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it ended before the setting was made
        sys.exit(1)
    # Until the command takes it (`poise exporter` waits for it), a "read again" must not end it; the disposition outlives exec.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.execvp(command[0], command)  # noqa: S606 - exec without a shell is the purpose of this file


if __name__ == "__main__":
    main(sys.argv[1:])
