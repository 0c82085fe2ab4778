"""The processes that faults start: `python -m poise.testbed.faults clients …` and `… brake …`. Only the fault knows why."""

from __future__ import annotations

import sys

from poise.testbed.faults import clients, freezing

PROGRAMS = {clients.PROGRAM: clients.main, freezing.PROGRAM: freezing.main}

if __name__ == "__main__":
    sys.exit(PROGRAMS[sys.argv[1]](sys.argv[2:]))
