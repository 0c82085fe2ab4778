"""Activity by GPM: two samples that change places, what each metric and call may refuse, and what is given back to the driver."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterator

import pytest
from poise.exporter import metrics as m
from poise.exporter.nvml import gpm, identity
from poise.exporter.nvml.gpm import METRICS, SHORTEST_SECONDS
from poise.exporter.nvml.library import NvmlFailure
from poise.exporter.nvml.sampler import Sampler
from poise.exporter.nvml.worker import Timing
from poise.exporter.snapshot import Gpu, Reason
from poise.testbed.nvml.codes import Gpm, ReturnCode

from tests.simulated_cards import Bench, bench, simulated_library
from tests.waiting import wait_until

#: A little more than the driver wants between two samples.
INTERVAL = 0.2
TIMING = Timing(deadline=0.5, look=0.05, backoff=0.05, longest_backoff=0.1)
SAMPLE = "nvmlGpmSampleGet"
COMPARE = "nvmlGpmMetricsGet"


@pytest.fixture
def h20() -> Iterator[Bench]:
    with bench("h20x2") as cards:
        cards.node.gpus[0].set_gpm(Gpm.SM_UTIL, 40.0)
        yield cards


def given(gpu: Gpu) -> set[m.Metric]:
    return {metric for metric in METRICS if metric in gpu.readings}


def test_the_first_tick_has_no_sample_before_it_and_each_later_one_does(h20: Bench) -> None:
    first = h20.read()
    assert not given(first)
    assert not set(METRICS) & set(first.absent)
    for _ in range(3):
        assert h20.read(after=1.0).value(m.GPU_SM_ACTIVE) == pytest.approx(0.4)
    assert h20.node.calls("nvmlGpmSampleAlloc") == 2, "allocated once"
    assert h20.node.calls(SAMPLE, 0) == 4, "one sample a tick"


def test_a_value_is_the_average_since_the_tick_before(h20: Bench) -> None:
    h20.read()
    h20.node.gpus[0].set_gpm(Gpm.SM_UTIL, 100.0)
    assert 0.4 < (h20.read(after=1.0).value(m.GPU_SM_ACTIVE) or 0.0) <= 1.0
    h20.node.gpus[0].set_gpm(Gpm.SM_UTIL, 0.0)
    h20.read(after=1.0)
    assert h20.read(after=1.0).value(m.GPU_SM_ACTIVE) == pytest.approx(0.0)


def test_ticks_too_close_together_take_no_sample_and_keep_the_average(h20: Bench) -> None:
    h20.read()
    before = h20.read(after=1.0)
    asked = h20.node.calls(SAMPLE, 0)
    again = h20.read(after=SHORTEST_SECONDS / 2)
    assert h20.node.calls(SAMPLE, 0) == asked
    assert given(again) == set(METRICS)
    assert again.value(m.GPU_SM_ACTIVE) == before.value(m.GPU_SM_ACTIVE)


def test_after_a_long_gap_the_sample_before_says_nothing_of_now(h20: Bench) -> None:
    h20.read()
    assert given(h20.read(after=1.0))
    assert not given(h20.read(after=60.0))
    assert given(h20.read(after=1.0)) == set(METRICS)


def test_a_metric_that_the_card_lacks_is_absent_and_the_others_are_there(h20: Bench) -> None:
    h20.node.gpus[0].set_gpm(Gpm.ANY_TENSOR_UTIL, None)
    h20.read()
    gpu = h20.read(after=1.0)
    assert gpu.absent[m.GPU_TENSOR_ACTIVE] is Reason.NOT_SUPPORTED
    assert given(gpu) == set(METRICS) - {m.GPU_TENSOR_ACTIVE}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_left_out(value: float, h20: Bench) -> None:
    h20.node.gpus[0].set_gpm(Gpm.DRAM_BW_UTIL, value)
    h20.read()
    gpu = h20.read(after=1.0)
    assert gpu.absent[m.GPU_DRAM_ACTIVE] is Reason.ERROR
    assert given(gpu) == set(METRICS) - {m.GPU_DRAM_ACTIVE}
    assert h20.runs[0]["gpm"].success


def test_a_share_above_all_is_all(h20: Bench) -> None:
    h20.node.gpus[0].set_gpm(Gpm.SM_UTIL, 100.7)
    h20.read()
    assert h20.read(after=1.0).value(m.GPU_SM_ACTIVE) == 1.0


def test_a_want_of_permission_is_said_once_with_the_way_out(h20: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    h20.node.inject(SAMPLE, error=ReturnCode.NO_PERMISSION, gpu=0)
    gpu = h20.read()
    assert {gpu.absent[metric] for metric in METRICS} == {Reason.NO_PERMISSION}
    assert h20.runs[0]["gpm"].success, "a refusal is an answer"
    asked = h20.node.calls(SAMPLE, 0)
    h20.read(after=1.0)
    assert h20.node.calls(SAMPLE, 0) == asked, "not asked again"
    h20.prepare()
    assert h20.read(after=1.0).absent[m.GPU_SM_ACTIVE] is Reason.NO_PERMISSION
    assert caplog.text.count("no permission for activity counters") == 1
    assert "NVreg_RestrictProfilingToAdminUsers=0" in caplog.text
    h20.node.release()
    h20.prepare()
    h20.read(after=1.0)
    assert given(h20.read(after=1.0)) == set(METRICS)


@pytest.mark.parametrize("function", [SAMPLE, COMPARE])
def test_a_passing_error_costs_this_tick_only(function: str, h20: Bench) -> None:
    h20.read()
    h20.read(after=1.0)
    h20.node.inject(function, error=ReturnCode.UNKNOWN, times=1)
    gpu = h20.read(after=1.0)
    assert {gpu.absent[metric] for metric in METRICS} == {Reason.ERROR}
    assert not given(gpu)
    assert not h20.runs[0]["gpm"].success
    assert gpu.value(m.GPU_UTILIZATION) is not None
    assert given(h20.read(after=1.0)) == set(METRICS)


def test_samples_that_do_not_fit_are_no_last_word(h20: Bench) -> None:
    h20.read()
    h20.node.inject(COMPARE, error=ReturnCode.INVALID_ARGUMENT, times=1)
    assert not given(h20.read(after=1.0))
    assert given(h20.read(after=1.0)) == set(METRICS)


def test_no_room_for_a_sample_is_tried_again_and_loses_none(h20: Bench) -> None:
    h20.node.inject("nvmlGpmSampleAlloc", error=ReturnCode.MEMORY, times=1)
    assert h20.read().absent[m.GPU_SM_ACTIVE] is Reason.ERROR
    h20.read(after=1.0)
    assert given(h20.read(after=1.0)) == set(METRICS)
    h20.close()
    assert h20.node.calls("nvmlGpmSampleAlloc") - 1 == h20.node.calls("nvmlGpmSampleFree") == 2


def test_samples_are_given_back_when_the_reader_goes(h20: Bench) -> None:
    h20.read()
    for _ in range(3):
        h20.prepare()
        h20.read(after=1.0)
    h20.close()
    assert h20.node.calls("nvmlGpmSampleFree") == h20.node.calls("nvmlGpmSampleAlloc") == 2 * 4


def test_a_lost_card_ends_the_tick(h20: Bench) -> None:
    h20.read()
    h20.node.inject(SAMPLE, error=ReturnCode.GPU_IS_LOST, gpu=0)
    with pytest.raises(NvmlFailure):
        h20.read(after=1.0)


def test_no_sample_of_before_a_driver_reload_is_used_after_it() -> None:
    with simulated_library("h20x2") as (node, library):
        node.gpus[0].set_gpm(Gpm.SM_UTIL, 40.0)
        sampler = Sampler((identity.COLLECTOR, gpm.COLLECTOR), INTERVAL, library=library, timing=TIMING)
        sampler.start()

        def activity() -> float | None:
            return next((gpu.value(m.GPU_SM_ACTIVE) for gpu in sampler.view().gpus if gpu.index == 0 and gpu.up), None)

        try:
            wait_until(lambda: activity() == pytest.approx(0.4), "activity is measured")
            node.unload_driver()
            wait_until(lambda: not any(gpu.up for gpu in sampler.view().gpus), "the cards are down")
            node.gpus[0].set_gpm(Gpm.SM_UTIL, 70.0)
            node.load_driver()
            # With a sample of before, the first value would lie between the two.
            wait_until(lambda: activity() is not None, "activity is measured again")
            assert activity() == pytest.approx(0.7)
            assert sampler.view().collectors[-1].success
        finally:
            sampler.stop()
            assert sampler.join(60.0)
        assert node.calls("nvmlGpmSampleAlloc") == 2 * len(node.gpus) * 2, "two samples a card for each life of the driver"


def test_the_threads_give_their_samples_back_when_they_leave() -> None:
    with simulated_library("h20x2") as (node, library):
        sampler = Sampler((gpm.COLLECTOR,), INTERVAL, library=library, timing=dataclasses.replace(TIMING, prepare=INTERVAL))
        sampler.start()
        wait_until(lambda: node.calls("nvmlGpmSampleAlloc") > 3 * 2 * len(node.gpus), "readers were prepared anew some times")
        sampler.stop()
        assert sampler.join(60.0)
        assert node.calls("nvmlGpmSampleFree") == node.calls("nvmlGpmSampleAlloc")


@pytest.mark.parametrize(("profile", "reason"), [("driver535", Reason.NOT_SUPPORTED), ("pcie-x2", Reason.NOT_SUPPORTED)])
def test_cards_before_hopper_take_no_samples(profile: str, reason: Reason) -> None:
    with bench(profile) as cards:
        gpu = cards.read()
        assert {gpu.absent[metric] for metric in METRICS} == {reason}
        assert cards.node.calls(SAMPLE) == cards.node.calls("nvmlGpmSampleAlloc") == 0


def test_a_library_without_gpm_says_so() -> None:
    """The functions came with CUDA 11.8."""
    with bench("v100x2", driver="510.47.03") as cards:
        gpu = cards.read()
        assert {gpu.absent[metric] for metric in METRICS} == {Reason.FUNCTION_NOT_FOUND}
        assert cards.runs[0]["gpm"].success
