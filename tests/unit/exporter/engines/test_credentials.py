"""Asking engines over TLS and with a login: real certificates, real sockets. Errors name the file or the way out and never a secret."""

from __future__ import annotations

import base64
import os
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from poise.exporter.access import PLAIN, Access
from poise.exporter.engines.credentials import BROKE_OFF, DISCOVERED, AccessError, Credentials, tls_problem
from poise.exporter.engines.poll import Poll, Poller

from tests import certificates, recorded
from tests.certificates import Authority, Pair
from tests.recorded import CAPTURES, PageServer, serve

PAGE = CAPTURES / "generations" / "0.9.2-v1.prom"
TOKEN = "sk-planted-token"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    """The server's certificate; it names localhost and 127.0.0.1."""
    return authority.issue("server")


def server_context(pair: Pair, *, client_authority: Authority | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    if client_authority is not None:
        context.load_verify_locations(client_authority.certificate)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.fixture
def secured(pair: Pair) -> Iterator[PageServer]:
    with serve(PageServer(PAGE), tls=server_context(pair)) as server:
        yield server


@pytest.fixture
def plain() -> Iterator[PageServer]:
    with serve(PageServer(PAGE)) as server:
        yield server


def asked(server: PageServer, access: Access, scheme: str = "https", host: str = "127.0.0.1") -> Poll:
    return Poller(f"{scheme}://{host}:{server.port}", 10.0, access=access).poll_once()


def answered(poll: Poll) -> bool:
    return poll.page is not None and not poll.error


# -------------------------------------------------------------------------------------------------------------------- TLS
def test_a_certificate_of_the_named_authority_is_good(secured: PageServer, authority: Authority) -> None:
    assert answered(asked(secured, Access(ca_file=str(authority.certificate))))


def test_a_certificate_that_nobody_vouches_for_is_refused_with_the_way_out(secured: PageServer) -> None:
    poll = asked(secured, PLAIN)
    assert poll.page is None
    assert poll.error.startswith("the certificate cannot be verified: ")
    assert "ca_file=FILE" in poll.error
    assert "insecure_skip_verify=true" in poll.error


def test_any_certificate_is_good_where_that_was_said_and_for_a_discovered_engine(secured: PageServer) -> None:
    assert answered(asked(secured, Access(insecure_skip_verify=True)))
    assert answered(asked(secured, DISCOVERED))
    assert not DISCOVERED.has_secret


def test_a_certificate_for_another_name_is_refused_until_that_name_is_given(authority: Authority) -> None:
    other = authority.issue("other", "DNS:qwen.internal")
    with serve(PageServer(PAGE), tls=server_context(other)) as server:
        poll = asked(server, Access(ca_file=str(authority.certificate)))
        assert poll.error == "the certificate does not name 127.0.0.1; give a name that it carries with server_name=NAME"
        assert answered(asked(server, Access(ca_file=str(authority.certificate), server_name="qwen.internal")))


def test_a_server_that_wants_our_certificate_gets_it(pair: Pair, authority: Authority) -> None:
    ours = authority.issue("poise")
    ca_file = str(authority.certificate)
    with serve(PageServer(PAGE), tls=server_context(pair, client_authority=authority)) as server:
        assert answered(asked(server, Access(ca_file=ca_file, cert_file=str(ours.certificate), key_file=str(ours.key))))
        # Whether the server's reason comes through before its connection is reset is a matter of microseconds.
        assert asked(server, Access(ca_file=ca_file)).error in (
            "TLS failed: the server wants a certificate of ours; give cert_file=FILE,key_file=FILE",
            f"TLS failed: the server broke off; {BROKE_OFF}",
        )


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required"), "wants a certificate of ours"),
        (ssl.SSLError(1, "[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca"), "does not trust our certificate"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), "no TLS is spoken there"),
        (ssl.SSLError(1, "[SSL: SOMETHING_ELSE] else"), "TLS failed: "),
    ],
)
def test_openssls_reasons_are_put_into_words(error: ssl.SSLError, words: str) -> None:
    assert words in tls_problem(error, "h")[0]


def test_a_connection_that_is_broken_off_says_what_may_be_missing(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def break_off() -> None:
            connection, _ = listener.accept()
            with server_context(pair).wrap_socket(connection, server_side=True) as secured:
                secured.recv(1)
                secured.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets

        thread = threading.Thread(target=break_off, daemon=True)
        thread.start()
        poll = Poller(f"https://127.0.0.1:{listener.getsockname()[1]}", 10.0, access=DISCOVERED).poll_once()
        thread.join(30.0)
    assert poll.error == f"TLS failed: the server broke off; {BROKE_OFF}"


def test_plain_http_behind_https_is_told(plain: PageServer) -> None:
    assert asked(plain, PLAIN).error == "TLS failed: no TLS is spoken there; write http:// in the URL"


def test_files_that_changed_hold_from_the_next_request_on(secured: PageServer, authority: Authority, tmp_path: Path) -> None:
    ca_file = tmp_path / "authority.pem"
    ca_file.write_bytes(Authority.create(tmp_path, "stranger").certificate.read_bytes())
    poller = Poller(f"https://127.0.0.1:{secured.port}", 10.0, access=Access(ca_file=str(ca_file)))
    assert poller.poll_once().page is None
    renewed = tmp_path / "renewed.pem"
    renewed.write_bytes(authority.certificate.read_bytes())
    renewed.replace(ca_file)
    assert poller.poll_once().page is not None


def test_an_unchanged_file_is_not_read_again(authority: Authority) -> None:
    credentials = Credentials(Access(ca_file=str(authority.certificate)))
    assert credentials.context() is credentials.context()


@pytest.mark.parametrize(
    ("key", "content", "problem"),
    [
        ("ca_file", None, "ca_file={path}: No such file or directory; put the file there or name another"),
        ("ca_file", b"nothing", "ca_file={path} holds no certificate in PEM form; name the one that signed the engine's"),
        ("cert_file", None, "cert_file={path}: No such file or directory; put the file there or name another"),
        ("cert_file", b"nothing", "cert_file={path} are no certificate with its key in PEM form; name the key with key_file"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, secured: PageServer, key: str, content: bytes | None, problem: str) -> None:
    path = tmp_path / "file.pem"
    if content is not None:
        path.write_bytes(content)
    poll = asked(secured, Access(**{key: str(path)}))
    assert (poll.error, poll.failed) == (problem.format(path=path), True)
    assert not secured.requests


def test_a_key_with_a_password_is_refused_without_asking_for_it(authority: Authority) -> None:
    locked = authority.issue("locked")
    certificates.encrypt(locked.key, "word")
    with pytest.raises(AccessError, match="the key has a password, which nobody could type here"):
        Credentials(Access(cert_file=str(locked.certificate), key_file=str(locked.key))).context()


def test_a_pipe_in_a_files_place_holds_nothing_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(AccessError, match="not an ordinary file"):
        Credentials(Access(bearer_token_file=str(tmp_path / "pipe"))).headers()


# ------------------------------------------------------------------------------------------------------------------ login
def authorization(server: PageServer) -> list[str | None]:
    return [headers.get("Authorization") for _, headers in server.requests]


def test_a_token_is_read_with_every_request(plain: PageServer, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    poller = Poller(plain.url, 10.0, access=Access(bearer_token_file=str(path)))
    assert poller.poll_once().page is not None
    path.write_text("second")
    poller.poll_once()
    assert authorization(plain) == [f"Bearer {TOKEN}"] * 2 + ["Bearer second"]  # the version was asked, too


def test_a_user_and_a_password_go_as_basic_auth(plain: PageServer, tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("pass wörd:1\n", encoding="utf-8")
    assert answered(asked(plain, Access(username="poise", password_file=str(path)), "http"))
    scheme, _, encoded = str(authorization(plain)[0]).partition(" ")
    assert (scheme, base64.b64decode(encoded).decode()) == ("Basic", "poise:pass wörd:1")


def test_secrets_may_stand_in_the_environment() -> None:
    environment = {"TOKEN": f" {TOKEN} ", "WORD": "p"}
    assert Credentials(Access(bearer_token_env="TOKEN"), environment).headers() == {"Authorization": f"Bearer {TOKEN}"}
    basic = Credentials(Access(username="u", password_env="WORD"), environment).headers()
    assert basic == {"Authorization": f"Basic {base64.b64encode(b'u:p').decode()}"}
    with pytest.raises(AccessError, match=r"bearer_token_env=GONE is empty; set it for the exporter"):
        Credentials(Access(bearer_token_env="GONE"), environment).headers()


@pytest.mark.parametrize(
    "content", [b"", b" \n", f"{TOKEN}\nX-Injected: 1".encode(), f"{TOKEN}\x00".encode(), b"\xff\xfe", "tökén".encode()]
)
def test_a_secret_that_no_header_can_carry_is_refused_without_being_shown(plain: PageServer, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    poll = asked(plain, Access(bearer_token_file=str(path)), "http")
    assert poll.page is None
    assert f"bearer_token_file={path}" in poll.error
    assert TOKEN not in poll.error
    assert not plain.requests


def test_a_redirect_is_refused_so_that_no_secret_goes_elsewhere(plain: PageServer, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    with serve(PageServer(PAGE)) as elsewhere:
        plain.fault = recorded.redirect(f"{elsewhere.url}/metrics")
        poll = asked(plain, Access(bearer_token_file=str(path)), "http")
        assert poll.error == "HTTP 302: redirects elsewhere, which is not followed"
        assert not elsewhere.requests


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, "HTTP 401; it wants a login; give bearer_token_file=FILE, or username=NAME,password_file=FILE"),
        (403, "HTTP 403; it does not let us in; check the token or the user"),
        (500, "HTTP 500"),
    ],
)
def test_a_refused_login_says_what_to_do(plain: PageServer, status: int, error: str) -> None:
    plain.fault = recorded.status(status)
    assert asked(plain, PLAIN, "http").error == error
