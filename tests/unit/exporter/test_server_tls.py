"""The HTTP server behind a web configuration: TLS with real certificates, client certificates, users; and clients that waste its time."""

from __future__ import annotations

import base64
import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
from poise.exporter.server import HttpServer
from poise.exporter.web.security import WebSecurity

from tests.certificates import Authority, Pair
from tests.exporter_http import PATIENCE, ask, raw, read_all, serving
from tests.waiting import wait_until

bcrypt = pytest.importorskip("bcrypt")
ALICE = bcrypt.hashpw(b"sesame", bcrypt.gensalt(4)).decode()
TLS = "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
MUTUAL = TLS + "  client_ca_file: authority.pem\n  client_auth_type: RequireAndVerifyClientCert\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.create(tmp_path_factory.mktemp("tls"))
    made.issue("server")
    made.issue("prometheus", "DNS:prometheus.example,URI:spiffe://cluster/prometheus", "clientAuth")
    return made


@contextlib.contextmanager
def secured(authority: Authority, text: str, **options: float) -> Iterator[HttpServer]:
    path = authority.folder / "web.yml"
    path.write_text(text)
    with serving(security=WebSecurity(path), **options) as server:  # type: ignore[arg-type]  # numbers by name
        yield server


def pair(authority: Authority, name: str) -> Pair:
    return Pair(authority.folder / f"{name}.pem", authority.folder / f"{name}.key")


def client(authority: Authority, own: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.certificate)
    if own is not None:
        context.load_cert_chain(*own)
    return context


def ask_secured(server: HttpServer, context: ssl.SSLContext, path: str = "/healthz", user: str = "") -> tuple[int, bytes]:
    connection = http.client.HTTPSConnection("localhost", server.server_port, timeout=PATIENCE, context=context)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"Authorization": "Basic " + base64.b64encode(user.encode()).decode()} if user else {})
        response = connection.getresponse()
        return response.status, response.read()


def test_pages_come_over_tls(authority: Authority) -> None:
    with secured(authority, TLS) as server:
        assert server.scheme == "https"
        status, body = ask_secured(server, client(authority), "/metrics")
        assert status == HTTPStatus.OK
        assert b"poise_gpu_up" in body


def test_plain_http_is_told_to_use_https(authority: Authority) -> None:
    with secured(authority, TLS) as server:
        answer = raw(server, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer.startswith(b"HTTP/1.0 400")
        assert b"https://" in answer
        assert ask_secured(server, client(authority))[0] == HTTPStatus.OK


def test_only_clients_with_a_certificate_of_our_authority_are_answered(authority: Authority, tmp_path: Path) -> None:
    with secured(authority, MUTUAL) as server:
        assert ask_secured(server, client(authority, pair(authority, "prometheus")))[0] == HTTPStatus.OK
        stranger = Authority.create(tmp_path, "stranger").issue("intruder")
        server_only = authority.issue("server-only", usage="serverAuth")
        for own in (None, stranger, server_only):
            with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
                ask_secured(server, client(authority, own))
        assert ask_secured(server, client(authority, pair(authority, "prometheus")))[0] == HTTPStatus.OK


def test_a_certificate_that_is_checked_only_if_it_is_given(authority: Authority, tmp_path: Path) -> None:
    with secured(authority, MUTUAL.replace("RequireAndVerify", "Verify").replace("ClientCert\n", "ClientCertIfGiven\n")) as server:
        for own in (None, pair(authority, "prometheus")):
            assert ask_secured(server, client(authority, own))[0] == HTTPStatus.OK
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
            ask_secured(server, client(authority, Authority.create(tmp_path, "stranger").issue("intruder")))


@pytest.mark.parametrize(
    ("names", "let_in"),
    [("[prometheus.example]", True), ("[other, 'spiffe://cluster/prometheus']", True), ("[example]", False), ("[prometheus]", False)],
)
def test_only_certificates_with_a_name_that_was_named_are_let_in(names: str, let_in: bool, authority: Authority) -> None:
    with secured(authority, f"{MUTUAL}  client_allowed_sans: {names}\n") as server:
        context = client(authority, pair(authority, "prometheus"))
        if let_in:
            assert ask_secured(server, context)[0] == HTTPStatus.OK
        else:
            with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
                ask_secured(server, context)


def test_versions_suites_and_curve_are_in_force(authority: Authority) -> None:
    text = (
        TLS + "  max_version: TLS12\n  cipher_suites: [TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256]\n  curve_preferences: [CurveP384]\n"
    )
    with (
        secured(authority, text) as server,
        socket.create_connection(("127.0.0.1", server.server_port), PATIENCE) as connection,
        client(authority).wrap_socket(connection, server_hostname="localhost") as agreed,
    ):
        assert agreed.version() == "TLSv1.2"
        assert (agreed.cipher() or ("",))[0] == "ECDHE-ECDSA-CHACHA20-POLY1305"
    with secured(authority, TLS + "  min_version: TLS13\n") as server:
        context = client(authority)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError):
            ask_secured(server, context)


def test_users_are_asked_for_on_every_page(authority: Authority) -> None:
    with secured(authority, f"basic_auth_users: {{alice: {ALICE}}}\n") as server:
        for path in ("/", "/metrics", "/checks", "/healthz", "/readyz", "/nowhere"):
            response, body = ask(server, path)
            assert response.status == HTTPStatus.UNAUTHORIZED
            assert (response.getheader("WWW-Authenticate") or "").startswith("Basic ")
            assert b"poise_" not in body
        for user, status in (
            ("alice:sesame", HTTPStatus.OK),
            ("alice:Sesame", HTTPStatus.UNAUTHORIZED),
            ("bob:sesame", HTTPStatus.UNAUTHORIZED),
        ):
            response, _ = ask(server, "/metrics", Authorization="Basic " + base64.b64encode(user.encode()).decode())
            assert response.status == status


def test_why_a_client_is_not_let_in_is_logged_once(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with secured(authority, f"{MUTUAL}basic_auth_users: {{alice: {ALICE}}}\n") as server:
        context = client(authority, pair(authority, "prometheus"))
        for _ in range(3):
            ask_secured(server, context, user="alice:hunter2")
            ask_secured(server, context)
            raw(server, b"GET / HTTP/1.0\r\n\r\n")
    told = [record.getMessage() for record in caplog.records if "is not let in" in record.getMessage()]
    assert [words.partition("is not let in: ")[2] for words in told] == [
        "wrong user or password",
        "no user and password",
        "TLS failed: http request",
    ]


def test_a_certificate_does_not_replace_the_password(authority: Authority) -> None:
    with secured(authority, f"{MUTUAL}basic_auth_users: {{alice: {ALICE}}}\n") as server:
        context = client(authority, pair(authority, "prometheus"))
        assert ask_secured(server, context)[0] == HTTPStatus.UNAUTHORIZED
        assert ask_secured(server, context, user="alice:sesame")[0] == HTTPStatus.OK


def test_headers_and_rate_limit_are_in_force(authority: Authority) -> None:
    text = "http_server_config: {headers: {X-Frame-Options: deny, Content-Security-Policy: default-src 'none'}}\nrate_limit: {interval: 1h, burst: 2}\n"
    with secured(authority, text) as server:
        response, _ = ask(server, "/")
        assert (response.getheader("X-Frame-Options"), response.getheader("Content-Security-Policy")) == ("deny", "default-src 'none'")
        assert [ask(server, "/healthz")[0].status for _ in range(2)] == [HTTPStatus.OK, HTTPStatus.TOO_MANY_REQUESTS]


def test_a_new_configuration_holds_for_the_next_connection(authority: Authority) -> None:
    with secured(authority, TLS) as server:
        assert ask_secured(server, client(authority))[0] == HTTPStatus.OK
        (authority.folder / "web.yml").write_text(MUTUAL)
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
            ask_secured(server, client(authority))
        assert ask_secured(server, client(authority, pair(authority, "prometheus")))[0] == HTTPStatus.OK


# ------------------------------------------------------------------------------------------------- slow and hostile clients
def test_clients_that_never_finish_the_handshake_keep_nobody_out_and_are_cut(authority: Authority) -> None:
    with secured(authority, TLS, most_connections=4, connection_seconds=1.0) as server, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port), PATIENCE)) for _ in range(12)]
        for number, connection in enumerate(silent):
            if number % 2:
                connection.sendall(b"\x16\x03\x01\x02\x00")  # the first five bytes of a handshake
        assert ask_secured(server, client(authority))[0] == HTTPStatus.OK
        for connection in silent:
            assert read_all(connection) == b""
        wait_until(lambda: not server._connections, "no connection is held")


def test_garbage_instead_of_a_handshake_costs_its_own_connection(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    with secured(authority, TLS) as server:
        for garbage in (b"\x00" * 600, b"\x16\x03\x03\xff\xff" + b"a" * 5000, b"\r\n\r\n", b"\x80\x2e\x01\x00\x02", b"SSH-2.0-x\r\n", b""):
            raw(server, garbage)
        assert ask_secured(server, client(authority))[0] == HTTPStatus.OK
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


def test_a_flood_of_wrong_passwords_takes_no_more_threads_than_connections(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    held = threading.Event()
    module = type("Slow", (), {"checkpw": staticmethod(lambda *_: held.wait(PATIENCE) and False)})
    with secured(authority, f"basic_auth_users: {{alice: {ALICE}}}\n", most_connections=4) as server, contextlib.ExitStack() as stack:
        right = "Basic " + base64.b64encode(b"alice:sesame").decode()
        assert ask(server, "/healthz", Authorization=right)[0].status == HTTPStatus.OK
        monkeypatch.setitem(__import__("sys").modules, "bcrypt", module)
        before = threading.active_count()
        for number in range(60):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port), PATIENCE))
            wrong = base64.b64encode(b"alice:%d" % number)
            connection.sendall(b"GET / HTTP/1.0\r\nAuthorization: Basic " + wrong + b"\r\n\r\n")
        assert ask(server, "/healthz", Authorization=right)[0].status == HTTPStatus.OK, "who is known waits for nobody"
        wait_until(lambda: threading.active_count() - before <= 4 + 8, "the flood has no threads but those that wait for a hash")
        held.set()
        wait_until(lambda: threading.active_count() <= before, "all threads are gone")


def test_a_connection_that_is_cut_in_the_handshake_sends_nothing_in_the_clear(authority: Authority) -> None:
    with secured(authority, TLS, connection_seconds=0.2) as server:
        with socket.create_connection(("127.0.0.1", server.server_port), PATIENCE) as connection:
            wrapped = client(authority).wrap_socket(connection, server_hostname="localhost")
            with wrapped:
                wrapped.sendall(b"GET /metrics HTTP/1.0\r\n")  # and never the end of it
                seen = socket.socket.recv(wrapped, 1 << 20)
                while data := socket.socket.recv(wrapped, 1 << 20):
                    seen += data
        assert b"HTTP/" not in seen


def test_the_latest_snapshot_is_not_shown_to_a_foreign_host_over_tls(authority: Authority) -> None:
    with secured(authority, TLS) as server:
        connection = http.client.HTTPSConnection("localhost", server.server_port, timeout=PATIENCE, context=client(authority))
        with contextlib.closing(connection):
            connection.request("GET", "/metrics", headers={"Host": "evil.example"})
            assert connection.getresponse().status == HTTPStatus.MISDIRECTED_REQUEST
