"""Threads that are all there from the start: a process that gets no more of them later goes on with those that it has."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor


def started(count: int, name: str) -> ThreadPoolExecutor:
    """A pool of so many running threads. Raises RuntimeError when the system gives fewer."""
    pool = ThreadPoolExecutor(count, thread_name_prefix=name)
    together = threading.Barrier(count + 1)
    try:
        for _ in range(count):
            pool.submit(together.wait)  # one that waits takes no further work, so that each is given to a thread of its own
        together.wait()
    except RuntimeError:
        together.abort()
        pool.shutdown(wait=False)
        raise
    return pool
