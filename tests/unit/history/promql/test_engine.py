"""The engine on series small enough to check by hand: edges of ranges, staleness, resets, pairing, limits, and what goes wrong in words."""

from __future__ import annotations

import math

import numpy as np
import pytest
from poise.history.promql.engine import Engine, InstantVector, Matrix, ScalarValue, StringValue
from poise.history.promql.errors import BadQuery, ExecutionError, QueryTimeout
from poise.history.promql.evaluate import Semantics, Settings
from poise.history.promql.labels import labels, text
from poise.history.promql.limits import MOST_STEPS
from poise.history.promql.series import STALE, MemoryStorage, StoredSeries, stale_flags


def stored(name: str, samples: dict[float, float], **own: str) -> StoredSeries:
    """A series with samples at seconds."""
    times = np.array([round(at * 1000) for at in samples], dtype=np.int64)
    return StoredSeries(labels({"__name__": name, **own}), times, np.array(list(samples.values())))


def engine(*series: StoredSeries, semantics: Semantics = Semantics.PROMETHEUS_3) -> Engine:
    return Engine(MemoryStorage(series), Settings(semantics=semantics))


def values(ours: Engine, query: str, at: float) -> dict[str, float]:
    result = ours.instant(query, at)
    assert isinstance(result, InstantVector)
    return {text(sample.labels): sample.value for sample in result.samples}


MINUTES = {60.0 * n: 10.0 * n for n in range(11)}


# -------------------------------------------------------------------------------------------------------------------- edges
def test_a_range_is_open_on_its_far_side_as_in_prometheus_3() -> None:
    series = stored("x", MINUTES)
    assert values(engine(series), "count_over_time(x[2m])", 300) == {"{}": 2}
    assert values(engine(series, semantics=Semantics.PROMETHEUS_2), "count_over_time(x[2m])", 300) == {"{}": 3}


def test_a_sample_is_looked_back_for_five_minutes_and_not_a_millisecond_longer() -> None:
    series = stored("x", {0.0: 1.0})
    assert values(engine(series), "x", 299.999) == {"x{}": 1}
    assert values(engine(series), "x", 300) == {}
    assert values(engine(series, semantics=Semantics.PROMETHEUS_2), "x", 300) == {"x{}": 1}


def test_a_stale_marker_ends_a_series_at_once_and_is_in_no_range() -> None:
    series = stored("x", {0.0: 1.0, 10.0: 2.0, 20.0: STALE, 40.0: 3.0})
    ours = engine(series)
    assert values(ours, "x", 15) == {"x{}": 2}
    assert values(ours, "x", 25) == {}
    assert values(ours, "x", 41) == {"x{}": 3}
    assert values(ours, "count_over_time(x[50s])", 45) == {"{}": 3}


def test_only_the_very_bits_of_the_marker_are_stale() -> None:
    assert stale_flags(np.array([STALE, math.nan, 1.0])).tolist() == [True, False, False]
    found = values(engine(stored("x", {0.0: math.nan})), "x", 1)
    assert list(found) == ["x{}"]
    assert math.isnan(found["x{}"])


def test_offsets_shift_what_is_seen() -> None:
    ours = engine(stored("x", MINUTES))
    assert values(ours, "x offset 2m", 301) == {"x{}": 30}
    assert values(ours, "x offset -2m", 301) == {"x{}": 70}
    assert values(ours, "sum_over_time(x[90s] offset 1m)", 301) == {"{}": 70}


# --------------------------------------------------------------------------------------------------------------------- rate
def test_rate_is_extrapolated_to_the_edges_and_counts_a_reset_from_zero() -> None:
    ours = engine(stored("c", {at + 1.0: value for at, value in MINUTES.items()}))
    # Samples at 181, 241 and 301 within (121, 302] and 121 itself outside: 20 in 120 s, extrapolated over 181 s.
    assert values(ours, "increase(c[181s])", 302)["{}"] == pytest.approx(20 * (120 + 60 + 1) / 120)
    reset = engine(stored("c", {1.0: 100.0, 31.0: 130.0, 61.0: 5.0, 91.0: 25.0}))
    assert values(reset, "increase(c[92s])", 92)["{}"] == pytest.approx((25 - 100 + 130) * (90 + 1 + 1) / 90)
    assert values(reset, "resets(c[2m])", 92) == {"{}": 1}


def test_a_counter_is_not_extrapolated_below_zero() -> None:
    ours = engine(stored("c", {50.0: 1.0, 60.0: 11.0, 70.0: 21.0}))
    # It was 0 one second before its first sample: not the 5 s of half a distance are added, but 1.
    assert values(ours, "increase(c[1m])", 75)["{}"] == pytest.approx(20 * (20 + 1 + 5) / 20)


def test_one_sample_has_no_rate() -> None:
    assert values(engine(stored("c", {50.0: 1.0})), "rate(c[1m])", 60) == {}


def test_an_infinite_reset_spoils_only_the_ranges_that_it_is_in() -> None:
    samples = {0.0: math.inf, 10.0: 1.0, 20.0: 2.0, 30.0: 3.0, 40.0: 4.0}
    assert values(engine(stored("c", samples)), "increase(c[25s])", 41)["{}"] == pytest.approx(2 * (20 + 4 + 1) / 20)


# ------------------------------------------------------------------------------------------------------------------ pairing
GPUS = (
    stored("busy", {0.0: 0.9}, engine="e", gpu="0"),
    stored("busy", {0.0: 0.1}, engine="e", gpu="1"),
    stored("limit", {0.0: 2.0}, engine="e"),
)


def test_many_to_one_takes_labels_from_the_one() -> None:
    ours = engine(*GPUS, stored("info", {0.0: 1.0}, engine="e", model="m"))
    found = values(ours, "busy * on (engine) group_left (model) info", 1)
    assert found == {'{engine="e", gpu="0", model="m"}': 0.9, '{engine="e", gpu="1", model="m"}': 0.1}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("busy / on (engine) limit", "many-to-one matching must be explicit"),
        ("limit / on (engine) busy", "found duplicate series for the match group"),
        ("busy * on (engine) group_left busy", "matching labels must be unique on one side"),
        ('label_replace(busy, "gpu", "x", "gpu", ".*")', "same labelset"),
        ('label_join(busy, "not a name", "-", "gpu")', "invalid label name"),
        ("topk(NaN, busy)", "whole number"),
    ],
)
def test_what_is_ambiguous_is_an_error(query: str, words: str) -> None:
    with pytest.raises(ExecutionError, match=words):
        engine(*GPUS).instant(query, 1)


def test_ambiguity_is_judged_step_by_step() -> None:
    first, second = stored("x", {0.0: 1.0, 60.0: STALE}, a="1"), stored("x", {120.0: 2.0}, a="2")
    ours = engine(first, second, stored("y", dict.fromkeys((0.0, 60.0, 120.0), 1.0)))
    matrix = ours.range("x / on () y", 30, 150, 60)
    assert [row.values.tolist() for row in matrix.series] == [[1, 2]]
    with pytest.raises(ExecutionError):
        engine(first, stored("x", {30.0: 2.0}, a="2"), stored("y", {0.0: 1.0})).range("x / on () y", 0, 60, 30)


def test_the_imbalance_of_a_group() -> None:
    query = "round(1 - min by (engine) (busy) / max by (engine) (busy), 0.001) and max by (engine) (busy) > 0.3"
    assert values(engine(*GPUS), query, 1) == {'{engine="e"}': 0.889}


# ----------------------------------------------------------------------------------------------------------------- the door
def test_results_have_the_types_of_the_api() -> None:
    ours = engine(stored("x", MINUTES))
    assert ours.instant("1 + 1", 5) == ScalarValue(5_000, 2.0)
    assert ours.instant('"text"', 5) == StringValue(5_000, "text")
    window = ours.instant("x[2m]", 301)
    assert isinstance(window, Matrix)
    assert window.series[0].times.tolist() == [240_000, 300_000]
    assert ours.range("time()", 1, 3, 1).series[0].values.tolist() == [1, 2, 3]


def test_a_range_query_says_which_moments_can_be() -> None:
    ours = engine(stored("x", MINUTES))
    with pytest.raises(BadQuery, match=f"maximum of {MOST_STEPS}"):
        ours.range("x", 0, 100_000, 1)
    with pytest.raises(BadQuery, match="before start"):
        ours.range("x", 10, 5, 1)
    with pytest.raises(BadQuery, match="step"):
        ours.range("x", 0, 5, 0)
    with pytest.raises(BadQuery, match="no Unix time"):
        ours.instant("x", math.nan)
    with pytest.raises(BadQuery, match="range vector"):
        ours.range("x[5m]", 0, 5, 1)


def test_a_query_that_takes_too_long_or_too_much_ends() -> None:
    ticks = iter(range(100))
    with pytest.raises(QueryTimeout, match="shorter range"):
        Engine(MemoryStorage(GPUS), timeout=0.5, clock=lambda: float(next(ticks))).instant("busy", 1)
    with pytest.raises(ExecutionError, match="steps"):
        engine(*GPUS).instant("sum_over_time(busy[1000d:1s])", 1)


def test_a_sum_of_large_numbers_that_cancel_is_exact() -> None:
    ours = engine(stored("x", {1.0: 1e17, 2.0: 1.0, 3.0: -1e17}))
    assert values(ours, "sum_over_time(x[10s])", 4) == {"{}": 1}
    assert values(engine(stored("x", {1.0: 1.5e308, 2.0: 1.5e308})), "avg_over_time(x[10s])", 4) == {"{}": 1.5e308}


def test_sorted_elements_come_in_order_with_nan_last() -> None:
    series = [stored("x", {0.0: value}, n=str(place)) for place, value in enumerate((2.0, math.nan, 3.0, 1.0))]
    ours = engine(*series)
    assert [sample.value for sample in _samples(ours, "sort(x)")][:3] == [1, 2, 3]
    assert [sample.value for sample in _samples(ours, "sort_desc(x)")][:3] == [3, 2, 1]
    assert [sample.value for sample in _samples(ours, "topk(2, x)")] == [3, 2]


def _samples(ours: Engine, query: str) -> tuple[object, ...]:
    result = ours.instant(query, 1)
    assert isinstance(result, InstantVector)
    return result.samples
