"""A scrape: samples, duration and up; or an error in words and no samples."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest
from poise.history.fetch import FetchError
from poise.history.scrape import Fetch, Scrape, Scraper
from poise.history.text_format import series


def scrape(get: Fetch) -> Scrape:
    clock = iter((10.0, 10.25))
    return asyncio.run(Scraper("http://x/metrics", wall_clock=lambda: 1_000.0, clock=lambda: next(clock), get=get).scrape())


def returning(answer: bytes | Exception) -> Fetch:
    async def get(url: str, *, timeout: float, limit: int, accept: str = "*/*") -> bytes:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return get


def test_a_good_page_is_up_with_its_samples_and_duration() -> None:
    result = scrape(returning(b"a 1\n"))
    assert (result.up, result.at, result.duration, result.error) == (True, 1_000.0, 0.25, "")
    assert result.samples == {series("a", {}): 1.0}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (FetchError("connection refused"), "connection refused"),
        (b"<html>", "line 1"),
        (b"# nothing\n", "the page holds no series"),
    ],
)
def test_what_goes_wrong_is_said_and_never_raised(answer: bytes | Exception, words: str) -> None:
    result = scrape(returning(answer))
    assert not result.up
    assert words in result.error
    assert result.samples == {}


def test_the_timeout_and_the_limit_reach_the_network() -> None:
    asked: list[tuple[str, float, int, str]] = []

    def get(url: str, *, timeout: float, limit: int, accept: str = "*/*") -> Awaitable[bytes]:
        asked.append((url, timeout, limit, accept))
        return returning(b"a 1\n")(url, timeout=timeout, limit=limit)

    asyncio.run(Scraper("http://x/metrics", wall_clock=lambda: 0.0, clock=lambda: 0.0, timeout=2.0, limit=99, get=get).scrape())
    assert asked[0][:3] == ("http://x/metrics", 2.0, 99)
    assert "version=0.0.4" in asked[0][3]
