"""The ring of the driver's own samples."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from poise.testbed.nvml.codes import SampleKind
from poise.testbed.nvml.state import SAMPLES_KEPT

from tests.simulated import Simulation

START = 1_800_000_000  # seconds since 1970


def test_samples_newer_than_the_last_seen_come_oldest_first(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, card = simulation.pynvml, simulation.node.gpus[0]
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    for second, ratio in enumerate((0.1, 0.2, 0.9)):
        card.push_utilization(ratio, at=START + second)
    kind, samples = n.nvmlDeviceGetSamples(handle, n.NVML_GPU_UTILIZATION_SAMPLES, START * 1_000_000)
    assert kind == n.NVML_VALUE_TYPE_UNSIGNED_INT
    assert [(sample.timeStamp, sample.sampleValue.uiVal) for sample in samples] == [
        ((START + 1) * 1_000_000, 20),
        ((START + 2) * 1_000_000, 90),
    ]


def test_no_newer_sample_is_not_found(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, card = simulation.pynvml, simulation.node.gpus[0]
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(n.NVMLError_NotFound):
        n.nvmlDeviceGetSamples(handle, n.NVML_GPU_UTILIZATION_SAMPLES, 0)
    card.push_utilization(0.5, at=START)
    with pytest.raises(n.NVMLError_NotFound):
        n.nvmlDeviceGetSamples(handle, n.NVML_GPU_UTILIZATION_SAMPLES, START * 1_000_000)


def test_the_ring_keeps_the_newest(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, card = simulation.pynvml, simulation.node.gpus[0]
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    for second in range(SAMPLES_KEPT + 7):
        card.push_utilization(0.5, at=START + second)
    _, samples = n.nvmlDeviceGetSamples(handle, n.NVML_GPU_UTILIZATION_SAMPLES, 0)
    assert len(samples) == SAMPLES_KEPT
    assert samples[0].timeStamp == (START + 7) * 1_000_000
    assert samples[-1].timeStamp == (START + SAMPLES_KEPT + 6) * 1_000_000


def test_a_tick_samples_every_kind_of_every_card(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, node = simulation.pynvml, simulation.node
    n.nvmlInit()
    node.gpus[1].set_utilization(0.42, memory=0.13)
    node.gpus[1].set_power(333)
    node.tick(at=START)
    handle = n.nvmlDeviceGetHandleByIndex(1)
    found = {
        kind: [sample.sampleValue.uiVal for sample in n.nvmlDeviceGetSamples(handle, kind, 0)[1]]
        for kind in SampleKind
        if kind is not SampleKind.MODULE_POWER
    }
    assert found == {
        SampleKind.TOTAL_POWER: [333000],
        SampleKind.GPU_UTILIZATION: [42],
        SampleKind.MEMORY_UTILIZATION: [13],
        SampleKind.ENCODER_UTILIZATION: [0],
        SampleKind.DECODER_UTILIZATION: [0],
        SampleKind.PROCESSOR_CLOCK: [345],
        SampleKind.MEMORY_CLOCK: [3201],
        SampleKind.JPEG_UTILIZATION: [0],
        SampleKind.OFA_UTILIZATION: [0],
    }
