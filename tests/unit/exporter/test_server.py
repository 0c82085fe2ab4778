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
from poise.exporter.exposition import Format
from poise.exporter.http_checks import host_allowed
from poise.exporter.server import EXHAUSTED_SECONDS, HttpServer, ListenError
from poise.exporter.snapshot import CollectorStatus, DriverInfo, NodeSnapshot

from tests.exporter_http import PATIENCE, Latest, ask, pages_of, raw, read_all, serving
from tests.waiting import wait_until


@pytest.fixture
def latest() -> Latest:
    return Latest()


@pytest.fixture
def server(latest: Latest) -> Iterator[HttpServer]:
    with serving(latest) as found:
        yield found


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


def test_the_landing_page_names_the_collectors_that_fail_first_and_why(server: HttpServer, latest: Latest) -> None:
    collectors = (
        CollectorStatus("bar1", 10.0, 0.00123, True),
        CollectorStatus("power", 1.0, None, False, error="card 0: <timeout> $facts"),
    )
    latest.value = Published(NodeSnapshot("n", 0.0, collectors=collectors), None)
    text = ask(server, "/")[1].decode()
    assert text.index("<td>power<td>fails<td>1 s<td><td>card 0: &lt;timeout&gt; $facts") < text.index(
        "<td>bar1<td>ok<td>10 s<td>1.23 ms<td>"
    )


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
    server = HttpServer("0.0.0.0", 0, pages_of(latest))
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
        HttpServer("127.0.0.1", server.server_port, pages_of(latest))
    assert str(error.value) == (
        f"cannot listen on 127.0.0.1:{server.server_port}: the port is taken, perhaps by another `poise exporter`. "
        "Choose another with --listen HOST:PORT."
    )


@pytest.mark.parametrize("host", ["no-such-host.invalid", "203.0.113.1", "x" * 300])
def test_an_address_that_is_not_ours_is_said(host: str, latest: Latest) -> None:
    with pytest.raises(ListenError) as error:
        HttpServer(host, 0, pages_of(latest))
    assert host in str(error.value)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_no_host_means_both_families(latest: Latest) -> None:
    server = HttpServer("", 0, pages_of(latest))
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
        before = threading.active_count()
        for _ in range(200):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port), timeout=PATIENCE))
            client.sendall(b"GET /")
        for _ in range(3):
            assert ask(server, "/metrics")[0].status == HTTPStatus.OK
        wait_until(lambda: threading.active_count() - before <= 4, "no connection beyond the limit has a thread")
        assert len(server._connections) <= 4


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


# ---------------------------------------------------------------------------------------------------------- strange requests
def status_of(answer: bytes) -> int:
    """The status of a raw answer; 0 when the connection was closed without one."""
    words = answer.split(b" ", 2)
    return int(words[1]) if answer.startswith(b"HTTP/1.0 ") and len(words) > 1 else 0


HOST = b"Host: localhost\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n", 200),
        (b"GET /healthz HTTP/1.1\n" + HOST.replace(b"\r", b"") + b"\n", 200),
        (b"GET http://localhost/healthz HTTP/1.1\r\n" + HOST + b"\r\n", 200),
        (b"GET HTTP://127.0.0.1:9747/healthz?x HTTP/1.1\r\n" + HOST + b"\r\n", 200),
        (b"GET /healthz?%00%ff&&&=;%zz HTTP/1.1\r\n" + HOST + b"\r\n", 200),
        (b"GET //healthz HTTP/1.1\r\n" + HOST + b"\r\n", 200),
        # The target names the host, whatever the header says (RFC 9112 3.2.2).
        (b"GET http://evil.example/healthz HTTP/1.1\r\n" + HOST + b"\r\n", 421),
        (b"GET http://user@localhost/healthz HTTP/1.1\r\n" + HOST + b"\r\n", 421),
        (b"GET http:// HTTP/1.1\r\n" + HOST + b"\r\n", 421),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\n" + HOST + HOST + b"\r\n", 400),
        (b"GET /healthz\r\n", 400),
        (b"GET /healthz\r\n\r\n", 400),
        (b"GET  HTTP/1.1\r\n\r\n", 400),
        (b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET /\x00 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET /\xc3\xa4 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET / HTTP/x\r\n\r\n", 400),
        (b"GET / FTP/1.1\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\n" + HOST + b"no colon here\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"get / HTTP/1.1\r\n" + HOST + b"\r\n", 501),
        (b"\xff\xfe / HTTP/1.1\r\n" + HOST + b"\r\n", 501),
        (b"POST /metrics HTTP/1.1\r\n" + HOST + b"Content-Length: 50000\r\n\r\n" + b"a" * 50_000, 405),
        (b"POST /metrics HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n", 405),
        (b"POST /metrics HTTP/1.1\r\n" + HOST + b"Content-Length: 200000\r\n\r\n" + b"a" * 200_000, 413),
        (b"POST /metrics HTTP/1.1\r\n" + HOST + b"Content-Length: 9999999999999999999\r\n\r\n", 413),
        (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", 404),
        (b"CONNECT localhost:22 HTTP/1.1\r\n" + HOST + b"\r\n", 404),
        (b"GET /metrics?" + b"a=b&" * 100_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
        (b"GET /" + b"a" * 70_000, 414),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 40_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: a\r\n" * 5000 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + HOST + b"".join(b"X%d: " % n + b"a" * 1000 + b"\r\n" for n in range(90)) + b"\r\n", 431),
        (b"GET /healthz HTTP/1.0\r\n\r\nGET /metrics HTTP/1.0\r\n\r\n", 200),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500, 400),
    ],
    ids=lambda value: repr(value[:60]) if isinstance(value, bytes) else str(value),
)
def test_each_wrong_request_gets_its_status(
    request_bytes: bytes, status: int, server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    answer = raw(server, request_bytes)
    assert status_of(answer) == status
    assert answer.count(b"HTTP/1.0 ") == 1, "what was sent behind the first request is not answered"
    assert b"Traceback" not in answer
    assert not [record for record in caplog.records if record.levelname != "DEBUG"]


def test_no_answer_repeats_the_request(server: HttpServer) -> None:
    for request_bytes in (b"GET /<script> HTTP/1.1\r\n" + HOST + b"\r\n", b"<script> / HTTP/1.1\r\n\r\n", b"GET / <script>\r\n\r\n"):
        assert b"script" not in raw(server, request_bytes)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=300),
        st.builds(
            lambda method, path, version, headers: b" ".join((method, path, version)) + b"\r\n" + headers + b"\r\n\r\n",
            st.sampled_from([b"GET", b"HEAD", b"POST", b"get", b"\xff"]),
            st.sampled_from(
                [b"/metrics", b"/checks", b"/", b"/readyz", b"http://x/metrics", b"/\xff", b"/\x00", b"/metrics?collect[]=%00"]
            ),
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
    assert status_of(raw(server, request_bytes)) in (0, 200, 400, 404, 405, 413, 414, 421, 431, 501, 505)
    assert ask(server, "/healthz")[0].status == HTTPStatus.OK


def test_a_client_that_is_still_sending_gets_its_refusal(server: HttpServer) -> None:
    """Closing at once would reset the connection under its hands."""
    for method, path, body, status in (("POST", "/metrics", b"a" * 200_000, 413), ("GET", "/?" + "a" * 200_000, b"", 414)):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.putrequest(method, path)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders()
            for part in range(0, len(body), 10_000):
                connection.send(body[part : part + 10_000])
                time.sleep(0.002)  # a network between client and server
            assert connection.getresponse().status == status
