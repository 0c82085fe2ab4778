"""The word for each source: live, late, stale, down, waiting."""

from __future__ import annotations

from dataclasses import replace

import pytest
from poise.dashboard.freshness import exporter_source
from poise.dashboard.observation import ExporterMode, ExporterStatus, Observation
from poise.dashboard.texts import ENGLISH
from poise.history.recent import RecentWindow
from poise.history.scrape import Scrape

from tests.node_scenes import tensor_parallel
from tests.unit.dashboard.pages import engine_of, page_of, watched


@pytest.mark.parametrize(
    ("silent", "error", "word"),
    [
        (0, "", "live"),
        (10, "", "live"),
        (12, "", "late"),
        (29, "", "late"),
        (31, "", "stale"),
        (5, "refused", "late"),
        (20, "refused", "down"),
    ],
)
def test_the_exporter_ages(silent: float, error: str, word: str) -> None:
    source = exporter_source(watched(tensor_parallel(), silent=silent, error=error), ENGLISH)
    assert source.word == word
    assert error in source.detail


def test_before_the_first_answer_it_is_waited_for_or_down() -> None:
    window = RecentWindow()
    nothing = Observation(0.0, 5.0, window)
    assert exporter_source(nothing, ENGLISH).state == "waiting"
    window.append(Scrape(0.0, 0.1, error="connection refused"))
    child = replace(nothing, exporter=ExporterStatus(ExporterMode.CHILD))
    attached = replace(nothing, exporter=ExporterStatus(ExporterMode.ATTACHED))
    assert exporter_source(child, ENGLISH).state == "waiting"
    assert exporter_source(attached, ENGLISH).state == "down"
    assert "connection refused" in exporter_source(attached, ENGLISH).detail


def test_an_engine_is_never_fresher_than_the_exporter() -> None:
    assert engine_of(page_of(tensor_parallel(), silent=15)).source.state == "late"
    assert engine_of(page_of(tensor_parallel(), silent=60, error="refused")).source.state == "stale"
    assert engine_of(page_of(tensor_parallel())).source.state == "live"
