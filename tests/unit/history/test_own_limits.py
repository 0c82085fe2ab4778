"""What this process lacks is told from what others do: no target is down because we have no descriptor, thread or memory."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
import threading
from collections.abc import Iterator

import pytest
from poise.history.fetch import Exhausted, FetchError, fetch
from poise.history.own_limits import own_limit
from poise.history.scrape import Scrape, Scraper
from poise.history.threads import started


@contextlib.contextmanager
def no_descriptor() -> Iterator[None]:
    """Nothing can be opened in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def no_thread() -> Iterator[None]:
    """The system starts no thread: what CPython raises then."""

    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(threading, "_start_new_thread", refuse)
        yield


def scraped(url: str, lacking: contextlib.AbstractContextManager[None]) -> Scrape:
    async def main() -> Scrape:
        with lacking:
            return await Scraper(url, wall_clock=lambda: 0.0, clock=lambda: 0.0).scrape()

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("host", "lacking", "words"),
    [("127.0.0.1", no_descriptor(), "no file descriptors left"), ("localhost", no_thread(), "can start no thread")],
)
def test_a_page_that_cannot_be_asked_for_is_no_scrape(host: str, lacking: contextlib.AbstractContextManager[None], words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        scrape = scraped(f"http://{host}:{server.getsockname()[1]}/metrics", lacking)
    assert (scrape.up, scrape.ours, words in scrape.error) == (False, True, True), scrape.error


def test_a_target_that_is_down_is_a_scrape_that_failed() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        scrape = scraped(f"http://127.0.0.1:{free.getsockname()[1]}/", contextlib.nullcontext())
    assert (scrape.up, scrape.ours) == (False, False)


def test_a_fault_of_ours_is_a_scrape_that_failed_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(url: str, *, timeout: float, limit: int, accept: str = "*/*") -> bytes:
        raise KeyError("odd")

    scraper = Scraper("http://x/", wall_clock=lambda: 0.0, clock=lambda: 0.0, get=broken)
    first, second = asyncio.run(scraper.scrape()), asyncio.run(scraper.scrape())
    assert first.error == second.error == "a fault of Poise: KeyError: 'odd'"
    assert not first.ours
    assert caplog.text.count("for a reason that is a fault of Poise") == 1


def test_the_error_says_what_is_lacking_and_is_one_of_fetching() -> None:
    async def main() -> None:
        with no_descriptor(), pytest.raises(Exhausted, match=r"ulimit -n"):
            await fetch("http://127.0.0.1:9/", timeout=5, limit=10)

    asyncio.run(main())
    assert issubclass(Exhausted, FetchError)


def test_what_is_beneath_an_error_counts_and_nothing_else_is_taken_for_it() -> None:
    def beneath() -> Exception:
        try:
            try:
                raise OSError(errno.EMFILE, "Too many open files", "ca.pem")
            except OSError:
                raise ValueError("ca.pem cannot be read") from None
        except ValueError as error:
            return error

    assert "descriptors" in own_limit(beneath())
    assert "memory" in own_limit(MemoryError())
    assert "memory" in own_limit(socket.gaierror(socket.EAI_MEMORY, "Memory allocation failure"))
    assert "descriptors" in own_limit(
        OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 9), [Errno 24] Too many open files")
    )
    for other in (
        ConnectionRefusedError(errno.ECONNREFUSED, "x"),
        socket.gaierror(socket.EAI_NONAME, "x"),
        RuntimeError("x"),
        OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 9), [Errno 111] Connect call failed ('127.0.0.1', 9)"),
        TimeoutError(),
    ):
        assert own_limit(other) == ""


def test_threads_are_there_when_there_are_no_more_and_a_pool_that_gets_none_says_so() -> None:
    pool = started(3, "test")
    with no_thread():
        together = threading.Barrier(4, timeout=20)
        for _ in range(3):
            pool.submit(together.wait)
        together.wait()
        with pytest.raises(RuntimeError, match="can't start new thread"):
            started(1, "test")
    pool.shutdown()
