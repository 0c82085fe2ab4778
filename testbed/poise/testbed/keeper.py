"""Ends a deployment when its launcher ends, however that ends: `python -m poise.testbed.keeper STATE_DIRECTORY DESCRIPTOR`.

The launcher holds the other end of a pipe. End of file means that it died (kill -9, a closed terminal): everything is taken
down. The word "keep" means that the deployment is to stay without a launcher (`poise testbed up` has finished).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from poise.testbed import ownership, processes, records
from poise.testbed.errors import TestbedError
from poise.testbed.paths import StateLayout
from poise.testbed.teardown import take_down

KEEP = b"keep"
# Somebody else may hold the lock, or a process hang in the kernel for a while: it is tried again, for as long as an operator may take.
RETRY_SECONDS = 2.0
GIVE_UP_SECONDS = 3600.0


def main(arguments: list[str]) -> int:
    layout, descriptor = StateLayout(Path(arguments[0])), int(arguments[1])
    # A Ctrl-C or a closed terminal is for the launcher; what we answer to is its end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with os.fdopen(descriptor, "rb") as stream:
        word = stream.read()  # returns when every copy of the other end is closed, that is when the launcher has ended
    if word == KEEP:
        with contextlib.suppress(OSError):  # the launcher, which waits for our end, says so
            records.remove(layout.records, "keeper")
        return 0
    _say("the launcher ended without a word: taking everything down")
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while True:
        try:
            take_down(layout, _say)
        except (TestbedError, OSError) as error:
            _say(str(error))
            stats = processes.all_stats()
            if not ownership.belonging(stats, layout, ownership.kept(stats)) or time.monotonic() > deadline:
                return 1
            time.sleep(RETRY_SECONDS)
        else:
            return 0


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the log's disk is full: ending goes on
        print(f"{time.strftime('%F %T')} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
