"""The PCIe link of the card: generation, width, what both could be, and packets sent again.

Not throughput: that is GPM's (gpm.py), or a call that blocks (pcie_throughput.py).
"""

from __future__ import annotations

import ctypes

import pynvml
from poise.exporter.metrics import (
    GPU_PCIE_LINK_GENERATION,
    GPU_PCIE_LINK_GENERATION_MAX,
    GPU_PCIE_LINK_WIDTH,
    GPU_PCIE_LINK_WIDTH_MAX,
    GPU_PCIE_REPLAYS,
)
from poise.exporter.nvml.card import Card, Collector, Number, Read, Tick
from poise.exporter.nvml.fields import FieldBatch

_CALLS = (
    (GPU_PCIE_LINK_GENERATION, "nvmlDeviceGetCurrPcieLinkGeneration"),
    (GPU_PCIE_LINK_GENERATION_MAX, "nvmlDeviceGetMaxPcieLinkGeneration"),
    (GPU_PCIE_LINK_WIDTH, "nvmlDeviceGetCurrPcieLinkWidth"),
    (GPU_PCIE_LINK_WIDTH_MAX, "nvmlDeviceGetMaxPcieLinkWidth"),
)
METRICS = (*(metric for metric, _ in _CALLS), GPU_PCIE_REPLAYS)


def prepare(card: Card, fields: FieldBatch) -> Read:
    """Unsigned integers, of which only the count of replays has a field."""
    asked = []
    for metric, name in _CALLS:
        number = ctypes.c_uint()
        asked.append((metric, number, card.call(name, ctypes.byref(number))))
    count = ctypes.c_uint()
    get_count = card.call("nvmlDeviceGetPcieReplayCounter", ctypes.byref(count))
    replays = Number(fields, pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER, get_count, count)

    def read(tick: Tick) -> None:
        for metric, number, call in asked:
            if tick.ask(call, metric):
                tick.set(metric, number.value)
        sent_again = replays.read(tick, GPU_PCIE_REPLAYS)
        if sent_again is not None:
            tick.set(GPU_PCIE_REPLAYS, sent_again)

    return read


COLLECTOR = Collector(name="pcie", help="PCIe link and replays of each card", metrics=METRICS, prepare=prepare, interval=5.0)
