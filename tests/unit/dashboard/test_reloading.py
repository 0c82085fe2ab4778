"""What SIGHUP brings about: one reading after the other, never on the event loop, and whatever goes wrong is said and harmless."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Sequence

import pytest
from poise.alerts.settings import AlertSettings
from poise.dashboard.reloading import Read, Reloading
from poise.exporter.settings import SettingsError
from poise.history.settings import HistorySettings

BOTH = (HistorySettings(), AlertSettings())


async def until_said(caplog: pytest.LogCaptureFixture, words: str) -> None:
    async with asyncio.timeout(10):
        while words not in caplog.text:
            await asyncio.sleep(0.005)


def say(read: Read, words: str, caplog: pytest.LogCaptureFixture, *, left: Sequence[str] = (), child: bool = False) -> None:
    """Wishes once and waits until `words` were logged."""
    caplog.set_level(logging.INFO)

    async def take(history: HistorySettings, alerts: AlertSettings) -> Sequence[str]:
        return left

    async def main() -> None:
        reloading = Reloading(read, take, lambda: child)
        task = asyncio.create_task(reloading.run())
        reloading.wish()
        await until_said(caplog, words)
        assert not task.done()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_it_says_what_was_read_and_what_needs_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    say(lambda: BOTH, "needs a restart: [history] path", caplog, left=["[history] path"], child=True)
    assert "rules, thresholds and targets are read anew; the exporter reads its settings" in caplog.text


def test_what_is_wrong_is_said_and_the_next_wish_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    def wrong() -> tuple[HistorySettings, AlertSettings]:
        raise SettingsError("poise.toml: no TOML")

    def broken() -> tuple[HistorySettings, AlertSettings]:
        raise MemoryError

    say(wrong, "page: rules, thresholds and targets stay as they were: poise.toml: no TOML", caplog)
    say(broken, "reading anew failed; what was in force stays so", caplog)


def test_reading_is_done_in_a_thread_and_wishes_meanwhile_are_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    readers, go = [], threading.Event()

    def slow() -> tuple[HistorySettings, AlertSettings]:
        readers.append(threading.current_thread())
        go.wait(10)
        return BOTH

    async def take(history: HistorySettings, alerts: AlertSettings) -> Sequence[str]:
        return ["last"] if len(readers) == 2 else []

    async def main() -> None:
        reloading = Reloading(slow, take, lambda: False)
        task = asyncio.create_task(reloading.run())
        reloading.wish()
        while not readers:
            await asyncio.sleep(0.005)
        for _ in range(5):
            reloading.wish()
        go.set()
        await until_said(caplog, "needs a restart: last")
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert len(readers) == 2
    assert threading.main_thread() not in readers
