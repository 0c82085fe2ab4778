"""What the tests that watch a real deployment share: endless load in the background, the exporter's checklist, and its page."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from poise.testbed import load
from poise.testbed.deployment import Deployment
from poise.testbed.load import LoadResult, LoadSettings

from tests.vllm.deploying import read, samples

#: Enough clients that a worker is never out of work: its card is saturated.
SATURATING_CLIENTS = 12
LONG_ANSWER = 96
#: For a machine that is out of breath; what these tests wait for takes seconds.
PATIENCE = 120.0


@contextlib.contextmanager
def loaded(deployment: Deployment, clients: int = SATURATING_CLIENTS, engine: str = "", key: str = "") -> Iterator[LoadResult]:
    """Requests without end on one engine, else on where clients go, until the block is left; a server that is down is asked again."""
    url = deployment.engine(engine).url if engine else deployment.plan.url
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    settings = LoadSettings(url, deployment.plan.served_name, concurrency=clients, max_tokens=LONG_ANSWER, headers=headers)
    result, loop, stop = LoadResult(), asyncio.new_event_loop(), asyncio.Event()

    def drive() -> None:
        loop.run_until_complete(load.run_load(settings, result, time.monotonic, stop))
        loop.close()

    thread = threading.Thread(target=drive, name="load")
    thread.start()
    try:
        yield result
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
        assert not thread.is_alive(), "the load did not stop"


def drive(deployment: Deployment, requests: int) -> LoadResult:
    """So many requests where clients go, and what came of them."""
    settings = LoadSettings(deployment.plan.url, deployment.plan.served_name, requests=requests, max_tokens=48)
    return asyncio.run(load.run_load(settings, LoadResult(), time.monotonic, asyncio.Event()))


def checklist(deployment: Deployment) -> Mapping[str, Any]:
    """What the exporter says of the node now."""
    page: Mapping[str, Any] = json.loads(read(f"{deployment.plan.exporter_url}/checks"))
    return page


def exporter_page(deployment: Deployment) -> str:
    """The exporter's /metrics."""
    return read(f"{deployment.plan.exporter_url}/metrics")


def when(deployment: Deployment, holds: Callable[[Mapping[str, Any]], Any], what: str, patience: float = PATIENCE) -> tuple[Any, float]:
    """What `holds` finds in the checklist, and after how many seconds from now; fails with the whole verdict when it finds nothing."""
    began = time.monotonic()
    while True:
        page = checklist(deployment)
        if found := holds(page):
            return found, time.monotonic() - began
        assert time.monotonic() - began < patience, f"after {patience:.0f} s still not: {what}; verdict: {page['verdict']}"
        time.sleep(0.25)  # another process's state, which offers no event


def ours(deployment: Deployment, page: str, name: str) -> list[tuple[Mapping[str, str], float]]:
    """The samples of our own engines and router: the exporter sees every other one of the machine too."""
    ports = tuple(f":{engine.port}" for engine in deployment.plan.engines)
    router = "" if deployment.plan.router is None else f":{deployment.plan.router.port}"
    return [
        (labels, value)
        for labels, value in samples(page, name)
        if labels.get("router", router).endswith(router) and labels.get("engine", ports[0]).endswith(ports)
    ]
