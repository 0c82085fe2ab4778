"""Moments and durations in all formats that Prometheus' HTTP API takes."""

from __future__ import annotations

import pytest
from poise.history.moments import length, moment, unix_seconds, written


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1435781430.781", 1435781430.781),
        ("1.5e3", 1500.0),
        ("-1", -1.0),
        ("2015-07-01T20:10:30.781Z", 1435781430.781),
        ("2015-07-01T22:10:30+02:00", 1435781430.0),
        ("292277025-08-18T07:12:54.999999999Z", 9_223_309_901_257_974.0),
    ],
)
def test_moments(text: str, seconds: float) -> None:
    assert unix_seconds(text) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize(
    "text", ["", "now", "nan", "inf", "1e999", "2015-07-01", "2015-13-01T00:00:00Z", "2015-07-01T20:10:30", "1_000", "0x10"]
)
def test_what_is_no_moment_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="to a valid timestamp") as caught:
        unix_seconds(text)
    assert f'"{text}"' in str(caught.value)


def test_durations_are_seconds_or_written_with_units() -> None:
    assert [length(text) for text in ("15", "0.5", "1h30m", "250ms", "1d")] == [15.0, 0.5, 5400.0, 0.25, 86_400.0]
    for text in ("1.5h", "5 min", "", "inf"):
        with pytest.raises(ValueError, match="to a valid duration"):
            length(text)


def test_moments_may_be_so_long_ago() -> None:
    assert moment("-24h", 100_000.0) == 13_600.0
    assert moment("-5", 100_000.0) == -5.0
    assert written(0.0) == "1970-01-01T00:00:00Z"
