"""Polling real sockets: recorded pages, and servers that break every rule. Each costs its engine the page and names the reason."""

from __future__ import annotations

import gzip
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator

import pytest
from poise.exporter import metrics as m
from poise.exporter.engines import dialects
from poise.exporter.engines import poll as poll_module
from poise.exporter.engines.fetch import Fetcher, FetchError
from poise.exporter.engines.page import Limits
from poise.exporter.engines.poll import Poll, Poller

from tests import recorded
from tests.recorded import CAPTURES, PageServer, serve

TP2 = CAPTURES / "tp2-server-after.prom"
#: Far longer than any step takes on a slow machine; only reached when something hangs.
DEADLINE = 30.0


def packed(body: bytes, encoding: str, content_type: str = "text/plain") -> recorded.Fault:
    """An answer with a Content-Encoding that was not asked for, as some proxies send it."""
    return lambda handler: recorded.answer(handler, body, content_type, Content_Encoding=encoding)


@pytest.fixture
def server() -> Iterator[PageServer]:
    with serve(PageServer(TP2)) as running:
        yield running


def polled(url: str, *, interval: float = 10.0, limits: Limits | None = None) -> Poll:
    return Poller(url, interval, limits=limits).poll_once()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "not reached in time"
        time.sleep(0.01)


def test_a_page_is_fetched_and_understood(server: PageServer) -> None:
    poll = polled(server.url)
    assert poll.page is not None
    assert poll.page.version == "0.32.0"
    assert poll.page.work[0].value(m.ENGINE_PROMPT_TOKENS) == 20689
    assert (poll.error, poll.failed, poll.failures) == ("", False, 0)
    assert poll.rtt is not None
    assert 0 <= poll.rtt <= DEADLINE
    path, headers = server.requests[0]
    assert (path, headers["Accept"], headers["Accept-Encoding"]) == ("/metrics", "text/plain; version=0.0.4", "identity")


def test_the_version_is_asked_once(server: PageServer) -> None:
    poller = Poller(server.url, 10.0)
    for _ in range(3):
        poller.poll_once()
    assert [path for path, _ in server.requests].count("/version") == 1


def test_an_engine_that_tells_no_version_is_understood_by_its_families(server: PageServer) -> None:
    server.version = None
    poll = polled(server.url)
    assert poll.page is not None
    assert (poll.page.version, poll.page.missing) == ("", ())
    assert len(poll.page.work[0].readings) == 17


def test_a_page_below_a_path(server: PageServer) -> None:
    poll = polled(server.url + "/prefix")
    assert poll.error == "HTTP 404; the URL has to be what stands before /metrics"
    assert server.requests[0][0] == "/prefix/metrics"


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (recorded.status(404), "HTTP 404; the URL has to be what stands before /metrics"),
        (recorded.status(503), "HTTP 503"),
        (recorded.redirect("http://169.254.169.254/latest"), "HTTP 302: redirects elsewhere, which is not followed"),
        (recorded.html, "the answer is HTML, no metrics page"),
        (recorded.binary, "the page is not UTF-8 text"),
        (recorded.gzip_bomb(50_000_000), "the answer has more than 16777216 bytes once it is unpacked"),
        (packed(b"x" * 1000, "br"), "the answer is compressed in a way that was not asked for"),
        (packed(b"no gzip at all", "gzip"), "the answer is compressed and broken"),
        (packed(gzip.compress(TP2.read_bytes())[:-100], "gzip"), "the answer is cut off"),
        (packed(b"", "gzip"), "the answer is cut off"),
        (recorded.endless_line(1_000_000), "a line is longer than 65536 characters"),
        (recorded.huge(50_000_000, announced=True), "the answer has 50000000 bytes, more than 16777216"),
        (recorded.huge(50_000_000, announced=False), "the answer has more than 16777216 bytes"),
        (recorded.cut_off(TP2.read_bytes()), "the answer is cut off"),
        (lambda handler: recorded.answer(handler, b"go_goroutines 5\n", "text/plain"), "the page has none of vLLM's series"),
        (lambda handler: recorded.answer(handler, b"", "text/plain"), "the page has none of vLLM's series"),
        (lambda handler: handler.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n"), "the answer is no HTTP: BadStatusLine"),
        (lambda handler: handler.connection.shutdown(socket.SHUT_RDWR), "the answer is no HTTP: RemoteDisconnected"),
    ],
)
def test_a_broken_answer_costs_the_page_and_names_the_reason(server: PageServer, fault: recorded.Fault, error: str) -> None:
    server.fault = fault
    poll = polled(server.url)
    assert (poll.page, poll.error, poll.failed, poll.failures) == (None, error, True, 1)


@pytest.mark.parametrize("fault", [recorded.drip, recorded.silence])
def test_a_slow_answer_ends_at_the_deadline(server: PageServer, fault: Callable[[PageServer], recorded.Fault]) -> None:
    server.fault = fault(server)
    poll = polled(server.url, interval=0.5)
    assert (poll.page, poll.error, poll.failed) == (None, "no answer within 0.4 s", True)


def test_nothing_listening_is_no_failure_but_a_page_is_missing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    poll = polled(f"http://127.0.0.1:{port}")
    assert (poll.page, poll.error, poll.failed) == (None, "connection refused: nothing listens there", False)


def test_a_name_that_does_not_exist_is_told() -> None:
    poll = polled("http://no-such-host.invalid:8000")
    assert poll.page is None
    assert poll.failed
    assert poll.error


def test_an_engine_that_loads_is_looked_at_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll_module, "LOADING_INTERVAL", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    poller = Poller(f"http://127.0.0.1:{port}", 3600.0)
    poller.start()
    wait_for(lambda: "refused" in poller.latest.error)
    with serve(PageServer(TP2), port):
        wait_for(lambda: poller.latest.page is not None)
        poller.stop()
        poller.join(DEADLINE)


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("x-gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_page_that_a_proxy_compressed_is_unpacked(server: PageServer, encoding: str, pack: Callable[[bytes], bytes]) -> None:
    server.fault = packed(pack(TP2.read_bytes()), encoding)
    assert polled(server.url).page is not None


def test_openmetrics_is_understood_though_it_was_not_asked_for(server: PageServer) -> None:
    page = (CAPTURES / "generations" / "0.33.0-rust.prom").read_bytes()
    server.fault = lambda handler: recorded.answer(handler, page, "application/openmetrics-text; version=1.0.0; charset=utf-8")
    poll = polled(server.url)
    assert poll.page is not None
    assert poll.page.work[0].value(m.ENGINE_PROMPT_TOKENS) == 1400


def test_no_page_outlives_a_failed_poll(server: PageServer) -> None:
    poller = Poller(server.url, 10.0)
    first = poller.poll_once()
    server.fault = recorded.status(500)
    second = poller.poll_once()
    assert (second.page, second.last_page_at) == (None, first.polled_at)
    server.fault, server.version = None, "0.33.0"
    third = poller.poll_once()
    assert third.page is not None
    assert third.page.version == "0.33.0"  # another process may answer now
    assert third.failures == 1


def test_a_page_that_gets_old_is_not_shown(server: PageServer) -> None:
    later = [0.0]
    poller = Poller(server.url, 5.0, clock=lambda: time.monotonic() + later[0])
    poller.poll_once()
    assert poller.latest.page is not None
    later[0] = 60.0
    assert poller.latest.page is None
    assert "stale" in poller.latest.error


def test_it_polls_again_and_again_and_stops(server: PageServer) -> None:
    poller = Poller(server.url, 0.05)
    poller.start()
    wait_for(lambda: [path for path, _ in server.requests].count("/metrics") >= 3)
    poller.stop()
    poller.join(DEADLINE)
    assert not poller.alive


@pytest.mark.parametrize("fault", [recorded.drip, recorded.silence])
def test_stopping_ends_a_poll_in_flight(server: PageServer, fault: Callable[[PageServer], recorded.Fault]) -> None:
    server.fault = fault(server)
    poller = Poller(server.url, 3600.0)
    poller.start()
    wait_for(lambda: bool(server.requests))
    poller.stop()
    poller.join(5.0)  # the poll itself would have gone on for 10 s
    assert not poller.alive


def test_a_stopped_fetcher_refuses_at_once(server: PageServer) -> None:
    fetcher = Fetcher(server.url, time.monotonic)
    fetcher.abort()
    with pytest.raises(FetchError):
        fetcher.get("/metrics", {}, 1.0, 1000)


class Secured(socket.socket):
    """As ssl's: told to end, it would go on in the clear for those who use it at that moment."""

    def shutdown(self, how: int) -> None:
        raise AssertionError("the cipher is dropped")


def test_ending_a_request_leaves_its_cipher_in_place(server: PageServer) -> None:
    fetcher = Fetcher(server.url, time.monotonic)
    ours, theirs = socket.socketpair()
    with Secured(fileno=ours.detach()) as secured, theirs:
        fetcher._socket = secured
        fetcher.abort()
        assert theirs.recv(1) == b""


def test_one_engine_that_hangs_does_not_hold_another(server: PageServer) -> None:
    with serve(PageServer(TP2)) as hanging:
        hanging.fault = recorded.silence(hanging)
        slow, quick = Poller(hanging.url, 5.0), Poller(server.url, 5.0)
        slow.start()
        wait_for(lambda: bool(hanging.requests))
        assert quick.poll_once().page is not None
        assert slow.latest.page is None
        slow.stop()
        slow.join(DEADLINE)
    assert threading.active_count() < 50


def test_a_reader_that_breaks_is_told_and_polling_goes_on(
    server: PageServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    poller = Poller(server.url, 0.05)
    with monkeypatch.context() as patch:
        patch.setattr(dialects, "read_page", lambda *_: 1 / 0)
        poller.start()
        wait_for(lambda: poller.latest.failures >= 1)
        assert (poller.latest.page, poller.latest.error, poller.latest.failed) == (None, "internal error: ZeroDivisionError", True)
    wait_for(lambda: poller.latest.page is not None)
    poller.stop()
    poller.join(DEADLINE)
    assert "reading the page" in caplog.text
