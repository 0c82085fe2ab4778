"""The warm-up before a measured run: requests of the same size from our own client, counted nowhere.

Its prompts are words, so that none of them is a beginning of a measured one. Knows nothing of profiles and deployments.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from poise.testbed import load
from poise.testbed.errors import TestbedError

NEWS_SECONDS = 1.0
# A client ends at once when it is told to; its connection may be in the middle of something.
STOP_SECONDS = 30.0


def warm_up(settings: load.LoadSettings, news: Callable[[int], None]) -> load.LoadResult:
    """Sends the requests; `news` hears about once a second how many are done.

    The clients run in a thread of their own, so that Ctrl-C is raised here and not somewhere in an event loop. Raises TestbedError when
    every request failed.
    """
    result, stop, loop = load.LoadResult(), asyncio.Event(), asyncio.new_event_loop()
    ended = threading.Event()
    failures: list[BaseException] = []

    def drive() -> None:
        try:
            loop.run_until_complete(load.run_load(settings, result, time.monotonic, stop))
        except BaseException as error:  # handed over: a thread's exception is nobody's
            failures.append(error)
        finally:
            ended.set()

    thread = threading.Thread(target=drive, name="warm-up", daemon=True)
    thread.start()
    try:
        while not ended.wait(NEWS_SECONDS):
            news(result.finished)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(STOP_SECONDS)
        if not thread.is_alive():
            loop.close()
    if failures:
        raise failures[0]
    if not result.finished:
        reason = next(iter(result.errors), "no reason given")
        raise TestbedError(f"all {result.failed} requests of the warm-up to {settings.url} failed: {reason}")
    return result
