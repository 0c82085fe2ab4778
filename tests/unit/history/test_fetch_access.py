"""TLS, login, compression and forms of the one HTTP exchange, against real sockets with real certificates."""

from __future__ import annotations

import asyncio
import base64
import gzip
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from poise.exporter.access import Access
from poise.exporter.engines.credentials import Credentials
from poise.history.fetch import Answer, Fetcher, FetchError, Request

from tests.certificates import Authority, Pair


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("server")


@pytest.fixture(scope="module")
def named_pair(authority: Authority) -> Pair:
    return authority.issue("named", "DNS:gpu-1.internal")


Seen = list[bytes]


@asynccontextmanager
async def serving(answer: bytes, seen: Seen, pair: Pair | None = None, clients: Authority | None = None) -> AsyncIterator[str]:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0)
            seen.append(head + await reader.readexactly(length))
            writer.write(answer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        finally:
            writer.close()

    context = None
    if pair is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        if clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(clients.certificate)
    listener = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
    try:
        yield f"{'https' if pair else 'http'}://127.0.0.1:{listener.sockets[0].getsockname()[1]}/metrics"
    finally:
        listener.close()


def ok(body: bytes, *headers: str) -> bytes:
    return "\r\n".join(("HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers, "", "")).encode() + body


def get(
    access: Access,
    answer: bytes = ok(b"a 1\n"),
    *,
    pair: Pair | None = None,
    clients: Authority | None = None,
    compressed: bool = False,
    environment: dict[str, str] | None = None,
    limit: int = 1000,
) -> tuple[bytes, Seen]:
    seen: Seen = []

    async def run() -> bytes:
        async with serving(answer, seen, pair, clients) as url:
            return await Fetcher(Credentials(access, environment or {}), compressed=compressed)(url, timeout=10.0, limit=limit)

    return asyncio.run(run()), seen


def test_an_authority_of_ones_own_is_trusted_and_no_other(authority: Authority, pair: Pair) -> None:
    assert get(Access(ca_file=str(authority.certificate)), pair=pair)[0] == b"a 1\n"
    with pytest.raises(FetchError, match=r"certificate cannot be verified: .*; name the authority that signed it with ca_file=FILE"):
        get(Access(), pair=pair)
    assert get(Access(insecure_skip_verify=True), pair=pair)[0] == b"a 1\n"


def test_the_name_in_the_certificate_can_be_said(authority: Authority, named_pair: Pair) -> None:
    ca = str(authority.certificate)
    assert get(Access(ca_file=ca, server_name="gpu-1.internal"), pair=named_pair)[0] == b"a 1\n"
    with pytest.raises(FetchError, match=r"does not name 127\.0\.0\.1; give a name that it carries with server_name=NAME"):
        get(Access(ca_file=ca), pair=named_pair)


def test_a_server_that_wants_our_certificate_gets_it(authority: Authority, pair: Pair) -> None:
    ca, ours = str(authority.certificate), authority.issue("client")
    access = Access(ca_file=ca, cert_file=str(ours.certificate), key_file=str(ours.key))
    assert get(access, pair=pair, clients=authority)[0] == b"a 1\n"
    with pytest.raises(FetchError, match="TLS failed"):
        get(Access(ca_file=ca), pair=pair, clients=authority)


def test_a_token_and_a_password_come_from_file_or_variable(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("geheim\n")
    _, seen = get(Access(bearer_token_file=str(tmp_path / "token")))
    assert b"\r\nAuthorization: Bearer geheim\r\n" in seen[0]
    _, seen = get(Access(username="me", password_env="PASSWORD"), environment={"PASSWORD": "geheim"})
    assert base64.b64encode(b"me:geheim") in seen[0]
    with pytest.raises(FetchError, match="bearer_token_file=/nowhere"):
        get(Access(bearer_token_file="/nowhere"))


def test_a_secret_is_not_sent_on_to_where_a_redirect_leads() -> None:
    moved = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    with pytest.raises(FetchError, match="HTTP status 302: redirects elsewhere, which is not followed"):
        get(Access(), moved)


def test_a_compressed_page_is_unpacked_within_its_limit() -> None:
    page = b"a 1\n" * 200
    packed = ok(gzip.compress(page), "Content-Encoding: gzip")
    body, seen = get(Access(), packed, compressed=True)
    assert body == page
    assert b"Accept-Encoding: gzip" in seen[0]
    with pytest.raises(FetchError, match="more than 100 bytes once it is unpacked"):
        get(Access(), packed, compressed=True, limit=100)
    with pytest.raises(FetchError, match="compressed and broken"):
        get(Access(), ok(b"nonsense", "Content-Encoding: gzip"), compressed=True)


@pytest.mark.parametrize("status", [200, 400, 422, 503])
def test_a_form_is_posted_and_any_status_comes_back_with_its_body(status: int) -> None:
    seen: Seen = []

    async def run() -> Answer:
        async with serving(f"HTTP/1.1 {status} X\r\nContent-Length: 2\r\n\r\n{{}}".encode(), seen) as url:
            request = Request("POST", {"Content-Type": "application/x-www-form-urlencoded"}, b"query=up")
            return await Fetcher().exchange(url, request, timeout=10.0, limit=100)

    assert asyncio.run(run()) == Answer(status, b"{}")
    assert seen[0].startswith(b"POST /metrics HTTP/1.1\r\n")
    assert seen[0].endswith(b"\r\n\r\nquery=up")
