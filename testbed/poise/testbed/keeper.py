"""Ends a deployment when its launcher ends, however that ends: `python -m poise.testbed.keeper STATE_DIRECTORY DESCRIPTOR`.

The launcher holds the other end of a pipe. End of file means that it died (kill -9, a closed terminal): everything is taken
down. The word "keep" means that the deployment is to stay without a launcher (`poise testbed up` has finished).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from poise.testbed import records
from poise.testbed.errors import TestbedError
from poise.testbed.paths import StateLayout
from poise.testbed.teardown import take_down

KEEP = b"keep"


def main(arguments: list[str]) -> int:
    layout, descriptor = StateLayout(Path(arguments[0])), int(arguments[1])
    # A Ctrl-C or a closed terminal is for the launcher; what we answer to is its end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with os.fdopen(descriptor, "rb") as stream:
        word = stream.read()  # returns when every copy of the other end is closed, that is when the launcher has ended
    if word == KEEP:
        records.remove(layout.records, "keeper")
        return 0
    print(f"{time.strftime('%F %T')} the launcher ended without a word: taking everything down", flush=True)
    try:
        take_down(layout)
    except TestbedError as error:
        print(error, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
