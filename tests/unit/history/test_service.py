"""The history of a process as a whole: from a page on a socket to an answer, and SIGHUP."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from poise.history.promql.engine import InstantVector
from poise.history.service import HistoryService
from poise.history.settings import HistorySettings, load
from poise.history.store.store import Store
from prometheus_client import CollectorRegistry, generate_latest

PATIENCE = 20.0


async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\na 1\n")
    await writer.drain()
    writer.close()


async def instances(service: HistoryService) -> set[str]:
    found = (await service.querier.instant("up == 1", time.time())).data
    assert isinstance(found, InstantVector)
    return {dict(sample.labels)["instance"] for sample in found.samples}


async def until(service: HistoryService, wanted: set[str]) -> None:
    async with asyncio.timeout(PATIENCE):
        while await instances(service) != wanted:
            await asyncio.sleep(0.02)  # until scrapes have come


def test_sighup_adds_and_removes_targets_and_a_mistake_leaves_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    file = tmp_path / "poise.toml"

    async def run() -> None:
        server = await asyncio.start_server(answering, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]

        def write(*names: str) -> None:
            targets = "".join(f'[[target]]\nname = "{name}"\nurl = "http://127.0.0.1:{port}"\ninterval = "100ms"\n' for name in names)
            file.write_text(f'[history]\npath = "h.db"\n{targets}')

        def read() -> HistorySettings:
            return load(argparse.Namespace(config=str(file)), {})

        write("n1")
        service = HistoryService.open(read(), {}, wall_clock=time.time, clock=time.monotonic)
        running = asyncio.create_task(service.run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, service.reload, read)
        try:
            await until(service, {"n1"})
            write("n1", "n2")
            os.kill(os.getpid(), signal.SIGHUP)
            await until(service, {"n1", "n2"})
            file.write_text("[[target]]\nname = 3\n")
            os.kill(os.getpid(), signal.SIGHUP)
            async with asyncio.timeout(PATIENCE):
                while "the targets stay as they were" not in caplog.text:
                    await asyncio.sleep(0.02)
            assert await instances(service) == {"n1", "n2"}
            write("n2")
            os.kill(os.getpid(), signal.SIGHUP)
            await until(service, {"n2"})
            registry = CollectorRegistry()
            registry.register(service.collector)
            assert 'poise_history_scrapes_total{instance="n2",job="poise",result="success"}' in generate_latest(registry).decode()
        finally:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
            running.cancel()
            await asyncio.wait([running])
            server.close()

    asyncio.run(run())
    again = Store(tmp_path / "h.db")  # the file was given free, and what was scraped is on it
    assert "up" in again.names()
    again.close()


def test_a_moved_history_waits_for_the_next_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        service = HistoryService.open(HistorySettings(str(tmp_path / "a.db")), {}, wall_clock=time.time, clock=time.monotonic)
        service.reload(lambda: HistorySettings(str(tmp_path / "b.db")))
        running = asyncio.create_task(service.run())
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(run())
    assert "changes with the next start" in caplog.text
