"""The PCIe link of the card: generation, width, what both could be, and packets sent again.

Not throughput: NVML's PCIe throughput call blocks for 20 ms each (nvml.h, nvmlDeviceGetPcieThroughput).
"""

from __future__ import annotations

import ctypes

from poise.exporter.metrics import (
    GPU_PCIE_LINK_GENERATION,
    GPU_PCIE_LINK_GENERATION_MAX,
    GPU_PCIE_LINK_WIDTH,
    GPU_PCIE_LINK_WIDTH_MAX,
    GPU_PCIE_REPLAYS,
)
from poise.exporter.nvml.card import Card, Collector, Read, Tick
from poise.exporter.nvml.fields import FieldBatch

_CALLS = (
    (GPU_PCIE_LINK_GENERATION, "nvmlDeviceGetCurrPcieLinkGeneration"),
    (GPU_PCIE_LINK_GENERATION_MAX, "nvmlDeviceGetMaxPcieLinkGeneration"),
    (GPU_PCIE_LINK_WIDTH, "nvmlDeviceGetCurrPcieLinkWidth"),
    (GPU_PCIE_LINK_WIDTH_MAX, "nvmlDeviceGetMaxPcieLinkWidth"),
    (GPU_PCIE_REPLAYS, "nvmlDeviceGetPcieReplayCounter"),
)


def prepare(card: Card, fields: FieldBatch) -> Read:
    """Five unsigned integers, one call each."""
    asked = []
    for metric, name in _CALLS:
        number = ctypes.c_uint()
        asked.append((metric, number, card.call(name, ctypes.byref(number))))

    def read(tick: Tick) -> None:
        for metric, number, call in asked:
            if tick.ask(call, metric):
                tick.set(metric, number.value)

    return read


COLLECTOR = Collector(
    name="pcie", help="PCIe link and replays of each card", metrics=tuple(metric for metric, _ in _CALLS), prepare=prepare, interval=5.0
)
