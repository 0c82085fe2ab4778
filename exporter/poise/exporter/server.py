"""The exporter's HTTP server, small on purpose: one request per connection, a bounded number of connections, each with a deadline.

The deadline is for the whole of a connection, the TLS handshake too, so that slow or hostile clients cost nothing but their own. Each has a
thread; nothing that a client does holds the one that accepts. A request is handler.py's, what is answered pages.py's, who may ask web/'s.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from socketserver import BaseRequestHandler
from typing import Any

from poise.exporter import http_checks
from poise.exporter.handler import Handler
from poise.exporter.listening import refused
from poise.exporter.pages import Pages
from poise.exporter.web import tls
from poise.exporter.web.security import InForce, WebSecurity

logger = logging.getLogger(__name__)

#: Connections that are served at the same time; Prometheus needs one, a person with a browser a handful.
MOST_CONNECTIONS = 32
#: From accept to the last byte of the answer.
CONNECTION_SECONDS = 10.0
#: How often connections past their deadline are looked for, and how soon the server sees that it is to stop.
POLL_SECONDS = 0.25
#: Clients and reasons that are logged: a fleet has a few scrapers, a scan of the network has thousands.
MOST_TOLD = 100
#: The pause when the process or the node has no descriptor or memory for another connection.
EXHAUSTED_SECONDS = 0.1
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class _Connection:
    """Bookkeeping of one open connection. `reading`: its request is not complete, or who asks is not known yet; or it is answered."""

    __slots__ = ("deadline", "reading")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.reading = True


#: What a client gets that speaks plain HTTP to a port with TLS, as Go's server says it.
_PLAIN_HTTP = b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\nthis port speaks TLS; ask it with https://\n"


def _say_goodbye(secured: ssl.SSLSocket) -> None:
    """Tells the client that the end is the end (close_notify), and waits for no answer to that."""
    try:
        secured.settimeout(0)
        secured.unwrap()
    except (OSError, ValueError):
        logger.debug("a client was gone before the end of TLS")


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
        security: WebSecurity | None = None,
        most_connections: int = MOST_CONNECTIONS,
        connection_seconds: float = CONNECTION_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Binds. `host` is empty for all addresses of both families; port 0 takes a free one. Without `security`: HTTP, for everybody.

        Raises:
            ListenError: the address is taken, not this machine's, or not allowed.
        """
        self.pages = pages
        self._security = security
        self._host = host
        self._most_connections = most_connections
        self._connection_seconds = connection_seconds
        self._monotonic = monotonic
        self._connections: dict[socket.socket, _Connection] = {}
        self._connections_lock = threading.Lock()
        self._told: set[tuple[str, str]] = set()
        self._dual_stack = host == "" and socket.has_dualstack_ipv6()
        shown = f"{host}:{port}"
        try:
            self.address_family, address = self._resolve(host, port)
            super().__init__(address, BaseRequestHandler)  # never made: finish_request makes ours
        except (OSError, UnicodeError, OverflowError) as error:
            raise ListenError(refused(shown, error, "poise exporter")) from None

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

    @property
    def scheme(self) -> str:
        """What its URLs start with."""
        return "https" if self._security is not None and self._security.current().context is not None else "http"

    def host_allowed(self, header: str | None) -> bool:
        """On a listener that is bound to loopback only our own names are answered, so that no page of a foreign name reads us."""
        listening = ipaddress.ip_address(str(self.server_address[0]).partition("%")[0])
        if not listening.is_loopback:
            return True
        return http_checks.host_allowed(header, frozenset({self._host.lower(), str(listening)}))

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

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Runs in the connection's own thread: TLS first where there is TLS, then the request."""
        security = self._security.current() if self._security is not None else None
        if security is None or security.context is None:
            Handler(request, client_address, self, security)
            return
        # The new object takes the socket over from the old one, which is then nobody's.
        secured = security.context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        with self._connections_lock:
            state = self._connections.pop(request, None)
            if state is not None:
                self._connections[secured] = state
        try:
            # Without a state the connection was cut in between.
            if state is not None and self._shake_hands(secured, security, client_address):
                Handler(secured, client_address, self, security)
                _say_goodbye(secured)
        finally:
            self.shutdown_request(secured)

    def _shake_hands(self, secured: ssl.SSLSocket, security: InForce, client_address: Any) -> bool:
        """Whether the client may go on."""
        try:
            secured.do_handshake()
        except ssl.SSLError as error:
            self.tell_once(client_address[0], f"TLS failed: {str(error.reason or error).lower().replace('_', ' ')}")
            if error.reason == "HTTP_REQUEST":
                socket.socket.sendall(secured, _PLAIN_HTTP)  # below TLS, in the client's own tongue
            return False
        names = security.config.tls.client_allowed_sans if security.config.tls is not None else ()
        if not tls.allowed(secured.getpeercert(), names):
            self.tell_once(client_address[0], "its certificate has none of the names in client_allowed_sans")
            return False
        return True

    def tell_once(self, client: str, words: str) -> None:
        """Logs why a client is not let in: the first time for a person who is setting it up, later for who looks closely."""
        with self._connections_lock:
            new = (client, words) not in self._told and len(self._told) < MOST_TOLD
            if new:
                self._told.add((client, words))
        logger.log(logging.INFO if new else logging.DEBUG, "client %s is not let in: %s", client, words)

    def request_read(self, connection: socket.socket) -> None:
        """The request of this connection is complete, and who asks may ask."""
        self._set_reading(connection, False)

    def answered(self, connection: socket.socket) -> None:
        """The answer is out; what may still come is of no use, so the connection may make room for another."""
        self._set_reading(connection, True)

    def _set_reading(self, connection: socket.socket, reading: bool) -> None:
        with self._connections_lock:
            state = self._connections.get(connection)
            if state is not None:
                state.reading = reading

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
            # The plain socket's: that of a TLS socket drops its cipher first, and its own thread might send in the clear in between.
            socket.socket.shutdown(connection, socket.SHUT_RDWR)
        except OSError:
            logger.debug("a connection was gone before it was cut")

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError | RuntimeError):  # the client's doing, or no thread is left for it
            logger.debug("the connection of %s failed: %s", client_address[0], error)
        else:
            logger.error("a connection failed", exc_info=True)

    def serve_in_background(self, poll: float = POLL_SECONDS) -> threading.Thread:
        """Serves in a daemon thread, which it returns."""
        thread = threading.Thread(target=self.serve_forever, args=(poll,), name="http", daemon=True)
        thread.start()
        return thread
