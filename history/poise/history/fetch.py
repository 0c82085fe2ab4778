"""One bounded HTTP exchange: a deadline for the whole answer and a limit on its size, whatever the other side does.

Owns URL, socket, TLS and HTTP/1.1. Knows nothing of what is fetched. Plain asyncio with h11, so that a call can be cancelled at once: a
target that never answers must not hold up the shutdown of the process. Redirects are not followed, so that no secret goes to another host
than the one it is for.
"""

from __future__ import annotations

import asyncio
import errno
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import h11
from poise.exporter.access import PLAIN
from poise.exporter.engines.credentials import BROKE_OFF, AccessError, Credentials, tls_problem
from poise.exporter.unpacking import ENCODINGS, UnpackError, unpacked
from poise.history.own_limits import numbers, own_limit

_CHUNK_BYTES = 65_536
_DEFAULT_PORTS = {"http": 80, "https": 443}


class FetchError(Exception):
    """The page could not be had; the message says why in words, without the URL.

    `refused` tells that nothing listens at the address, so that a server could be started there.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class Exhausted(FetchError):
    """This process lacked something to ask with: nothing is known of the other side."""


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


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent besides the headers that every request has. `compressed`: whether the answer may come compressed."""

    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    compressed: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of any status; the body is unpacked."""

    status: int
    body: bytes


async def fetch(url: str, *, timeout: float, limit: int, accept: str = "*/*") -> bytes:
    """The body of a 200 answer. `timeout` in seconds covers everything from connect to the last byte, `limit` is in bytes of body.

    Redirects are not followed. Raises FetchError; ValueError for a URL that is none.
    """
    return await Fetcher().body(url, Request(headers={"Accept": accept}), timeout=timeout, limit=limit)


class Fetcher:
    """Fetches with the credentials of one server; without any as `fetch` does.

    `compressed`: whether a call asks for a compressed answer, of which the limit counts the bytes once it is unpacked.
    """

    def __init__(self, credentials: Credentials | None = None, *, compressed: bool = False) -> None:
        self._credentials = credentials or Credentials(PLAIN)
        self._compressed = compressed

    async def __call__(self, url: str, *, timeout: float, limit: int, accept: str = "*/*") -> bytes:
        """As `fetch`."""
        return await self.body(url, Request(headers={"Accept": accept}, compressed=self._compressed), timeout=timeout, limit=limit)

    async def body(self, url: str, request: Request, *, timeout: float, limit: int) -> bytes:
        """The body of a 200 answer. Raises FetchError; ValueError for a URL that is none."""
        answer = await self.exchange(url, request, timeout=timeout, limit=limit, only_success=True)
        return answer.body

    async def exchange(self, url: str, request: Request, *, timeout: float, limit: int, only_success: bool = False) -> Answer:
        """One request and its answer, whatever its status; with `only_success` any but 200 raises before its body is read.

        Raises:
            FetchError: no connection, no whole answer in time, larger than the limit, no HTTP, or credentials that cannot be used; `Exhausted`
                when this process lacked descriptors, threads or memory.
            ValueError: the URL is none.
        """
        where = address(url)
        try:
            return await self._in_words(where, request, timeout, limit, only_success)
        except Exception as error:
            lacking = own_limit(error)
            if not lacking:
                raise
            raise Exhausted(lacking) from None

    async def _in_words(self, where: Address, request: Request, timeout: float, limit: int, only_success: bool) -> Answer:
        try:
            async with asyncio.timeout(timeout):
                return await self._exchange(where, request, limit, only_success)
        except TimeoutError:
            raise FetchError(f"no complete answer within {timeout:g} s") from None
        except ConnectionRefusedError:
            raise FetchError("connection refused: nothing listens there", refused=True) from None
        except h11.RemoteProtocolError as error:
            raise FetchError(f"the answer is not HTTP ({error})") from None
        except (AccessError, UnpackError) as error:
            raise FetchError(str(error)) from None
        except (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError) as error:
            # With TLS 1.3 a server refuses a client only after the handshake, and what it says may be lost with the connection.
            told = (
                f"TLS failed: the server broke off; {BROKE_OFF}"
                if where.scheme == "https"
                else f"cannot connect: {error.strerror or error}"
            )
            raise FetchError(told) from None
        except ssl.SSLError as error:
            words, way_out = tls_problem(error, where.host)
            raise FetchError(f"{words}; {way_out}" if way_out else words) from None
        except (UnicodeError, h11.LocalProtocolError) as error:
            raise FetchError(f"the URL cannot be asked for ({error})") from None
        except OSError as error:
            # All addresses of a name were tried.
            refused = set(numbers(error)) == {errno.ECONNREFUSED}
            words = "connection refused: nothing listens there" if refused else f"cannot connect: {error.strerror or error}"
            raise FetchError(words, refused=refused) from None

    async def _exchange(self, where: Address, request: Request, limit: int, only_success: bool) -> Answer:
        secrets = self._credentials.headers()
        context = self._credentials.context() if where.scheme == "https" else None
        name = (self._credentials.access.server_name or where.host) if context is not None else None
        reader, writer = await asyncio.open_connection(where.host, where.port, ssl=context, server_hostname=name)
        try:
            connection = h11.Connection(h11.CLIENT)
            headers = [
                ("Host", where.authority),
                ("Accept-Encoding", "gzip" if request.compressed else "identity"),
                ("User-Agent", "poise"),
                ("Connection", "close"),
                *request.headers.items(),
                *secrets.items(),
            ]
            if request.body:
                headers.append(("Content-Length", str(len(request.body))))
            out = connection.send(h11.Request(method=request.method, target=where.path, headers=headers)) or b""
            if request.body:
                out += connection.send(h11.Data(data=request.body)) or b""
            writer.write(out + (connection.send(h11.EndOfMessage()) or b""))
            await writer.drain()
            first = await reader.read(_CHUNK_BYTES)
            if not first and context is not None:
                raise ssl.SSLEOFError
            connection.receive_data(first)
            return await _answer(connection, reader, limit, request.compressed, only_success)
        finally:
            # abort, not close: closing waits for a peer that may never read.
            writer.transport.abort()


async def _answer(connection: h11.Connection, reader: asyncio.StreamReader, limit: int, compressed: bool, only_success: bool) -> Answer:
    body, status, encoding = bytearray(), 0, "identity"
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(_CHUNK_BYTES))
        elif isinstance(event, h11.Response):
            status = event.status_code
            if only_success and status != 200:
                redirected = ": redirects elsewhere, which is not followed" if 300 <= status < 400 else ""
                raise FetchError(f"answered with HTTP status {status}{redirected}")
            encoding = dict(event.headers).get(b"content-encoding", b"identity").decode("latin-1").strip().lower()
            if encoding != "identity" and not (compressed and encoding in ENCODINGS):
                raise FetchError(f"answered in content encoding {encoding!r}, which was not asked for")
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > limit:
                raise FetchError(f"the answer is larger than {limit / 1e6:g} MB")
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            return Answer(status, bytes(body if encoding == "identity" else unpacked(body, encoding, limit)))
