"""GPU performance monitoring: averages between two samples."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import pytest
from poise.testbed.nvml.codes import Gpm

from tests.simulated import Simulation

LATE_METRIC = 261  # NVML_GPM_METRIC_NVLINK_L0_RX: newer than every profile's driver


def averages(n: Any, older: Any, newer: Any, *metrics: int) -> list[float | str]:
    request = n.c_nvmlGpmMetricsGet_t()
    request.version = n.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics, request.sample1, request.sample2 = len(metrics), older, newer
    for index, metric in enumerate(metrics):
        request.metrics[index].metricId = metric
    n.nvmlGpmMetricsGet(request)
    return [f"error {answer.nvmlReturn}" if answer.nvmlReturn else answer.value for answer in request.metrics[: len(metrics)]]


def sample(n: Any, handle: Any) -> Any:
    taken = n.nvmlGpmSampleAlloc()
    n.nvmlGpmSampleGet(handle, taken)
    return taken


def test_a_steady_metric_is_its_value(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, card = simulation.pynvml, simulation.node.gpus[0]
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    assert n.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice == 1
    card.set_gpm(Gpm.SM_UTIL, 63.5)
    card.set_gpm(Gpm.PCIE_TX_PER_SEC, 1500.0)
    older = sample(n, handle)
    time.sleep(0.01)
    newer = sample(n, handle)
    found = averages(n, older, newer, Gpm.SM_UTIL, Gpm.PCIE_TX_PER_SEC, Gpm.DRAM_BW_UTIL, 62)
    assert found == [pytest.approx(63.5), pytest.approx(1500.0), 0.0, 0.0]


def test_a_metric_that_moved_is_averaged_over_the_time_between(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, card = simulation.pynvml, simulation.node.gpus[0]
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    card.set_gpm(Gpm.SM_UTIL, 0.0)
    began = time.monotonic()
    older = sample(n, handle)
    time.sleep(0.02)
    raising = time.monotonic()
    card.set_gpm(Gpm.SM_UTIL, 100.0)
    time.sleep(0.02)
    newer = sample(n, handle)
    ended = time.monotonic()
    (found,) = averages(n, older, newer, Gpm.SM_UTIL)
    assert isinstance(found, float)
    # However slow the machine: 0 held for 0.02 s and more, 100 for 0.02 s and more, both together for at most ended - began.
    assert 100 * 0.02 / (ended - began) <= found <= 100 * (1 - 0.02 / (ended - began))
    assert found <= 100 * (ended - raising) / 0.04


def test_each_metric_has_its_own_return_code(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, card = simulation.pynvml, simulation.node.gpus[0]
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    card.set_gpm(Gpm.FP64_UTIL, None)
    card.set_gpm(Gpm.SM_OCCUPANCY, math.nan)
    older = sample(n, handle)
    time.sleep(0.002)
    newer = sample(n, handle)
    found = averages(n, older, newer, Gpm.SM_UTIL, Gpm.FP64_UTIL, LATE_METRIC, Gpm.SM_OCCUPANCY)
    assert found[:3] == [0.0, "error 3", "error 2"]
    assert math.isnan(float(found[3]))


def test_samples_in_the_wrong_order_or_of_two_cards_are_refused(simulate: Callable[[str], Simulation]) -> None:
    n = simulate("h20x2").pynvml
    n.nvmlInit()
    first, second = (n.nvmlDeviceGetHandleByIndex(index) for index in range(2))
    older = sample(n, first)
    time.sleep(0.002)
    newer, foreign = sample(n, first), sample(n, second)
    for pair in ((newer, older), (older, foreign), (older, n.nvmlGpmSampleAlloc())):
        with pytest.raises(n.NVMLError_InvalidArgument):
            averages(n, *pair, Gpm.SM_UTIL)


@pytest.mark.parametrize("profile", ["pcie-x2", "driver535"])
def test_cards_before_hopper_have_none(profile: str, simulate: Callable[[str], Simulation]) -> None:
    n = simulate(profile).pynvml
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    assert n.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice == 0
    with pytest.raises(n.NVMLError_NotSupported):
        sample(n, handle)
