"""Repetitions, intervals and verdicts."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from poise.testbed.comparison.statistics import estimate, judge, overlap, student

values = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=8)
several = st.lists(st.floats(1.0, 1e4), min_size=2, max_size=8)


@given(values)
def test_a_mean_lies_among_its_values_and_within_its_interval(found: list[float]) -> None:
    made = estimate(found)
    assert made.least <= made.mean <= made.most
    assert made.mean == pytest.approx(statistics.fmean(found))
    if len(found) == 1:
        assert (made.low, made.high, made.spread) == (None, None, None)
    else:
        assert made.low is not None
        assert made.high is not None
        assert made.low <= made.mean <= made.high
        assert made.spread is not None
        assert made.spread >= 0


def test_the_interval_is_students() -> None:
    """Three values 9, 10, 11: deviation 1, t of two degrees of freedom 4.303, over the root of 3."""
    made = estimate([9.0, 10.0, 11.0])
    assert (made.low, made.high) == (pytest.approx(10 - 4.303 / 3**0.5), pytest.approx(10 + 4.303 / 3**0.5))
    assert made.spread == pytest.approx(0.2)
    assert [student(n) for n in (1, 30, 31)] == [12.706, 2.042, 1.960]


def test_no_repetition_is_an_error() -> None:
    with pytest.raises(ValueError, match="no repetition"):
        estimate([])
    with pytest.raises(ValueError, match="0 degrees"):
        student(0)


@given(several)
def test_one_card_is_no_faster_than_itself(found: list[float]) -> None:
    made = estimate(found)
    assert overlap(made, made)
    verdict = judge(made, made, 1, 1, higher_is_better=True)
    assert verdict.faster is False
    assert verdict.ratio == 1
    assert verdict.words.startswith("no faster than one card: 1.00×, within the spread")


@settings(max_examples=50)
@given(several, several, st.integers(1, 8), st.booleans())
def test_faster_means_clear_of_the_other_and_better(shape: list[float], base: list[float], gpus: int, higher: bool) -> None:
    ours, theirs = estimate(shape), estimate(base)
    verdict = judge(ours, theirs, gpus, 1, higher_is_better=higher)
    assert verdict.per_gpu == pytest.approx(verdict.ratio / gpus)
    assert verdict.faster == (not overlap(ours, theirs) and (ours.mean > theirs.mean) == higher)
    assert verdict.words.startswith("no faster than one card") == (not verdict.faster)


@settings(max_examples=50)
@given(several, several, st.integers(1, 4))
def test_a_pair_is_never_faster_both_ways(first: list[float], second: list[float], gpus: int) -> None:
    one, other = estimate(first), estimate(second)
    assert not (judge(one, other, gpus, gpus, True).faster and judge(other, one, gpus, gpus, True).faster)


def test_words_say_by_how_much_and_what_it_costs() -> None:
    base = estimate([100.0, 101.0, 99.0])
    assert judge(estimate([180.0, 181.0, 179.0]), base, 2, 1, True).words == "1.80× one card, 0.90× per GPU"
    assert judge(estimate([60.0, 61.0, 59.0]), base, 2, 1, True).words == "no faster than one card: 0.60×, 0.30× per GPU"
    assert (
        judge(estimate([101.0, 102.0, 100.0]), base, 2, 1, True).words == "no faster than one card: 1.01×, within the spread, 0.51× per GPU"
    )
    half = judge(estimate([1.0, 1.01, 0.99]), estimate([2.0, 2.01, 1.99]), 2, 1, False)
    assert (half.faster, half.words) == (True, "2.00× one card, 1.00× per GPU")


def test_a_single_measurement_says_that_no_spread_is_known() -> None:
    verdict = judge(estimate([150.0]), estimate([100.0]), 2, 1, True)
    assert verdict.words == "1.50× one card, 0.75× per GPU, measured once: no spread known"
    assert judge(estimate([0.0]), estimate([0.0]), 2, 1, True).ratio == 0
