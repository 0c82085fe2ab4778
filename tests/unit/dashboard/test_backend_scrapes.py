"""History and alerts of one process, put together: what the page scrapes and further targets reach the API; targets are read anew."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
from fastapi import FastAPI
from poise.alerts.settings import AlertSettings
from poise.dashboard.backend import Backend
from poise.history.promql.engine import InstantVector, Matrix
from poise.history.scrape import Scrape
from poise.history.settings import HistorySettings
from poise.history.store.store import Store
from poise.history.targets import Target, parse_target, targets
from poise.history.text_format import Metadata, series
from starlette.testclient import TestClient

LOCAL = parse_target("here=http://10.0.0.1:9747")
PATIENCE = 20.0


async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\na 1\n")
    await writer.drain()
    writer.close()


def run(path: Path, scenario: Callable[[Backend], Awaitable[None]], *found: Target) -> None:
    async def main() -> None:
        backend = Backend(HistorySettings(targets=found), AlertSettings(mode="off"), local=LOCAL, path=path, page="http://here:9748")
        running = asyncio.create_task(backend.run())
        await asyncio.sleep(0)
        try:
            await scenario(backend)
        finally:
            running.cancel()
            await asyncio.wait([running])

    asyncio.run(main())


async def until(backend: Backend, query: str, wanted: set[str]) -> None:
    """Until the instances of a query's result are these."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = (await backend.querier.instant(query, time.time())).data
            assert isinstance(found, InstantVector)
            if {dict(sample.labels).get("instance", "") for sample in found.samples} == wanted:
                return
            await asyncio.sleep(0.02)  # until scrapes have come


def test_what_the_page_scrapes_is_kept_with_its_metadata_and_shown_as_a_target(tmp_path: Path) -> None:
    scrape = Scrape(time.time(), 0.1, {series("a", {"gpu": "0"}): 1.0}, metadata={"a": Metadata("gauge", "What a is.")})

    async def scenario(backend: Backend) -> None:
        backend.take(scrape)
        await until(backend, 'a{job="poise"}', {"here"})
        assert (await backend.querier.metadata()).data == {"a": (Metadata("gauge", "What a is."),)}
        app = FastAPI()
        for router in backend.routers():
            app.include_router(router)
        (target,) = TestClient(app).get("/api/v1/targets").json()["data"]["activeTargets"]
        assert (target["labels"], target["health"]) == ({"instance": "here", "job": "poise"}, "up")

    run(tmp_path / "h.db", scenario)
    kept = Store(tmp_path / "h.db")
    assert "a" in kept.names()
    kept.close()


def test_scrapes_that_come_nearly_evenly_are_kept_evenly(tmp_path: Path) -> None:
    start = time.time() - 100

    async def scenario(backend: Backend) -> None:
        for number, late in enumerate((0.0, 0.004, 0.009, 0.002, 1.5, 1.503)):
            backend.take(Scrape(start + 5 * number + late, 0.1, {series("a", {}): 1.0}))
            await asyncio.wrap_future(backend._pending)  # type: ignore[arg-type]  # just taken
        found = (await backend.querier.instant("a[5m]", time.time())).data
        assert isinstance(found, Matrix)
        assert np.diff(found.series[0].times).tolist() == pytest.approx([5000, 5000, 5000, 6500, 5000], abs=1)

    run(tmp_path / "h.db", scenario)


def test_targets_are_read_anew(tmp_path: Path) -> None:
    async def scenario(backend: Backend) -> None:
        server = await asyncio.start_server(answering, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]

        def named(*names: str) -> tuple[Target, ...]:
            return targets([{"name": name, "url": f"http://127.0.0.1:{port}", "interval": "100ms"} for name in names])

        assert await backend.reload(HistorySettings(targets=named("n1", "n2")), AlertSettings(mode="off")) == ()
        await until(backend, "a", {"n1", "n2"})
        await backend.reload(HistorySettings(targets=named("n2")), AlertSettings(mode="off"))
        await until(backend, "a", {"n2"})
        assert [status.target.name for status in backend.status()] == ["here", "n2"]
        server.close()

    run(tmp_path / "h.db", scenario)


def test_a_history_that_cannot_be_used_is_said_and_kept_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")

    async def scenario(backend: Backend) -> None:
        backend.take(Scrape(time.time(), 0.1, {series("a", {}): 1.0}))
        await until(backend, "a", {"here"})

    run(tmp_path / "file" / "h.db", scenario)
    assert "the history of this process is kept in memory only" in caplog.text
