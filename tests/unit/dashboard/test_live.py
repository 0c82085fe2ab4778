"""The state behind the pages: scraping on a schedule, checks beside it, progress, and news for who waits."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from poise.dashboard.live import Live
from poise.dashboard.observation import ExporterMode, ExporterStatus
from poise.dashboard.progress import ProgressFile
from poise.history.fetch import FetchError
from poise.history.scrape import Scrape

from tests.node_scenes import FakeExporter, one_visible


def make(exporter: FakeExporter, url: str = "http://127.0.0.1:9", progress: Path | None = None, interval: float = 5.0) -> Live:
    file = ProgressFile(progress) if progress else None
    return Live(url, fetch=exporter, wall_clock=exporter.clock, clock=exporter.clock, interval=interval, progress=file)


def test_one_look_is_metrics_and_checks_of_the_same_exporter() -> None:
    exporter = FakeExporter(one_visible())
    live = make(exporter, "http://127.0.0.1:9/node/")
    before = live.version
    scrape = asyncio.run(live.scrape_once())
    assert scrape.up
    assert exporter.urls == ["http://127.0.0.1:9/node/metrics", "http://127.0.0.1:9/node/checks"]
    assert live.scraped
    assert live.version != before
    checks = live.observation().checks
    assert checks is not None
    assert checks.state == "problem"


def test_two_servers_started_at_one_time_never_share_the_name_of_a_state() -> None:
    exporter = FakeExporter(one_visible())
    assert make(exporter).version != make(exporter).version


def test_the_metrics_url_itself_may_be_given() -> None:
    assert make(FakeExporter(one_visible()), "http://127.0.0.1:9/metrics").exporter_url == "http://127.0.0.1:9"


def test_a_failing_exporter_leaves_no_verdict_and_costs_no_more_than_its_scrape() -> None:
    exporter = FakeExporter(one_visible(), error=FetchError("connection refused"))
    live = make(exporter)
    assert not asyncio.run(live.scrape_once()).up
    assert exporter.urls == ["http://127.0.0.1:9/metrics"]
    assert not live.scraped
    assert live.metrics.registry.get_sample_value("poise_dashboard_scrapes_total", {"result": "failure"}) == 1


def test_unreadable_checks_do_not_cost_the_series() -> None:
    class WithoutChecks(FakeExporter):
        async def __call__(self, url: str, *, timeout: float, limit: int, accept: str = "*/*") -> bytes:
            if url.endswith("/checks"):
                raise FetchError("answered with HTTP status 404")
            return await super().__call__(url, timeout=timeout, limit=limit, accept=accept)

    live = make(WithoutChecks(one_visible()))
    asyncio.run(live.scrape_once())
    observation = live.observation()
    assert observation.window.newest is not None
    assert observation.checks is None
    assert "404" in observation.checks_error


def test_the_exporter_is_looked_at_at_once_when_its_state_changes() -> None:
    exporter = FakeExporter(one_visible())
    live = make(exporter, interval=3_600.0)

    async def run() -> None:
        task = asyncio.create_task(live.run())
        async with asyncio.timeout(5):
            while len(exporter.urls) < 2:
                await asyncio.sleep(0.01)
            await live.set_exporter(ExporterStatus(ExporterMode.ATTACHED, "said"))
            while len(exporter.urls) < 4:
                await asyncio.sleep(0.01)
        assert live.observation().exporter.notice == "said"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def test_progress_is_noticed_and_a_broken_file_is_said(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    live = make(FakeExporter(one_visible()), progress=path)

    async def run() -> None:
        task = asyncio.create_task(live.run())
        async with asyncio.timeout(10):
            path.write_text(json.dumps({"title": "t", "steps": [{"name": "s", "state": "running"}], "updated": 1}))
            while live.observation().progress is None:
                await asyncio.sleep(0.02)
            path.write_text("{")
            while not live.observation().progress_error:
                await asyncio.sleep(0.02)
            path.unlink()
            while live.observation().progress_error:
                await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def test_closing_ends_all_who_wait() -> None:
    live = make(FakeExporter(one_visible()))

    async def wait() -> None:
        async for _ in live.versions(live.version, heartbeat=3_600):
            raise AssertionError("nothing happened")

    async def run() -> None:
        readers = [asyncio.create_task(wait()) for _ in range(3)]
        await asyncio.sleep(0.02)
        async with asyncio.timeout(5):
            await live.close()
            await asyncio.gather(*readers)

    asyncio.run(run())


def test_whatever_goes_wrong_around_a_look_the_next_one_comes_and_it_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poise.dashboard.live.RETRY", 0.01)
    exporter = FakeExporter(one_visible())
    kept: list[Scrape] = []

    def keep(scrape: Scrape) -> None:
        kept.append(scrape)
        if len(kept) < 4:
            raise MemoryError

    async def scenario() -> None:
        live = Live("http://127.0.0.1:9", fetch=exporter, wall_clock=exporter.clock, clock=exporter.clock, keep=keep)
        running = asyncio.create_task(live.run())
        async with asyncio.timeout(20):
            while len(kept) < 4:
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(scenario())
    assert caplog.text.count("the exporter could not be looked at") == 1
