"""Busy seconds and peak: the integral over the driver's ring equals what was put in, with gaps, silence and reloads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.exporter import metrics as m
from poise.exporter.nvml.utilization import PEAK_SECONDS, SILENT_SECONDS, BusyMeter
from poise.testbed.nvml.codes import ReturnCode

from tests.simulated_cards import START, bench

#: NVML's own sample period at its fastest.
PERIOD = 1 / 6


def test_busy_seconds_of_the_ring_count_bursts_that_the_gauge_misses() -> None:
    """A burst between two ticks is over when the gauge is read; the driver's samples have it."""
    with bench("h20x2") as cards:
        gpu = cards.node.gpus[0]
        gpu.set_utilization(0.0)
        gpu.push_utilization(0.0, START)
        assert cards.read().value(m.GPU_BUSY_SECONDS) == 0
        for number in range(1, 7):
            gpu.push_utilization(1.0 if number in (2, 3) else 0.0, START + number * PERIOD)
        after = cards.read(after=1.0)
        assert after.value(m.GPU_BUSY_SECONDS) == pytest.approx(2 * PERIOD, abs=1e-4)
        assert after.value(m.GPU_UTILIZATION) == 0
        assert after.value(m.GPU_UTILIZATION_PEAK) == 1


def test_what_was_in_the_ring_before_the_start_is_peak_and_not_busy_time() -> None:
    with bench("h20x2") as cards:
        for number in range(60):
            cards.node.gpus[0].push_utilization(0.5, START - 10 + number * PERIOD)
        gpu = cards.read()
        assert gpu.value(m.GPU_BUSY_SECONDS) == 0
        assert gpu.value(m.GPU_UTILIZATION_PEAK) == 0.5


def test_the_gauge_is_integrated_where_the_card_has_no_ring() -> None:
    with bench("h20x2") as cards:
        cards.node.gpus[0].refuse("nvmlDeviceGetSamples", ReturnCode.NOT_SUPPORTED)
        cards.prepare()
        cards.node.gpus[0].set_utilization(0.5)
        assert cards.read().value(m.GPU_BUSY_SECONDS) == 0
        for _ in range(10):
            gpu = cards.read(after=1.0)
        assert gpu.value(m.GPU_BUSY_SECONDS) == pytest.approx(5.0)
        assert gpu.value(m.GPU_UTILIZATION_PEAK) == 0.5


def test_busy_seconds_go_on_over_a_lost_card() -> None:
    with bench("h20x2") as cards:
        gpu = cards.node.gpus[0]
        gpu.push_utilization(1.0, START)
        cards.read()
        gpu.push_utilization(1.0, START + 1)
        assert cards.read(after=1.0).value(m.GPU_BUSY_SECONDS) == pytest.approx(1.0)
        cards.prepare()
        gpu.push_utilization(1.0, START + 100)
        assert cards.read(after=99.0).value(m.GPU_BUSY_SECONDS) == pytest.approx(1.0), "time that nobody watched is not counted"
        gpu.push_utilization(1.0, START + 101)
        assert cards.read(after=1.0).value(m.GPU_BUSY_SECONDS) == pytest.approx(2.0)


def test_more_samples_than_the_buffer_holds_are_all_counted() -> None:
    with bench("h20x2") as cards:
        gpu = cards.node.gpus[0]
        gpu.push_utilization(0.0, START)
        cards.read()
        for number in range(1, 101):
            gpu.push_utilization(1.0, START + number / 100)
        assert cards.read(after=1.0).value(m.GPU_BUSY_SECONDS) == pytest.approx(1.0, abs=1e-4)


@given(
    ratio=st.floats(0.0, 1.0),
    ticks=st.lists(st.integers(0, 8), min_size=1, max_size=40),
)
def test_a_constant_ratio_gives_its_share_of_the_time_however_samples_come(ratio: float, ticks: list[int]) -> None:
    """`ticks`: samples that arrive with each tick, spread over the second before; none for several ticks is a silent ring."""
    meter = BusyMeter()
    now = 1000.0
    meter.advance(now, [(int(now * 1e6), ratio)], ratio, longest_gap=3.0)
    for count in ticks:
        now += 1.0
        samples = [(int((now - 1 + (number + 1) / count) * 1e6), ratio) for number in range(count)]
        meter.advance(now, samples, ratio, longest_gap=3.0)
    trailing = 0
    for count in reversed(ticks):
        if count:
            break
        trailing += 1
    unseen = trailing if trailing <= SILENT_SECONDS else 0
    assert meter.busy_seconds == pytest.approx(ratio * (len(ticks) - unseen), abs=0.01)
    assert meter.peak == pytest.approx(ratio)


@given(st.lists(st.tuples(st.floats(0.1, 30.0), st.floats(0.0, 1.0)), min_size=1, max_size=50))
def test_the_peak_is_the_highest_of_the_last_minute(steps: list[tuple[float, float]]) -> None:
    meter = BusyMeter()
    now = 0.0
    seen: list[tuple[float, float]] = []
    for pause, ratio in steps:
        now += pause
        seen.append((now, ratio))
        meter.advance(now, [], ratio, longest_gap=3.0)
        assert meter.peak == max(value for when, value in seen if when >= now - PEAK_SECONDS)


@given(st.lists(st.tuples(st.integers(0, 10**12), st.floats(0, 1)), max_size=30), st.lists(st.floats(0, 100), min_size=1, max_size=5))
def test_busy_seconds_never_fall_and_never_outrun_time(samples: list[tuple[int, float]], pauses: list[float]) -> None:
    meter = BusyMeter()
    now = 0.0
    before = 0.0
    samples.sort()
    for pause in pauses:
        now += pause
        meter.advance(now, [sample for sample in samples if sample[0] > meter.last_stamp][:10], 1.0, longest_gap=3.0)
        assert meter.busy_seconds >= before
        before = meter.busy_seconds
