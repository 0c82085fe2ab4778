"""A real web server over a node that the test directs: uvicorn in a thread, the page in front, a made-up exporter behind."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from poise.dashboard.app import create_app
from poise.dashboard.live import Live

from tests.node_scenes import FakeExporter, NodeScene

#: Seconds for anything that the server is asked to do; a busy machine takes a few.
PATIENCE = 20.0


@dataclass
class Served:
    """A page under test. `heartbeat` in seconds is short, so that tests of silence need not wait."""

    scene: NodeScene
    root_path: str = ""
    heartbeat: float = 0.4
    port: int = 0
    exporter: FakeExporter = field(init=False)
    live: Live = field(init=False)

    def __post_init__(self) -> None:
        self.exporter = FakeExporter(self.scene)
        self.live = Live("http://127.0.0.1:9", fetch=self.exporter, wall_clock=self.exporter.clock, clock=self.exporter.clock)
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://127.0.0.1:{self.port}{self.root_path}/"

    @property
    def streams(self) -> float:
        """Open event streams."""
        return self.live.metrics.registry.get_sample_value("poise_dashboard_event_streams") or 0.0

    def start(self) -> Served:
        """Serve; the node has been watched for two minutes."""
        listener = socket.create_server(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        app = create_app(self.live, root_path=self.root_path, heartbeat=self.heartbeat)
        self._server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=1))
        self._listener = listener
        self._thread.start()
        assert self._ready.wait(PATIENCE), "the server did not start"
        self.pass_seconds(120)
        return self

    def stop(self) -> None:
        """End the server and its thread."""
        self._call(self.live.close())
        self._server.should_exit = True
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the server did not end"
        self._listener.close()

    def pass_seconds(self, seconds: float) -> None:
        """Let time pass on the node, with a scrape every five seconds; tabs are told of each."""

        async def scrape() -> None:
            for _ in range(int(seconds / 5)):
                self.exporter.now += 5
                await self.live.scrape_once()

        self._call(scrape())

    def show(self, scene: NodeScene) -> None:
        """The node becomes this one with the next scrape."""
        self.exporter.scene = scene
        self.pass_seconds(5)

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(self._ready.set)
        self._loop.run_until_complete(self._server.serve(sockets=[self._listener]))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
