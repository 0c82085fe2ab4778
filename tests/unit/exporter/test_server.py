"""The HTTP server: right answers to right requests, an answer or a closed connection to all others, and room for the next client."""

from __future__ import annotations

import contextlib
import errno
import gzip
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from poise.exporter.assemble import Published
from poise.exporter.checks.runner import Runner
from poise.exporter.exposition import Build, Exposition, Format
from poise.exporter.http_checks import host_allowed
from poise.exporter.pages import Pages
from poise.exporter.server import EXHAUSTED_SECONDS, HttpServer, ListenError
from poise.exporter.snapshot import DriverInfo, NodeSnapshot

from tests.scenes import card, engine, node
from tests.waiting import wait_until

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


@contextlib.contextmanager
def serving(latest: Latest, **options: float) -> Iterator[HttpServer]:
    server = HttpServer("127.0.0.1", 0, Pages(latest, Exposition(Build("1.2.3", "3.11")), "1.2.3"), **options)  # type: ignore[arg-type]  # numbers by name
    thread = server.serve_in_background(0.02)
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE)


@pytest.fixture
def latest() -> Latest:
    return Latest()


@pytest.fixture
def server(latest: Latest) -> Iterator[HttpServer]:
    with serving(latest) as found:
        yield found


def ask(server: HttpServer, path: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response, response.read()


def test_metrics_are_the_page(server: HttpServer) -> None:
    response, body = ask(server, "/metrics")
    assert response.status == HTTPStatus.OK
    assert response.getheader("Content-Type") == Format.TEXT.value
    assert b'\npoise_gpu_up{gpu="0",uuid="GPU-0"} 1\n' in body
    assert b"\npoise_engine_up" not in body or b'engine="n1:8000"' in body
    assert b"\npoise_check_status{" in body


def test_metrics_take_a_query_and_compress(server: HttpServer) -> None:
    response, body = ask(server, "/metrics?name[]=x", Accept_Encoding="deflate, gzip;q=0.5")
    assert response.getheader("Content-Encoding") == "gzip"
    assert b"poise_gpu_up" in gzip.decompress(body)
    response, body = ask(server, "/metrics", Accept_Encoding="gzip;q=0")
    assert response.getheader("Content-Encoding") is None
    assert b"poise_gpu_up" in body


def test_openmetrics_when_asked_for(server: HttpServer) -> None:
    response, body = ask(server, "/metrics", Accept="application/openmetrics-text;version=1.0.0")
    assert response.getheader("Content-Type") == Format.OPENMETRICS.value
    assert body.endswith(b"# EOF\n")


@pytest.mark.parametrize("accept", ["application/openmetrics-text;version=x", "\xff\xfe", "a" * 5000, ";q=;;,,=", "text/*;q=nan"])
def test_a_strange_accept_header_gets_text(accept: str, server: HttpServer) -> None:
    response, _ = ask(server, "/metrics", Accept=accept)
    assert (response.status, response.getheader("Content-Type")) == (HTTPStatus.OK, Format.TEXT.value)


def test_checks_are_json(server: HttpServer) -> None:
    response, body = ask(server, "/checks")
    assert response.getheader("Content-Type") == "application/json"
    document = json.loads(body)
    assert document["verdict"]["state"] in ("ok", "watch", "problem", "unknown")
    assert document["checks"]


def test_health_and_readiness_are_two_things(server: HttpServer, latest: Latest) -> None:
    assert ask(server, "/healthz")[0].status == ask(server, "/readyz")[0].status == HTTPStatus.OK
    latest.value = None
    assert ask(server, "/healthz")[0].status == HTTPStatus.OK
    for path in ("/readyz", "/metrics", "/checks"):
        response, body = ask(server, path)
        assert (response.status, response.getheader("Retry-After")) == (HTTPStatus.SERVICE_UNAVAILABLE, "1")
        assert b"no snapshot yet" in body


def test_the_landing_page_tells_what_runs_and_escapes_it(server: HttpServer, latest: Latest) -> None:
    _, body = ask(server, "/")
    assert b"1.2.3" in body
    assert b"n1:8000" in body
    latest.value = Published(NodeSnapshot("<script>", 0.0, driver=DriverInfo(error="a & b")), None)
    _, body = ask(server, "/")
    assert b"<script>" not in body
    assert b"&lt;script&gt;" in body
    assert b"a &amp; b" in body
    latest.value = None
    assert ask(server, "/")[0].status == HTTPStatus.OK


def test_checks_that_failed_are_said_and_the_metrics_go_on(server: HttpServer, latest: Latest) -> None:
    assert latest.value is not None
    latest.value = Published(latest.value.snapshot, None)
    assert ask(server, "/checks")[0].status == HTTPStatus.SERVICE_UNAVAILABLE
    assert ask(server, "/metrics")[0].status == HTTPStatus.OK


def test_head_has_the_headers_and_no_body(server: HttpServer) -> None:
    response, body = ask(server, "/healthz", "HEAD")
    assert (response.status, body) == (HTTPStatus.OK, b"")
    assert int(response.getheader("Content-Length") or 0) > 0


@pytest.mark.parametrize("path", ["/metric", "/metrics/", "/../etc/passwd", "/%6detrics", "*"])
def test_other_paths_are_not_found(path: str, server: HttpServer) -> None:
    response, body = ask(server, path)
    assert response.status == HTTPStatus.NOT_FOUND
    assert b"/metrics" in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_are_not_allowed(method: str, server: HttpServer) -> None:
    response, _ = ask(server, "/metrics", method)
    assert (response.status, response.getheader("Allow")) == (HTTPStatus.METHOD_NOT_ALLOWED, "GET, HEAD")


# ------------------------------------------------------------------------------------------------------------------- hosts
@pytest.mark.parametrize("host", ["localhost", "localhost:9747", "127.0.0.1:1", "127.0.0.2", "[::1]:9747", "LOCALHOST.", "poise.localhost"])
def test_own_names_are_answered_on_loopback(host: str, server: HttpServer) -> None:
    assert ask(server, "/healthz", Host=host)[0].status == HTTPStatus.OK


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9747", "10.0.0.1", "[fd00::1]", "localhost.evil.example", "", "a b", "[::1"]
)
def test_foreign_names_are_refused_on_loopback(host: str, server: HttpServer) -> None:
    for path in ("/metrics", "/", "/checks", "/healthz"):
        assert ask(server, path, Host=host)[0].status == HTTPStatus.MISDIRECTED_REQUEST


def test_foreign_names_are_answered_on_other_addresses(latest: Latest) -> None:
    server = HttpServer("0.0.0.0", 0, Pages(latest, Exposition(Build("1", "3")), "1"))
    thread = server.serve_in_background(0.02)
    try:
        assert ask(server, "/healthz", Host="gpu-node-7.example:9747")[0].status == HTTPStatus.OK
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE)


def test_a_request_without_host_is_no_browsers(server: HttpServer) -> None:
    assert b"alive" in raw(server, b"GET /healthz HTTP/1.0\r\n\r\n")


@given(st.text())
def test_no_host_breaks_the_check(header: str) -> None:
    assert host_allowed(header, frozenset({"127.0.0.1"})) in (True, False)


# --------------------------------------------------------------------------------------------------------------- addresses
def test_a_taken_port_is_said_with_the_way_out(server: HttpServer, latest: Latest) -> None:
    with pytest.raises(ListenError) as error:
        HttpServer("127.0.0.1", server.server_port, Pages(latest, Exposition(Build("1", "3")), "1"))
    assert f"--listen=127.0.0.1:{server.server_port}" in str(error.value)
    assert "address already in use" in str(error.value)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "203.0.113.1", "x" * 300])
def test_an_address_that_is_not_ours_is_said(host: str, latest: Latest) -> None:
    with pytest.raises(ListenError) as error:
        HttpServer(host, 0, Pages(latest, Exposition(Build("1", "3")), "1"))
    assert host in str(error.value)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_no_host_means_both_families(latest: Latest) -> None:
    server = HttpServer("", 0, Pages(latest, Exposition(Build("1", "3")), "1"))
    thread = server.serve_in_background(0.02)
    try:
        for address in ("127.0.0.1", "::1"):
            with socket.create_connection((address, server.server_port), timeout=PATIENCE) as client:
                client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
                assert b"alive" in read_all(client)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE)


# ------------------------------------------------------------------------------------------------- slow and hostile clients
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


def test_a_client_that_sends_nothing_is_cut_off(latest: Latest) -> None:
    with (
        serving(latest, connection_seconds=0.2) as server,
        socket.create_connection(("127.0.0.1", server.server_port), timeout=PATIENCE) as client,
    ):
        client.sendall(b"GET /metr")
        assert read_all(client) == b""


def test_a_client_that_trickles_is_cut_off(latest: Latest) -> None:
    """Each byte comes in time; the request as a whole does not."""
    with (
        serving(latest, connection_seconds=0.3) as server,
        socket.create_connection(("127.0.0.1", server.server_port), timeout=PATIENCE) as client,
    ):
        done = threading.Event()

        def trickle() -> None:
            with contextlib.suppress(OSError):
                while not done.wait(0.02):
                    client.sendall(b"x")

        thread = threading.Thread(target=trickle)
        thread.start()
        answer = read_all(client)
        done.set()
        thread.join(PATIENCE)
        assert b"200" not in answer


def test_many_silent_clients_do_not_keep_a_scrape_out(latest: Latest) -> None:
    with serving(latest, most_connections=4, connection_seconds=PATIENCE) as server, contextlib.ExitStack() as stack:
        for _ in range(40):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port), timeout=PATIENCE))
            client.sendall(b"GET /")
        for _ in range(3):
            assert ask(server, "/metrics")[0].status == HTTPStatus.OK


def test_a_client_that_does_not_read_its_answer_keeps_nobody_waiting(latest: Latest) -> None:
    with serving(latest, connection_seconds=1.0) as server, contextlib.ExitStack() as stack:
        for _ in range(8):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port), timeout=PATIENCE))
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert ask(server, "/metrics")[0].status == HTTPStatus.OK


def test_without_descriptors_it_waits_instead_of_turning_at_full_speed(latest: Latest, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0

    class Exhausted:
        """The listener of a process that may open nothing more."""

        def __init__(self, real: socket.socket) -> None:
            self.real = real

        def accept(self) -> tuple[socket.socket, object]:
            nonlocal tries
            tries += 1
            raise OSError(errno.EMFILE, "Too many open files")

        def __getattr__(self, name: str) -> object:
            return getattr(self.real, name)

    with serving(latest) as server, socket.create_connection(("127.0.0.1", server.server_port), timeout=PATIENCE):
        real = server.socket
        server.socket = Exhausted(real)  # type: ignore[assignment]  # all but accept is the real one's
        socket.create_connection(("127.0.0.1", server.server_port), timeout=PATIENCE).close()
        wait_until(lambda: tries >= 3, "it has tried")
        before, began = tries, time.monotonic()
        time.sleep(0.5)
        assert tries - before <= (time.monotonic() - began) / EXHAUSTED_SECONDS + 1
        server.socket = real
        assert ask(server, "/metrics")[0].status == HTTPStatus.OK


def test_connections_are_given_back(latest: Latest) -> None:
    with serving(latest) as server:
        for _ in range(50):
            ask(server, "/healthz")
        wait_until(lambda: not server._connections, "no connection is held")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=300),
        st.builds(
            lambda method, path, version, headers: b" ".join((method, path, version)) + b"\r\n" + headers + b"\r\n\r\n",
            st.sampled_from([b"GET", b"HEAD", b"POST", b"get", b"\xff"]),
            st.sampled_from([b"/metrics", b"/checks", b"/", b"/readyz", b"http://x/metrics", b"/\xff", b"/\x00"]),
            st.sampled_from([b"HTTP/1.0", b"HTTP/1.1", b"HTTP/2.0", b"HTTP/9", b"x"]),
            st.lists(
                st.builds(
                    lambda name, value: name + b": " + value.replace(b"\n", b""),
                    st.sampled_from([b"Accept", b"Accept-Encoding", b"Host", b"Content-Length", b"Transfer-Encoding", b"Expect", b"\xfe"]),
                    st.binary(max_size=40),
                ),
                max_size=5,
            ).map(b"\r\n".join),
        ),
    )
)
def test_no_request_breaks_the_server(server: HttpServer, request_bytes: bytes) -> None:
    answer = raw(server, request_bytes)
    assert b" 500 " not in answer.partition(b"\r\n")[0]
    assert ask(server, "/healthz")[0].status == HTTPStatus.OK


def test_an_endless_header_is_refused(server: HttpServer) -> None:
    answer = raw(server, b"GET /metrics HTTP/1.0\r\nX: " + b"a" * 200_000 + b"\r\n\r\n")
    assert b" 200 " not in answer.partition(b"\r\n")[0]
    answer = raw(server, b"GET /metrics HTTP/1.0\r\n" + b"X: a\r\n" * 5000 + b"\r\n")
    assert b" 200 " not in answer.partition(b"\r\n")[0]
