"""One bounded GET against real sockets: what is had, and what each hostile or slow server gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from poise.history.fetch import FetchError, address, fetch

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[str]:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    listener = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/metrics"
    finally:
        listener.close()


def answering(*parts: bytes) -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            writer.write(part)
        await writer.drain()

    return handler


def get(handler: Handler, *, timeout: float = 5.0, limit: int = 1_000) -> bytes:
    async def run() -> bytes:
        async with server(handler) as url:
            return await fetch(url, timeout=timeout, limit=limit)

    return asyncio.run(run())


def test_body_by_length_by_chunks_and_until_close() -> None:
    assert get(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")) == b"abc"
    assert get(answering(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")) == b"abc"
    assert get(answering(b"HTTP/1.0 200 OK\r\n\r\nab", b"c")) == b"abc"


def test_the_request_names_host_and_asks_for_plain_text() -> None:
    seen: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    get(handler)
    assert seen[0].startswith(b"GET /metrics HTTP/1.1\r\n")
    assert b"\r\nAccept-Encoding: identity\r\n" in seen[0]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "HTTP status 503"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://example.org/\r\nContent-Length: 0\r\n\r\n", "HTTP status 302"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", "content encoding 'gzip'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000, "larger than 0.001 MB"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", "not HTTP"),
        (b"", "not HTTP"),
    ],
)
def test_each_wrong_answer_is_an_error_in_words(answer: bytes, words: str) -> None:
    with pytest.raises(FetchError, match=words):
        get(answering(answer))


def test_a_server_that_never_answers_and_one_that_drips_meet_the_deadline() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def dripping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    for handler in (silent, dripping):
        with pytest.raises(FetchError, match=r"no complete answer within 0\.2 s"):
            get(handler, timeout=0.2, limit=1_000_000)


def test_an_endless_answer_ends_at_the_limit() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()

    with pytest.raises(FetchError, match="larger than 1 MB"):
        get(endless, limit=1_000_000)


def test_a_closed_port_is_told_from_a_wrong_answer() -> None:
    async def run() -> None:
        async with server(answering(b"")) as url:
            pass
        await fetch(url, timeout=5, limit=10)

    with pytest.raises(FetchError, match="connection refused") as caught:
        asyncio.run(run())
    assert caught.value.refused


def test_a_call_can_be_cancelled_while_the_server_hangs() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def run() -> None:
        async with server(silent) as url:
            task = asyncio.create_task(fetch(url, timeout=60, limit=10))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())


def test_urls_are_taken_apart_and_wrong_ones_named() -> None:
    assert address("http://gpu-1:9747").url("/checks") == "http://gpu-1:9747/checks"
    assert address("https://[::1]/x?y=1").authority == "[::1]:443"
    assert address("https://[::1]/x?y=1").path == "/x?y=1"
    for url, words in (
        ("ftp://x", "not an http"),
        ("gpu-1:9747", "not an http"),
        ("http://", "names no host"),
        ("http://a:99999", "Port out of range"),
        ("http://user:secret@a", "credentials"),
        ("http://a..b", "no valid host"),
        ("http://\udcff", "no valid host"),
        (f"http://{'a' * 64}.example", "no valid host"),
        ("http://a/b c", "has to escape"),
        ("http://a/\u00e9", "has to escape"),
        ("http://a/?q=\x1b[31m", "has to escape"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            address(url)
        assert "secret" not in str(caught.value)


def test_a_host_name_in_other_letters_is_an_error_in_words() -> None:
    with pytest.raises(FetchError):
        asyncio.run(fetch("http://b\u00fccher.invalid:9/", timeout=5.0, limit=10))
