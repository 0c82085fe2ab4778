"""One request of one connection: read within limits, checked, let in or not, answered, and the connection closed.

Parsing is http.server's; what of it is too generous is bounded here. Which page answers is pages.py's, who may ask is web/'s, and how long a
connection may take is server.py's.
"""

from __future__ import annotations

import gzip
import http.client
import logging
import re
import socket
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, BinaryIO

from poise.exporter import http_checks
from poise.exporter.pages import Request, Response, plain
from poise.exporter.web.passwords import Busy
from poise.exporter.web.security import InForce

if TYPE_CHECKING:
    from poise.exporter.server import HttpServer

logger = logging.getLogger(__name__)

#: The fastest level: a page of 400 KB shrinks to 8 % with it, and to 6 % with the slowest.
_GZIP_LEVEL = 1
#: How long, and up to how many bytes, what a client still sends is read after the answer: closing before would take the answer back.
LINGER_SECONDS = 1.0
_LINGER_BYTES = 4 * http_checks.LARGEST_BODY


def accepts_gzip(header: str) -> bool:
    """Whether an Accept-Encoding header takes gzip."""
    for item in header.split(","):
        coding, *parameters = (part.strip().lower() for part in item.split(";"))
        if coding in ("gzip", "*"):
            return not any(re.fullmatch(r"q=0(\.0*)?", parameter) for parameter in parameters)
    return False


class _Head:
    """The lines of a request's head, up to `LARGEST_HEAD` bytes of them."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = http_checks.LARGEST_HEAD

    def readline(self, limit: int = -1) -> bytes:
        line = self._file.readline(min(limit, self._left + 1) if limit >= 0 else self._left + 1)
        self._left -= len(line)
        if self._left < 0:
            raise http.client.LineTooLong("headers")
        return line

    def close(self) -> None:
        self._file.close()


class Handler(BaseHTTPRequestHandler):
    """One request, then the connection is closed."""

    server: HttpServer
    default_request_version = "HTTP/1.0"
    #: Whether the client may still be sending what nobody reads.
    _unread = False

    def __init__(self, connection: socket.socket, client_address: Any, server: HttpServer, security: InForce | None) -> None:
        """Serves the whole request. `security`: what the web configuration demanded when the connection began; None: nothing."""
        self._security = security
        super().__init__(connection, client_address, server)

    def setup(self) -> None:
        super().setup()
        self.rfile: Any = _Head(self.rfile)

    def handle_one_request(self) -> None:
        self.close_connection = True
        self.command = self.requestline = self.request_version = ""
        try:
            self.raw_requestline = self.rfile.readline(http_checks.LONGEST_LINE + 1)
            if not self.raw_requestline:
                return
            if len(self.raw_requestline) > http_checks.LONGEST_LINE:
                self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
            elif len(self.raw_requestline.split()) != 3:
                # Two words would be HTTP/0.9, which has no status to refuse with, and more are no request.
                self.request_version = "HTTP/1.0"
                self.send_error(HTTPStatus.BAD_REQUEST)
            elif self.parse_request():
                self._answer(self._response())
            self.close_connection = True
            self._linger()
        except OSError:
            # The client went away or its time is over; there is nobody to tell.
            return

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server finds wrong while it reads; its own words would repeat the request."""
        status = HTTPStatus(code)
        self._unread = True
        self._answer(plain(status, status.phrase.lower()), compressible=False)

    # ---------------------------------------------------------------------------------------------------------------- answering
    def _response(self) -> Response:
        refusal = http_checks.refusal(self.command, self.request_version, self.headers)
        self._unread = refusal is not None or self.command not in ("GET", "HEAD") or "Transfer-Encoding" in self.headers
        if refusal is not None:
            return refusal
        target = http_checks.target(self.path)
        if target is None:
            return plain(HTTPStatus.BAD_REQUEST, "the path has characters that a URL must escape")
        if not self.server.host_allowed(self.headers.get("Host") if target.host is None else target.host):
            return plain(HTTPStatus.MISDIRECTED_REQUEST, "this Host is not ours; use the address that the exporter listens on")
        if self._security is not None:
            refusal = self._not_let_in(self._security)
            if refusal is not None:
                return refusal
        self.server.request_read(self.connection)
        try:
            # Header values may hold anything; what is no Latin-1 text is as good as absent.
            return self.server.pages.answer(Request(self.command, target.path, target.query, str(self.headers.get("Accept", ""))))
        except Exception:
            logger.exception("request for %r failed", target.path[:200])
            return plain(HTTPStatus.INTERNAL_SERVER_ERROR, "failed; see the log of the exporter")

    def _not_let_in(self, security: InForce) -> Response | None:
        if security.limiter is not None and not security.limiter.take():
            return plain(HTTPStatus.TOO_MANY_REQUESTS, "more requests than rate_limit of the web configuration allows")
        if not security.config.users:
            return None
        try:
            if security.passwords.right(security.config.users, self.headers.get("Authorization")):
                return None
        except Busy:
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, "too many passwords wait to be checked", ("Retry-After", "1"))
        self.server.tell_once(
            self.client_address[0], "wrong user or password" if "Authorization" in self.headers else "no user and password"
        )
        return plain(
            HTTPStatus.UNAUTHORIZED, "a user and his password are asked for", ("WWW-Authenticate", 'Basic realm="poise", charset="UTF-8"')
        )

    def _answer(self, response: Response, *, compressible: bool = True) -> None:
        body = response.body
        headers = {"Content-Type": response.content_type, "Vary": "Accept, Accept-Encoding", "X-Content-Type-Options": "nosniff"}
        headers |= {"Cache-Control": "no-store", **dict(response.headers)}
        if self._security is not None:
            headers |= dict(self._security.config.headers)
        if compressible and accepts_gzip(str(self.headers.get("Accept-Encoding", ""))):
            body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
            headers["Content-Encoding"] = "gzip"
        self.send_response(response.status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _linger(self) -> None:
        """Reads what the client still sends, for a moment: the answer to a refused request would be lost with the connection otherwise."""
        if not self._unread:
            return
        self.server.answered(self.connection)
        # The plain socket's, below TLS: what is thrown away needs no deciphering.
        plain_shutdown, plain_receive = socket.socket.shutdown, socket.socket.recv
        plain_shutdown(self.connection, socket.SHUT_WR)
        end, left = time.monotonic() + LINGER_SECONDS, _LINGER_BYTES
        while left > 0 and (seconds := end - time.monotonic()) > 0:
            self.connection.settimeout(seconds)
            data = plain_receive(self.connection, http_checks.LARGEST_BODY)
            if not data:
                return
            left -= len(data)

    def version_string(self) -> str:
        return "poise"

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("%s %s", self.address_string(), format % args)
