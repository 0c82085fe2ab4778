"""One HTTP GET under one deadline: connect, headers and body together, with a limit on size, no redirects, no compression.

http.client alone bounds each read, so a server that drips a byte a second could hold a caller for ever; here every read gets what is left of
the deadline. This file knows no metric. Times are monotonic seconds.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from poise.exporter.setting_values import is_loopback

READ_SIZE = 64 * 1024


class FetchError(Exception):
    """The answer could not be had; the message says why in a few words.

    `refused`: nothing listens there (yet). `status`: that of an HTTP answer that was had and is not wanted.
    """

    def __init__(self, message: str, *, refused: bool = False, status: int | None = None) -> None:
        super().__init__(message)
        self.refused = refused
        self.status = status


@dataclass(frozen=True, slots=True)
class Answer:
    """A response of status 200. `connect_seconds` is the time of the TCP connect."""

    body: bytearray
    content_type: str
    connect_seconds: float


class Fetcher:
    """Fetches from one base URL, one request at a time; `abort` from another thread ends a request at once."""

    def __init__(self, base_url: str, clock: Callable[[], float]) -> None:
        parts = urlsplit(base_url)
        self._scheme = parts.scheme
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._authority = parts.netloc
        self._path = parts.path.rstrip("/")
        self._clock = clock
        self._socket: socket.socket | None = None
        self._aborted = False

    def get(self, path: str, headers: Mapping[str, str], timeout: float, size_limit: int) -> Answer:
        """GET of `path` below the base URL, done within `timeout` seconds.

        Raises:
            FetchError: no connection, no answer in time, not status 200, larger than `size_limit` bytes, compressed, or no HTTP.
        """
        deadline = self._clock() + timeout
        connection: socket.socket | None = None
        try:
            before = self._clock()
            connection = socket.create_connection((self._host, self._port), timeout=timeout)
            connect_seconds = self._clock() - before
            self._socket = connection
            if self._aborted:
                raise FetchError("stopped")
            if self._scheme == "https":
                connection.settimeout(self._left(deadline))
                connection = self._socket = self._secured(connection)
            connection.settimeout(self._left(deadline))
            connection.sendall(self._request(path, headers))
            return self._answer(connection, deadline, size_limit, connect_seconds)
        except FetchError:
            raise
        except TimeoutError:
            raise FetchError(f"no answer within {timeout:g} s") from None
        except ConnectionRefusedError:
            raise _refused() from None
        except ssl.SSLError as error:
            raise FetchError(f"TLS failed: {error.reason or error}") from None
        except http.client.HTTPException as error:
            raise FetchError(f"the answer is no HTTP: {type(error).__name__}") from None
        except (OSError, UnicodeError, ValueError) as error:
            raise FetchError(f"{getattr(error, 'strerror', None) or type(error).__name__}") from None
        finally:
            self._socket = None
            if connection is not None:
                connection.close()

    def connect(self, timeout: float) -> float:
        """Connects and closes again: seconds of the TCP connect, done within `timeout` seconds.

        Raises:
            FetchError: no connection.
        """
        if self._aborted:
            raise FetchError("stopped")
        before = self._clock()
        try:
            socket.create_connection((self._host, self._port), timeout=timeout).close()
        except TimeoutError:
            raise FetchError(f"no connection within {timeout:g} s") from None
        except ConnectionRefusedError:
            raise _refused() from None
        except (OSError, UnicodeError) as error:
            raise FetchError(f"{getattr(error, 'strerror', None) or type(error).__name__}") from None
        return self._clock() - before

    def abort(self) -> None:
        """Ends a request in flight and refuses later ones."""
        self._aborted = True
        connection = self._socket
        if connection is not None:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # closed in between, which is what was wanted

    def _left(self, deadline: float) -> float:
        left = deadline - self._clock()
        if left <= 0:
            raise TimeoutError
        return left

    def _secured(self, connection: socket.socket) -> socket.socket:
        context = ssl.create_default_context()
        if is_loopback(self._host):
            # Found through its process: who it is stands firm, and no certificate names a loopback address.
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context.wrap_socket(connection, server_hostname=self._host)

    def _request(self, path: str, headers: Mapping[str, str]) -> bytes:
        lines = [f"GET {self._path}{path} HTTP/1.1", f"Host: {self._authority}", "Connection: close", "Accept-Encoding: identity"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def _answer(self, connection: socket.socket, deadline: float, size_limit: int, connect_seconds: float) -> Answer:
        stream: Any = _DeadlineSocket(connection, lambda: self._left(deadline))
        response = http.client.HTTPResponse(stream, method="GET")
        try:
            response.begin()
            if 300 <= response.status < 400:
                raise FetchError(f"HTTP {response.status}: redirects elsewhere, which is not followed", status=response.status)
            if response.status != 200:
                raise FetchError(f"HTTP {response.status}", status=response.status)
            if response.getheader("Content-Encoding", "identity").strip().lower() != "identity":
                raise FetchError("the answer is compressed, which was not asked for", status=response.status)
            announced = response.length
            if announced is not None and announced > size_limit:
                raise FetchError(f"the answer has {announced} bytes, more than {size_limit}", status=response.status)
            body = bytearray()
            while part := response.read1(READ_SIZE):
                self._left(deadline)
                body += part
                if len(body) > size_limit:
                    raise FetchError(f"the answer has more than {size_limit} bytes", status=response.status)
            if announced is not None and len(body) != announced:
                raise FetchError("the answer is cut off")
            return Answer(body, response.getheader("Content-Type", ""), connect_seconds)
        finally:
            response.close()


def _refused() -> FetchError:
    return FetchError("connection refused: nothing listens there", refused=True)


class _DeadlineSocket:
    """What HTTPResponse needs of a socket: a file whose every read may take no longer than what is left."""

    def __init__(self, connection: socket.socket, left: Callable[[], float]) -> None:
        self._connection = connection
        self._left = left

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_DeadlineReader(self._connection, self._left), READ_SIZE)


class _DeadlineReader(io.RawIOBase):
    def __init__(self, connection: socket.socket, left: Callable[[], float]) -> None:
        super().__init__()
        self._connection = connection
        self._left = left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(self._left())
        return self._connection.recv_into(buffer)
