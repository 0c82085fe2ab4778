"""Clients of a fault, as a process of their own (`python -m poise.testbed.faults clients JSON`), without end until SIGTERM.

Owns that process and the words in which it is asked for. What a client does is load.py's.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping, Sequence

from poise.testbed import load
from poise.testbed.load import LoadResult, LoadSettings
from poise.testbed.request import authorization

PROGRAM = "clients"
# Beside one descriptor for each client: standard streams, the event loop's, and what Python opens.
OTHER_DESCRIPTORS = 64


def command(settings: LoadSettings) -> list[str]:
    """The command line of the process. Headers are not in it: they can hold a key, which the process reads from its environment."""
    wanted = {name: value for name, value in dataclasses.asdict(settings).items() if name != "headers"}
    return [sys.executable, "-m", "poise.testbed.faults", PROGRAM, json.dumps(wanted)]


def settings_of(text: str, environ: Mapping[str, str]) -> LoadSettings:
    """The settings that `command` wrote."""
    return LoadSettings(**json.loads(text), headers=authorization(environ))


async def _drive(settings: LoadSettings) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    result = LoadResult()
    await load.run_load(settings, result, time.monotonic, stop)
    print(load.line_of(result), flush=True)


def main(arguments: Sequence[str]) -> int:
    """`arguments`: the settings as `command` writes them."""
    settings = settings_of(arguments[0], os.environ)
    least = settings.concurrency + OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < least:
        resource.setrlimit(resource.RLIMIT_NOFILE, (least if hard == resource.RLIM_INFINITY else min(least, hard), hard))
    asyncio.run(_drive(settings))
    return 0
