"""Serves a recorded vLLM page over HTTP, healthy or with a fault, so that tests meet real bytes on a real socket.

    with serve(PageServer(CAPTURES / "tp2-server-after.prom")) as server:
        … server.url …

As a program it plays the API server of a vLLM process: ``python recorded.py PAGE PORT``.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CAPTURES = Path(__file__).parent / "captures"
INFO = CAPTURES / "info"

#: A fault takes the request handler and answers in its own way.
Fault = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class PageServer:
    """What to serve: a recorded page, the version that /version tells (None: 404), JSON documents by path, and a fault for `fault_path` if any.

    All of it may be changed while it serves. `requests` are the paths asked for, with their headers.
    """

    page: Path | bytes
    version: str | None = "0.32.0"
    fault: Fault | None = None
    fault_path: str = "/metrics"
    documents: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)  # set at the end, for faults that wait
    port: int = 0

    @property
    def url(self) -> str:
        """The base URL while it serves."""
        return f"http://127.0.0.1:{self.port}"

    def body(self) -> bytes:
        """The page as it is served."""
        return self.page if isinstance(self.page, bytes) else self.page.read_bytes()


@contextlib.contextmanager
def serve(server: PageServer, port: int = 0, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> Iterator[PageServer]:
    """Serves until the block ends; on a free port unless one is named. `host` is for namespaces that a test made, where none else is."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.requests.append((self.path, dict(self.headers)))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                if self.path == server.fault_path and server.fault is not None:
                    server.fault(self)
                elif self.path == "/version" and server.version is not None:
                    answer(self, json.dumps({"version": server.version}).encode(), "application/json")
                elif self.path in server.documents:
                    answer(self, server.documents[self.path], "application/json")
                elif self.path == "/metrics":
                    answer(self, server.body(), "text/plain; version=0.0.4; charset=utf-8")
                else:
                    answer(self, b"not found", "text/plain", 404)

        def log_message(self, format: str, *args: Any) -> None:
            return

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    httpd = Server((host, port), Handler)
    httpd.daemon_threads = True
    if tls is not None:
        httpd.socket = tls.wrap_socket(httpd.socket, server_side=True)
    server.port = httpd.server_address[1]
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        httpd.shutdown()
        httpd.server_close()
        thread.join(5)


def answer(handler: BaseHTTPRequestHandler, body: bytes, content_type: str, status: int = 200, **headers: str) -> None:
    """A whole HTTP answer; further headers as keywords with underscores."""
    handler.send_response(status)
    handler.send_header("Content-Type", content_type)
    handler.send_header("Content-Length", str(len(body)))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


# ------------------------------------------------------------------------------------------------------------------ faults
def status(code: int) -> Fault:
    """Answers with an HTTP status and no page."""
    return lambda handler: answer(handler, b"", "text/plain", code)


def redirect(location: str) -> Fault:
    """Redirects elsewhere."""
    return lambda handler: answer(handler, b"", "text/plain", 302, Location=location)


def html(handler: BaseHTTPRequestHandler) -> None:
    """Answers with a web page."""
    answer(handler, b"<!doctype html><title>hello</title>", "text/html")


def binary(handler: BaseHTTPRequestHandler) -> None:
    """Answers with bytes that are no text."""
    answer(handler, bytes(range(256)) * 64 + b"\n", "text/plain")


def cut_off(page: bytes) -> Fault:
    """Promises the whole page and closes in the middle."""

    def fault(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/plain")
        handler.send_header("Content-Length", str(len(page)))
        handler.end_headers()
        handler.wfile.write(page[: len(page) // 2])
        handler.close_connection = True

    return fault


def huge(size: int, *, announced: bool) -> Fault:
    """Sends `size` bytes of valid series; `announced`: with their length in the header."""

    def fault(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/plain")
        if announced:
            handler.send_header("Content-Length", str(size))
        handler.end_headers()
        block = b"".join(b'vllm:num_requests_running{engine="%d",model_name="m"} 1.0\n' % number for number in range(1024))
        sent = 0
        while sent < size:
            handler.wfile.write(block)
            sent += len(block)
        handler.close_connection = True

    return fault


def endless_line(size: int) -> Fault:
    """One line that does not end for `size` bytes."""
    return lambda handler: answer(handler, b'vllm:x{a="' + b"a" * size + b'"} 1\n', "text/plain")


def gzip_bomb(size: int) -> Fault:
    """A small compressed answer that would unpack to `size` bytes."""
    return lambda handler: answer(handler, gzip.compress(b"0" * size), "text/plain", Content_Encoding="gzip")


def drip(server: PageServer, seconds: float = 0.05) -> Fault:
    """A byte at a time, for ever; headers too."""

    def fault(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while not server.released.wait(seconds):
            handler.wfile.write(b"a")
            handler.wfile.flush()

    return fault


def silence(server: PageServer) -> Fault:
    """Takes the request and never answers."""

    def fault(handler: BaseHTTPRequestHandler) -> None:
        server.released.wait()
        handler.close_connection = True

    return fault


def main() -> None:
    """Serves a page until the process is ended."""
    with serve(PageServer(Path(sys.argv[1])), int(sys.argv[2])):
        threading.Event().wait()


if __name__ == "__main__":
    main()
