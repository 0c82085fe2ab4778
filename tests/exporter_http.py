"""The exporter's HTTP server on a free port with a snapshot of two cards and an engine, and clients for it."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator

from poise.exporter.assemble import Published
from poise.exporter.checks.runner import Runner
from poise.exporter.collect import Groups, groups_of
from poise.exporter.exposition import Build, Exposition
from poise.exporter.nvml import registry
from poise.exporter.pages import Pages
from poise.exporter.server import CONNECTION_SECONDS, MOST_CONNECTIONS, HttpServer
from poise.exporter.web.security import WebSecurity

from tests.scenes import card, engine, node

PATIENCE = 60.0


def published() -> Published:
    snapshot = node([card(0, busy=5.0), card(1)], [engine()])
    return Published(snapshot, Runner().observe(snapshot))


class Latest:
    """What is published, which a test can change."""

    def __init__(self) -> None:
        self.value: Published | None = published()

    def __call__(self) -> Published | None:
        return self.value


def pages_of(latest: Latest) -> Pages:
    groups = groups_of({collector.name: collector.metrics for collector in registry.ALL if collector.name != "bar1"})
    return Pages(latest, Exposition(Build("1.2.3", "3.11")), "1.2.3", groups=Groups(groups, ["bar1"]))


@contextlib.contextmanager
def serving(
    latest: Latest | None = None,
    *,
    security: WebSecurity | None = None,
    most_connections: int = MOST_CONNECTIONS,
    connection_seconds: float = CONNECTION_SECONDS,
) -> Iterator[HttpServer]:
    server = HttpServer(
        "127.0.0.1",
        0,
        pages_of(latest or Latest()),
        security=security,
        most_connections=most_connections,
        connection_seconds=connection_seconds,
    )
    thread = server.serve_in_background(0.02)
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE)


def ask(server: HttpServer, path: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response, response.read()


def read_all(client: socket.socket) -> bytes:
    """Everything until the server closes; a reset counts as closed."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while data := client.recv(65536):
            found += data
    return found


def raw(server: HttpServer, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=PATIENCE) as client:
        with contextlib.suppress(OSError):
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
        return read_all(client)
