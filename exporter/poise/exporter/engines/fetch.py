"""One HTTP GET under one deadline: connect, headers and body together, with a limit on size, no redirects.

http.client alone bounds each read, so a server that drips a byte a second could hold a caller for ever; here every read gets what is left of
the deadline. Redirects are refused, so that no secret goes to another host than the one it is for. Compression is not asked for, since it
would cost the engine's time; a proxy that compresses all the same is understood. This file knows no metric. Times are monotonic seconds.
"""

from __future__ import annotations

import http.client
import io
import ipaddress
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from poise.exporter.access import PLAIN
from poise.exporter.engines.credentials import BROKE_OFF, DISCOVERED, AccessError, Credentials, tls_problem
from poise.exporter.setting_values import is_loopback
from poise.exporter.unpacking import ENCODINGS, UnpackError, unpacked

READ_SIZE = 64 * 1024


class FetchError(Exception):
    """The answer could not be had; the message says why in a few words.

    `refused`: nothing listens there (yet). `status`: that of an HTTP answer that was had and is not wanted. `way_out`: what to do about it,
    for a server that is asked with `Access`.
    """

    def __init__(self, message: str, *, refused: bool = False, status: int | None = None, way_out: str = "") -> None:
        super().__init__(message)
        self.way_out = way_out
        self.refused = refused
        self.status = status


@dataclass(frozen=True, slots=True)
class Answer:
    """A response of status 200. `connect_seconds` is the time of the TCP connect."""

    body: bytearray
    content_type: str
    connect_seconds: float


class Fetcher:
    """Fetches from one base URL, one request at a time; `abort` from another thread ends a request at once.

    `credentials`: how the server lets itself be asked. Without them nothing says who we are, and a certificate has to be good anywhere but on
    loopback: there the server is this node's own, and no authority signs that address. `is_ours`: where the host is a name, only an address of
    which this is true is connected to, for what a name leads to is known only once it is resolved.
    """

    def __init__(
        self,
        base_url: str,
        clock: Callable[[], float],
        credentials: Credentials | None = None,
        is_ours: Callable[[str], bool] | None = None,
    ) -> None:
        parts = urlsplit(base_url)
        self._scheme = parts.scheme
        self._host = parts.hostname or ""
        self._credentials = credentials or Credentials(DISCOVERED if is_loopback(self._host) else PLAIN)
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._authority = parts.netloc
        self._path = parts.path.rstrip("/")
        self._clock = clock
        self._is_ours = is_ours
        self._socket: socket.socket | None = None
        self._aborted = False

    def get(self, path: str, headers: Mapping[str, str], timeout: float, size_limit: int) -> Answer:
        """GET of `path` below the base URL, done within `timeout` seconds.

        Raises:
            FetchError: no connection, no answer in time, not status 200, larger than `size_limit` bytes (unpacked), no HTTP, or `credentials`
                that cannot be used.
        """
        deadline = self._clock() + timeout
        connection: socket.socket | None = None
        try:
            request = self._request(path, {**headers, **self._credentials.headers()})
            context = self._credentials.context() if self._scheme == "https" else None
            before = self._clock()
            connection = socket.create_connection((self._address(), self._port), timeout=timeout)
            connect_seconds = self._clock() - before
            self._socket = connection
            if self._aborted:
                raise FetchError("stopped")
            if context is not None:
                connection.settimeout(self._left(deadline))
                name = self._credentials.access.server_name or self._host
                connection = self._socket = context.wrap_socket(connection, server_hostname=name)
            connection.settimeout(self._left(deadline))
            connection.sendall(request)
            return self._answer(connection, deadline, size_limit, connect_seconds)
        except FetchError:
            raise
        except TimeoutError:
            raise FetchError(f"no answer within {timeout:g} s") from None
        except ConnectionRefusedError:
            raise _refused() from None
        except (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError) as error:
            # With TLS 1.3 a server refuses a client only after the handshake, and what it says may be lost with the connection.
            if self._scheme == "https":
                raise FetchError("TLS failed: the server broke off", way_out=BROKE_OFF) from None
            broken = isinstance(error, http.client.RemoteDisconnected)
            raise FetchError("the answer is no HTTP: RemoteDisconnected" if broken else error.strerror or type(error).__name__) from None
        except ssl.SSLError as error:
            words, way_out = tls_problem(error, self._host)
            raise FetchError(words, way_out=way_out) from None
        except (AccessError, UnpackError) as error:
            raise FetchError(str(error)) from None
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
            socket.create_connection((self._address(), self._port), timeout=timeout).close()
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
                # The plain socket's: that of a TLS socket drops its cipher first, and a secret might be sent in the clear in between.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
            except OSError:
                return  # closed in between, which is what was wanted

    def _address(self) -> str:
        """The host to connect to. Raises FetchError where it is a name of which no address may be asked, OSError where it has none."""
        if self._is_ours is None or is_loopback(self._host) or _is_address(self._host):
            return self._host
        found = [str(address[0]) for *_, address in socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)]
        ours = next((address for address in found if self._is_ours(address)), None)
        if ours is None:
            raise FetchError(f"{self._host} is no address of this node, so nobody is asked there; a URL that was configured would be")
        return ours

    def _left(self, deadline: float) -> float:
        left = deadline - self._clock()
        if left <= 0:
            raise TimeoutError
        return left

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
            encoding = response.getheader("Content-Encoding", "identity").strip().lower()
            if encoding != "identity" and encoding not in ENCODINGS:
                raise FetchError("the answer is compressed in a way that was not asked for", status=response.status)
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
            if encoding != "identity":
                body = unpacked(body, encoding, size_limit, lambda: self._left(deadline))
            return Answer(body, response.getheader("Content-Type", ""), connect_seconds)
        finally:
            response.close()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


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
