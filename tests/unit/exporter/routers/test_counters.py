"""Sums of counters of which some vanish, come back, or start again."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st
from poise.exporter.routers.counters import LOST_LIMIT, HeldSums


def test_the_series_of_one_count_are_added_up() -> None:
    sums: HeldSums[str] = HeldSums()
    assert sums.update({"r": {"a": 2.0, "b": 3.0}, "e": {}}) == {"r": 5.0, "e": 0.0}


def test_what_a_worker_did_stays_when_its_series_vanishes() -> None:
    sums: HeldSums[str] = HeldSums()
    sums.update({"r": {"a": 2.0, "b": 3.0}})
    assert sums.update({"r": {"b": 4.0}}) == {"r": 6.0}
    assert sums.update({"r": {"b": 5.0}}) == {"r": 7.0}


def test_a_worker_that_comes_back_goes_on_where_it_was_or_starts_again() -> None:
    sums: HeldSums[str] = HeldSums()
    sums.update({"r": {"a": 2.0, "b": 3.0, "c": 1.0}})
    sums.update({"r": {"c": 1.0}})
    assert sums.update({"r": {"a": 2.0, "b": 1.0, "c": 1.0}}) == {"r": 2.0 + 3.0 + 1.0 + 1.0}


def test_a_router_that_starts_again_counts_from_the_start() -> None:
    sums: HeldSums[str] = HeldSums()
    sums.update({"r": {"a": 2.0, "b": 3.0}, "e": {"a": 7.0}})
    sums.update({"r": {"b": 3.0}, "e": {"a": 7.0}})
    assert sums.update({"r": {"b": 1.0}, "e": {}}) == {"r": 1.0, "e": 0.0}
    assert sums.update({"r": {}, "e": {}}) == {"r": 0.0, "e": 0.0}


def test_what_is_remembered_is_limited() -> None:
    sums: HeldSums[str] = HeldSums()
    for number in range(3 * LOST_LIMIT):
        total = sums.update({"r": {f"w{number}": 1.0, "stays": 1.0}})
    assert total == {"r": 3 * LOST_LIMIT + 1.0}
    assert len(sums._lost["r"]) <= LOST_LIMIT


@settings(max_examples=50)
@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)), max_size=8))
def test_sums_never_fall_while_the_router_lives(steps: list[dict[str, int]]) -> None:
    """Each step raises counters by some amounts and shows only those that it names; one that always shows tells that it lives."""
    sums: HeldSums[str] = HeldSums()
    totals: dict[str, float] = {}
    before = 0.0
    for step in steps:
        for name, amount in step.items():
            totals[name] = totals.get(name, 0.0) + amount
        shown: Mapping[str, float] = {name: totals[name] for name in step} | {"alive": 1.0}
        total = sums.update({"r": shown})["r"]
        assert total == sum(totals.values()) + 1.0
        assert total >= before
        before = total
