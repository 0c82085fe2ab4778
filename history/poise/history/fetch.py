"""One bounded HTTP GET: a deadline for the whole answer and a limit on its size, whatever the other side does.

Owns URL, socket and HTTP/1.1. Knows nothing of what is fetched. Plain asyncio with h11, so that a call can be cancelled at once: a
target that never answers must not hold up the shutdown of the process.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

_CHUNK_BYTES = 65_536
_DEFAULT_PORTS = {"http": 80, "https": 443}


class FetchError(Exception):
    """The page could not be had; the message says why in words, without the URL.

    `refused` tells that nothing listens at the address, so that a server could be started there.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


@dataclass(frozen=True, slots=True)
class Address:
    """Where a URL points."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """`host:port` as the Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def url(self, path: str) -> str:
        """Another path at the same place."""
        return f"{self.scheme}://{self.authority}{path}"


def address(url: str) -> Address:
    """Take an http(s) URL apart. Raises ValueError naming what is wrong with it."""
    parts = urlsplit(url)
    if parts.scheme not in _DEFAULT_PORTS:
        raise ValueError(f"{url!r} is not an http:// or https:// URL")
    if not parts.hostname:
        raise ValueError(f"{url!r} names no host")
    if parts.username or parts.password:
        raise ValueError("credentials in a URL end up in logs: give the URL without them")
    try:
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
    except ValueError as error:
        raise ValueError(f"{url!r}: {error}") from None
    try:
        parts.hostname.encode("idna")
    except UnicodeError:
        raise ValueError(f"{url!r} names no valid host") from None
    path = parts.path or "/"
    if not re.fullmatch(r"[!-~]*", path + parts.query):
        raise ValueError(f"{url!r} has characters in its path that a URL has to escape, such as %20 for a blank")
    return Address(parts.scheme, parts.hostname, port, f"{path}?{parts.query}" if parts.query else path)


async def fetch(url: str, *, timeout: float, limit: int, accept: str = "*/*") -> bytes:
    """The body of a 200 answer. `timeout` in seconds covers everything from connect to the last byte, `limit` is in bytes of body.

    Redirects are not followed. Raises FetchError; ValueError for a URL that is none.
    """
    where = address(url)
    try:
        async with asyncio.timeout(timeout):
            return await _get(where, limit, accept)
    except TimeoutError:
        raise FetchError(f"no complete answer within {timeout:g} s") from None
    except ConnectionRefusedError:
        raise FetchError("connection refused: nothing listens there", refused=True) from None
    except h11.RemoteProtocolError as error:
        raise FetchError(f"the answer is not HTTP ({error})") from None
    except (UnicodeError, h11.LocalProtocolError) as error:
        raise FetchError(f"the URL cannot be asked for ({error})") from None
    except OSError as error:
        raise FetchError(f"cannot connect: {error.strerror or error}") from None


async def _get(where: Address, limit: int, accept: str) -> bytes:
    context = ssl.create_default_context() if where.scheme == "https" else None
    reader, writer = await asyncio.open_connection(where.host, where.port, ssl=context)
    try:
        connection = h11.Connection(h11.CLIENT)
        headers = [
            ("Host", where.authority),
            ("Accept", accept),
            ("Accept-Encoding", "identity"),
            ("User-Agent", "poise"),
            ("Connection", "close"),
        ]
        request = connection.send(h11.Request(method="GET", target=where.path, headers=headers))
        writer.write((request or b"") + (connection.send(h11.EndOfMessage()) or b""))
        await writer.drain()
        return await _body(connection, reader, limit)
    finally:
        # abort, not close: closing waits for a peer that may never read.
        writer.transport.abort()


async def _body(connection: h11.Connection, reader: asyncio.StreamReader, limit: int) -> bytes:
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(_CHUNK_BYTES))
        elif isinstance(event, h11.Response):
            if event.status_code != 200:
                raise FetchError(f"answered with HTTP status {event.status_code}")
            encoding = dict(event.headers).get(b"content-encoding", b"identity")
            if encoding != b"identity":
                raise FetchError(f"answered in content encoding {encoding.decode('latin-1')!r}, which was not asked for")
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > limit:
                raise FetchError(f"the answer is larger than {limit / 1e6:g} MB")
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            return bytes(body)
