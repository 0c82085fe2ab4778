"""The page's HTTP connections on real sockets: half requests end, many silent clients keep nobody out, event streams stay."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator

import h11
import pytest
import uvicorn
from poise.dashboard import connections
from poise.dashboard.connections import BoundedConnection
from starlette.types import Receive, Scope, Send

PATIENCE = 30.0
#: The clients' ends, closed with the server.
_WRITERS: list[asyncio.StreamWriter] = []


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers "/"; under "/events" it sends a line and never ends."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/events":
        await send({"type": "http.response.body", "body": b"data: first\n\n", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            continue
    await send({"type": "http.response.body", "body": b"page"})


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[int]:
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        config = uvicorn.Config(
            application, http=BoundedConnection, loop="asyncio", lifespan="off", log_config=None, timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext  # type: ignore[assignment,method-assign]  # signals are pytest's here
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield int(listener.getsockname()[1])
        finally:
            for writer in _WRITERS:
                writer.transport.abort()
            _WRITERS.clear()
            server.should_exit = True
            await task


async def opened(port: int, data: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    _WRITERS.append(writer)
    writer.write(data)
    await writer.drain()
    return reader, writer


async def ended(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(1024):
            continue


async def page(port: int) -> bytes:
    reader, _ = await opened(port, b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    return await reader.read()


def test_half_a_request_ends_and_so_does_one_that_trickles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.3)

    async def run() -> None:
        async with asyncio.timeout(PATIENCE), serving() as port:
            silent, _ = await opened(port)
            half, _ = await opened(port, b"GET / HTTP/1.1\r\nHost: loc")
            body, _ = await opened(port, b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc")
            second, _ = await opened(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HT")
            trickle, drops = await opened(port, b"GET / HTTP/1.1\r\n")

            async def drip() -> None:
                with contextlib.suppress(ConnectionError):
                    while True:
                        drops.write(b"a")
                        await drops.drain()
                        await asyncio.sleep(0.05)

            dripping = asyncio.create_task(drip())
            for reader in (silent, half, body, second, trickle):
                await ended(reader)
            dripping.cancel()

    asyncio.run(run())


def test_many_silent_clients_keep_neither_a_page_nor_an_event_stream_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedConnection, "most", 8)

    async def run() -> None:
        async with asyncio.timeout(PATIENCE), serving() as port:
            stream, _ = await opened(port, b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await stream.readuntil(b"data: first")
            held = [await opened(port, b"GET / HTTP/1.1\r\n") for _ in range(40)]
            assert b"page" in await page(port)
            await asyncio.gather(*(ended(reader) for reader, _ in held[:30]))
            rest = asyncio.create_task(stream.read(1))
            await asyncio.sleep(0)
            assert not rest.done() or rest.result(), "the stream stays open"
            rest.cancel()

    asyncio.run(run())


def test_when_all_are_answered_the_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedConnection, "most", 3)

    async def run() -> None:
        async with asyncio.timeout(PATIENCE), serving() as port:
            streams = []
            for _ in range(3):
                reader, _ = await opened(port, b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
                await reader.readuntil(b"data: first")
                streams.append(reader)
            assert b"page" in await page(port)
            await ended(streams[0])

    asyncio.run(run())


def test_what_clients_do_wrong_is_kept_out_of_the_log_and_what_we_do_is_not(caplog: pytest.LogCaptureFixture) -> None:
    def record(message: str, error: Exception | None = None) -> logging.LogRecord:
        return logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, message, (), (type(error), error, None) if error else None)

    assert not connections.of_the_clients(record("Invalid HTTP request received."))
    assert not connections.of_the_clients(record("Exception in ASGI application\n", h11.LocalProtocolError("state=MUST_CLOSE")))
    assert connections.of_the_clients(record("Exception in ASGI application\n", ZeroDivisionError()))


def test_that_nothing_can_be_accepted_is_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    loop = asyncio.new_event_loop()
    handler = connections.Exhaustion(lambda: now)
    accept = {"message": "socket.accept() out of system resource", "exception": OSError(24, "Too many open files")}
    for _ in range(1000):
        handler(loop, accept)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "Too many open files" in caplog.text
    now = connections.EXHAUSTION_EVERY
    handler(loop, accept)
    handler(loop, {"message": "another fault"})
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "ERROR"]
    loop.close()


@pytest.mark.parametrize(
    ("descriptors", "targets", "wanted"),
    [
        (1024, 3, (256, 64)),
        (-1, 3, (256, 64)),
        (256, 10, (172, 42)),
        (64, 1, (25, 6)),
        (40, 30, (8, 4)),
    ],
)
def test_clients_get_the_descriptors_that_scrapes_do_not_need(descriptors: int, targets: int, wanted: tuple[int, int]) -> None:
    assert connections.bounds(descriptors, targets) == wanted
    assert BoundedConnection.at_most(7).most == 7
    assert BoundedConnection.most == connections.MOST_CONNECTIONS
