"""How the history says how it does: on a page that promtool finds nothing to say about."""

from __future__ import annotations

import subprocess
from dataclasses import replace

from poise.history.scrape import Scrape
from poise.history.scraping import TargetStatus
from poise.history.self_metrics import HistoryCollector
from poise.history.store.store import StoreStatus
from poise.history.targets import parse_target
from prometheus_client import CollectorRegistry, generate_latest

from tests.needs import needs

STATUS = StoreStatus("/h.db", "", 10, 100, 5, 4096, 1.5, 2.5, 3, 7)


def page(status: StoreStatus, *targets: TargetStatus) -> str:
    registry = CollectorRegistry()
    registry.register(HistoryCollector(lambda: status, lambda: targets))
    return generate_latest(registry).decode()


def test_store_and_targets_are_told_and_promtool_agrees() -> None:
    target = TargetStatus(parse_target("n1=http://n1:9747"), Scrape(1, 0.1), 3, 2, 1, 40)
    text = page(STATUS, target)
    for line in (
        "poise_history_series 10.0",
        "poise_history_writing_failed 0.0",
        "poise_history_series_dropped_total 3.0",
        "poise_history_series_postponed_total 7.0",
        'poise_history_scrapes_total{instance="n1",job="poise",result="success"} 3.0',
        'poise_history_scrapes_total{instance="n1",job="poise",result="failure"} 2.0',
        'poise_history_scrapes_not_kept_total{instance="n1",job="poise"} 1.0',
        'poise_history_samples_scraped_total{instance="n1",job="poise"} 40.0',
        "poise_history_oldest_sample_timestamp_seconds 1.5",
    ):
        assert line in text.splitlines()
    done = subprocess.run([needs("promtool"), "check", "metrics"], input=text, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_disk_that_takes_nothing_shows_and_an_empty_store_has_no_times() -> None:
    text = page(replace(STATUS, error="disk full", oldest=None, newest=None))
    assert "poise_history_writing_failed 1.0" in text
    assert "timestamp" not in text
