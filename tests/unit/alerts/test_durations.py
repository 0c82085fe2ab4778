"""Durations as Prometheus writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.alerts.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("0s", 0), ("250ms", 0.25), ("5m", 300), ("1h30m", 5400), ("1d", 86400), ("1w", 604800), ("1y", 31536000), ("1m0s", 60)],
)
def test_durations_are_read_as_prometheus_reads_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "5 m", "1.5h", "m", "-5m", "5s1m", "5m5m", "five"])
def test_what_prometheus_refuses_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=f'"{text}" is no duration'):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=10**11))
def test_what_is_written_is_read_back(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == milliseconds / 1000


def test_a_duration_cannot_be_negative() -> None:
    with pytest.raises(ValueError, match="-1 s"):
        format_duration(-1)
