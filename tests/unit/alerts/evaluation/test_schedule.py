"""The slots of a group."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from poise.alerts.evaluation import schedule

INTERVALS = st.integers(1, 3_600_000)
MOMENTS = st.integers(0, 4_000_000_000_000)


@given(st.text(max_size=20), INTERVALS, MOMENTS)
def test_a_slot_is_the_newest_that_is_not_after_now_and_the_next_follows_it(key: str, interval: int, now: int) -> None:
    slot = schedule.slot(key, interval, now)
    assert slot <= now < slot + interval == schedule.following(key, interval, now)
    assert schedule.slot(key, interval, slot) == slot
    assert (slot - schedule.offset(key, interval)) % interval == 0


def test_groups_do_not_all_run_at_once() -> None:
    assert len({schedule.offset(f"group {number}", 15_000) for number in range(20)}) > 15


def test_slots_that_were_missed_are_counted() -> None:
    assert schedule.missed(None, 60, 15) == 0
    assert schedule.missed(45, 60, 15) == 0
    assert schedule.missed(0, 60, 15) == 3
    assert schedule.missed(100, 60, 15) == 0


@given(st.dictionaries(st.sampled_from("abcdef"), INTERVALS, min_size=1), st.data(), MOMENTS)
def test_a_group_begins_after_those_whose_series_it_reads_and_a_circle_has_an_end(
    intervals: dict[str, int], data: st.DataObject, begin: int
) -> None:
    ordered = list(intervals)
    before = {key: data.draw(st.sets(st.sampled_from(ordered[:place]))) if place else set() for place, key in enumerate(ordered)}
    first = schedule.first_slots(intervals, before, begin)
    longest = max(intervals.values())
    for key, interval in intervals.items():
        assert first[key] == schedule.slot(key, interval, first[key])
        assert begin <= first[key] <= begin + 5 * longest
        if len(intervals) < 4:  # the chain is short enough
            assert all(first[other] <= first[key] for other in before[key])
    circle = {key: set(ordered) - {key} for key in ordered}
    assert all(begin <= one <= begin + 5 * longest for one in schedule.first_slots(intervals, circle, begin).values())
