"""The exporter's HTTP server, small on purpose: one request per connection, a bounded number of connections, each with a deadline.

The deadline is for the whole of a connection, so that slow or hostile clients cost nothing but their own. What is answered is pages.py's.
"""

from __future__ import annotations

import errno
import gzip
import ipaddress
import logging
import re
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from poise.exporter.pages import Pages, Response, plain

logger = logging.getLogger(__name__)

#: Connections that are served at the same time; Prometheus needs one, a person with a browser a handful.
MOST_CONNECTIONS = 32
#: From accept to the last byte of the answer.
CONNECTION_SECONDS = 10.0
#: How often connections past their deadline are looked for, and how soon the server sees that it is to stop.
POLL_SECONDS = 0.25
#: The fastest level: a page of 400 KB shrinks to 8 % with it, and to 6 % with the slowest.
_GZIP_LEVEL = 1
#: The pause when the process or the node has no descriptor or memory for another connection.
EXHAUSTED_SECONDS = 0.1
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def _accepts_gzip(header: str) -> bool:
    for item in header.split(","):
        coding, *parameters = (part.strip().lower() for part in item.split(";"))
        if coding in ("gzip", "*"):
            return not any(re.fullmatch(r"q=0(\.0*)?", parameter) for parameter in parameters)
    return False


def host_allowed(header: str | None, own: frozenset[str]) -> bool:
    """Whether a Host header names one of `own` hosts or an address of this machine's loopback. No header (HTTP/1.0) is no browser: allowed."""
    if header is None:
        return True
    match = re.fullmatch(r"\s*(?:\[([^\]]*)\]|([^:\[\]]*))(?::\d*)?\s*", header)
    if match is None:
        return False
    host = (match[1] or match[2] or "").lower().rstrip(".")
    if host in own or host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Connection:
    """Bookkeeping of one open connection."""

    __slots__ = ("deadline", "reading")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.reading = True


class _Handler(BaseHTTPRequestHandler):
    """One request, then the connection is closed."""

    server: HttpServer
    server_version = "poise"
    sys_version = ""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:
            # The client went away or its time is over; there is nobody to tell.
            self.close_connection = True

    def _any(self) -> None:
        self.server.request_read(self.connection)
        response = self._response()
        body = response.body
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Vary", "Accept, Accept-Encoding")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        for name, value in response.headers:
            self.send_header(name, value)
        if _accepts_gzip(self.headers.get("Accept-Encoding", "")):
            body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _response(self) -> Response:
        if not self.server.host_allowed(self.connection, self.headers.get("Host")):
            return plain(HTTPStatus.MISDIRECTED_REQUEST, "this Host is not ours; use the address that the exporter listens on")
        try:
            # Header values may hold anything; what is no Latin-1 text is as good as absent.
            return self.server.pages.answer(self.command, self.path.partition("?")[0].partition("#")[0], self.headers.get("Accept", ""))
        except Exception:
            logger.exception("request for %r failed", self.path[:200])
            return plain(HTTPStatus.INTERNAL_SERVER_ERROR, "failed; see the log of the exporter")

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _any

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("%s %s", self.address_string(), format % args)


class ListenError(Exception):
    """The address cannot be had; the message says which and why."""


class HttpServer(ThreadingHTTPServer):
    """Serves `pages` on one address, with a bounded number of connections, each with a deadline."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(
        self,
        host: str,
        port: int,
        pages: Pages,
        *,
        most_connections: int = MOST_CONNECTIONS,
        connection_seconds: float = CONNECTION_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Binds. `host` is empty for all addresses of both families; port 0 takes a free one.

        Raises:
            ListenError: the address is taken, not this machine's, or not allowed.
        """
        self.pages = pages
        self._host = host
        self._most_connections = most_connections
        self._connection_seconds = connection_seconds
        self._monotonic = monotonic
        self._connections: dict[socket.socket, _Connection] = {}
        self._connections_lock = threading.Lock()
        self._dual_stack = host == "" and socket.has_dualstack_ipv6()
        shown = f"{host}:{port}"
        try:
            self.address_family, address = self._resolve(host, port)
            super().__init__(address, _Handler)
        except (OSError, UnicodeError, OverflowError) as error:
            words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise ListenError(f"--listen={shown}: {words.lower()}; choose another address with --listen HOST:PORT") from None

    def _resolve(self, host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
        if self._dual_stack:
            return socket.AF_INET6, ("::", port)
        if not host:
            return socket.AF_INET, ("0.0.0.0", port)  # noqa: S104 - asked for by an empty host: all addresses
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # `localhost` may be both: IPv4 is what clients try that know only one.
        found.sort(key=lambda item: item[0] != socket.AF_INET)
        return found[0][0], (str(found[0][4][0]), port)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if self._dual_stack else 1)
        # HTTPServer.server_bind asks DNS for this machine's full name, which can take many seconds; TCPServer's does not.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def host_allowed(self, connection: socket.socket, header: str | None) -> bool:
        """On a listener that is bound to loopback only our own names are answered, so that no page of a foreign name reads us."""
        listening = ipaddress.ip_address(str(self.server_address[0]).partition("%")[0])
        if not listening.is_loopback:
            return True
        return host_allowed(header, frozenset({self._host.lower(), str(listening)}))

    # ------------------------------------------------------------------------------------------------------------ connections
    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return self.socket.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                # The client stays in the queue, so that the listener is ready again at once: without a pause that is a loop at full speed.
                time.sleep(EXHAUSTED_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        now = self._monotonic()
        with self._connections_lock:
            full = len(self._connections) >= self._most_connections
            if full:
                # The one that has been sending its request for longest makes room; whoever is being answered stays.
                victim = next((other for other, state in self._connections.items() if state.reading), None)
                if victim is not None:
                    self._cut(victim)
                    del self._connections[victim]
                    full = False
            if not full:
                self._connections[request] = _Connection(now + self._connection_seconds)
        if full:
            self.shutdown_request(request)
            return
        request.settimeout(self._connection_seconds)
        super().process_request(request, client_address)

    def request_read(self, connection: socket.socket) -> None:
        """The request of this connection is complete."""
        with self._connections_lock:
            state = self._connections.get(connection)
            if state is not None:
                state.reading = False

    def shutdown_request(self, request: Any) -> None:
        with self._connections_lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Runs several times a second: cuts connections that are past their deadline."""
        now = self._monotonic()
        with self._connections_lock:
            for connection, state in list(self._connections.items()):
                if now > state.deadline:
                    self._cut(connection)
                    del self._connections[connection]

    @staticmethod
    def _cut(connection: socket.socket) -> None:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            logger.debug("a connection was gone before it was cut")

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("a connection failed", exc_info=True)

    def serve_in_background(self, poll: float = POLL_SECONDS) -> threading.Thread:
        """Serves in a daemon thread, which it returns."""
        thread = threading.Thread(target=self.serve_forever, args=(poll,), name="http", daemon=True)
        thread.start()
        return thread
