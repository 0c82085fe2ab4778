"""The window of the last minutes: staleness, rates over resets, quantiles at both ends, and its bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.history.recent import Bound, Point, Quantile, RecentWindow
from poise.history.scrape import Scrape
from poise.history.text_format import Series, series

A = series("a_total", {"x": "1"})
START = 1_000_000.0


def window(*values: Mapping[Series, float], step: float = 5.0, **limits: float) -> RecentWindow:
    made = RecentWindow(**limits)  # type: ignore[arg-type]  # the tests pass floats for seconds and ints for series
    for position, samples in enumerate(values):
        made.append(Scrape(START + position * step, 0.01, samples))
    return made


def counter(*values: float) -> RecentWindow:
    return window(*({A: value} for value in values))


def test_a_series_that_the_newest_scrape_lacks_is_gone() -> None:
    b = series("b", {})
    w = window({A: 1, b: 1}, {b: 2})
    assert w.select("a_total") == []
    assert w.one("a_total") is None
    assert w.one("b") == 2


def test_a_failed_attempt_shows_as_such_and_keeps_the_newest_good_one() -> None:
    w = counter(1, 2)
    w.append(Scrape(START + 10, 4.0, error="connection refused"))
    assert w.attempt is not None
    assert w.attempt.error == "connection refused"
    assert w.newest is not None
    assert w.newest.at == START + 5
    assert w.one("a_total") == 2


def test_labels_select_and_a_missing_label_equals_an_empty_one() -> None:
    w = window({series("m", {"gpu": "0"}): 1, series("m", {"gpu": "1", "kind": "k"}): 2})
    assert w.one("m", gpu="1") == 2
    assert w.one("m", kind="") == 1
    assert w.total("m") == 3
    assert w.total("m", gpu="9") is None


def test_rate_is_the_increase_between_first_and_last_sample_per_second() -> None:
    w = counter(100, 110, 120, 130)
    assert w.increase(A, 60) == 30
    assert w.rate(A, 60) == pytest.approx(2.0)
    assert w.rate(A, 5) == pytest.approx(2.0)
    assert w.total_rate("a_total", 60) == pytest.approx(2.0)


def test_a_reset_counts_from_zero() -> None:
    w = counter(100, 110, 4, 6)
    assert w.increase(A, 60) == 10 + 4 + 2
    assert w.rate(A, 60) == pytest.approx(16 / 15)
    assert w.slopes(A, 60) == [Point(START + 5, 2.0), Point(START + 10, 0.8), Point(START + 15, 0.4)]


def test_one_sample_has_no_rate() -> None:
    w = counter(100)
    assert w.rate(A, 60) is None
    assert w.increase(A, 60) is None
    assert w.total_rate("a_total", 60) is None
    assert w.slopes(A, 60) == []
    assert w.points(A, 60) == [Point(START, 100)]


def test_not_a_number_is_no_sample() -> None:
    assert window({A: math.nan}).one("a_total") is None


def test_samples_older_than_the_window_are_forgotten_and_series_with_them() -> None:
    b = series("b", {})
    w = window({A: 1, b: 1}, *({b: n} for n in range(10)), seconds=20)
    assert w.points(b, 1_000)[0].at == START + 30
    assert w.size == 1


def test_over_the_limit_the_longest_gone_series_are_forgotten_first() -> None:
    w = window(*({series("m", {"pid": str(n)}): 1.0} for n in range(10)), max_series=3)
    assert w.size == 3
    assert [one.label("pid") for one in w.select("m")] == ["9"]


def test_after_a_clock_is_set_back_the_present_is_shown_and_what_has_times_to_come_is_gone() -> None:
    w = counter(1, 2)
    w.append(Scrape(START - 3600, 0.01, {A: 3}))
    w.append(Scrape(START - 3595, 0.01, {A: 5}))
    assert w.newest is not None
    assert (w.newest.at, w.one("a_total"), w.size) == (START - 3595, 5, 1)
    assert [point.value for point in w.points(A, 1_000)] == [3, 5]


def test_two_scrapes_of_one_moment_count_once() -> None:
    w = counter(1, 2)
    w.append(Scrape(START + 5, 0.01, {A: 3}))
    assert [point.value for point in w.points(A, 1_000)] == [1, 2]


# --------------------------------------------------------------------------------------------------------------- quantiles
def histogram(*counts: Sequence[float], bounds: Sequence[str] = ("0.1", "0.5", "1.0", "+Inf"), **labels: str) -> RecentWindow:
    """Cumulative counts per scrape."""
    keys = [series("h_bucket", {**labels, "le": bound}) for bound in bounds]
    return window(*(dict(zip(keys, row, strict=True)) for row in counts))


def test_a_quantile_is_linear_within_its_bucket() -> None:
    w = histogram((5, 5, 5, 5), (5, 15, 15, 15))
    assert w.quantile(0.5, "h", 60) == Quantile(pytest.approx(0.3), Bound.EXACT, 10)


def test_in_the_open_bucket_it_is_at_least_the_last_bound() -> None:
    assert histogram((0, 0, 0, 0), (0, 0, 1, 10)).quantile(0.95, "h", 60) == Quantile(1.0, Bound.AT_LEAST, 10)


def test_in_the_first_bucket_it_is_below_its_bound() -> None:
    assert histogram((0, 0, 0, 0), (9, 9, 9, 10)).quantile(0.5, "h", 60) == Quantile(0.1, Bound.BELOW, 10)


def test_without_observations_or_without_a_second_scrape_there_is_none() -> None:
    assert histogram((5, 5, 5, 5), (5, 5, 5, 5)).quantile(0.5, "h", 60) is None
    assert histogram((5, 5, 5, 5)).quantile(0.5, "h", 60) is None
    assert counter(1, 2).quantile(0.5, "h", 60) is None


def test_after_a_restart_all_buckets_count_from_zero_even_those_that_did_not_fall() -> None:
    w = histogram((90, 90, 100, 100), (0, 50, 50, 120))
    assert w.quantile(0.5, "h", 60) == Quantile(1.0, Bound.AT_LEAST, 120)
    assert w.quantile(0.2, "h", 60) == Quantile(pytest.approx(0.1 + 0.4 * 24 / 50), Bound.EXACT, 120)


def test_several_series_are_one_distribution() -> None:
    keys = {(rank, bound): series("h_bucket", {"dp_rank": rank, "le": bound}) for rank in "01" for bound in ("0.1", "0.5", "+Inf")}
    w = window(
        dict.fromkeys(keys.values(), 0.0), {key: (10.0 if rank == "0" or bound != "0.1" else 0.0) for (rank, bound), key in keys.items()}
    )
    found = w.quantile(0.75, "h", 60)
    assert found == Quantile(pytest.approx(0.3), Bound.EXACT, 20)
    assert w.quantile(0.75, "h", 60, dp_rank="0") == Quantile(0.1, Bound.BELOW, 10)


def test_other_bounds_within_the_window_are_another_server() -> None:
    old = {series("h_bucket", {"le": bound}): 5.0 for bound in ("0.1", "+Inf")}
    new = {series("h_bucket", {"le": bound}): 9.0 for bound in ("0.2", "+Inf")}
    assert window(old, new).quantile(0.5, "h", 60) is None
    assert window({series("h_bucket", {"le": "abc"}): 1.0}, {series("h_bucket", {"le": "abc"}): 2.0}).quantile(0.5, "h", 60) is None


@given(st.lists(st.lists(st.integers(0, 20), min_size=4, max_size=4), min_size=2, max_size=6), st.floats(0.01, 0.99))
def test_a_quantile_lies_within_the_bounds_whatever_the_counts(rows: list[list[int]], q: float) -> None:
    found = histogram(*[(a, a + b, a + b + c, a + b + c + d) for a, b, c, d in rows]).quantile(q, "h", 60)
    if found is not None:
        assert 0.1 <= found.value <= 1.0
        assert found.count > 0


@given(st.lists(st.floats(0, 1e9), min_size=2, max_size=20))
def test_an_increase_is_never_negative(values: list[float]) -> None:
    found = counter(*values).increase(A, 1_000)
    assert found is not None
    assert found >= 0
