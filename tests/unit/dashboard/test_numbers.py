"""How numbers are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.dashboard import numbers
from poise.history.recent import Bound, Quantile


def plain(text: str) -> str:
    return text.replace(numbers.SPACE, " ")


@pytest.mark.parametrize(("ratio", "text"), [(0, "0 %"), (0.004, "<1 %"), (0.973, "97 %"), (1, "100 %")])
def test_percent(ratio: float, text: str) -> None:
    assert plain(numbers.percent(ratio)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 ms"),
        (0.0004, "0.40 ms"),
        (0.0042, "4.2 ms"),
        (0.042, "42 ms"),
        (1.253, "1.25 s"),
        (42, "42 s"),
        (600, "10 min"),
        (9000, "2 h"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert plain(numbers.seconds(value)) == text


@pytest.mark.parametrize(("gib", "text"), [(0, "0 GiB"), (0.01, "<0.1 GiB"), (71.24, "71.2 GiB"), (141.2, "141 GiB")])
def test_gibibytes(gib: float, text: str) -> None:
    assert plain(numbers.gibibytes(gib * numbers.GIBIBYTE)) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (12.4e9, "12.4 GB/s"), (340e6, "340 MB/s"), (4_200, "4.2 kB/s"), (12, "12 B/s")])
def test_bytes_per_second(value: float, text: str) -> None:
    assert plain(numbers.bytes_per_second(value)) == text


def test_both_directions_share_the_unit_of_the_larger() -> None:
    assert plain(numbers.both_directions(12.4e9, 12.1e9)) == "12.4 / 12.1 GB/s"
    assert plain(numbers.both_directions(12.4e9, 0)) == "12.4 / 0 GB/s"
    assert numbers.both_directions(0, 0) == "0 / 0"


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (0.001, "<0.01"), (0.346, "0.35"), (12.4, "12.4"), (1240, "1,240")])
def test_per_second(value: float, text: str) -> None:
    assert numbers.per_second(value) == text


def test_quantiles_say_when_they_are_only_a_bound() -> None:
    assert plain(numbers.quantile_text(Quantile(10, Bound.AT_LEAST, 1))) == "≥ 10 s"
    assert plain(numbers.quantile_text(Quantile(0.001, Bound.BELOW, 1))) == "< 1.0 ms"
    assert plain(numbers.quantile_text(Quantile(0.042, Bound.EXACT, 1))) == "42 ms"


@given(st.text(max_size=2_000))
def test_untrusted_text_becomes_one_short_printable_line(text: str) -> None:
    short = numbers.shortened(text, 80)
    assert len(short) <= 80
    assert short.isprintable()


def test_direction_overrides_and_control_characters_are_dropped() -> None:
    assert numbers.shortened("a\u202eb\x1b[31m\nc\x00") == "a b [31m c"
