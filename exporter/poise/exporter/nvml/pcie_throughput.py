"""PCIe throughput by NVML's own measurement, for cards without GPM: off by default, because each of the two calls blocks for 20 ms.

The value is that of one window of 20 ms (nvml.h, nvmlDeviceGetPcieThroughput), a sample rather than an average. Where GPM gives the same
series (gpm.py), the card is not asked.
"""

from __future__ import annotations

import ctypes

import pynvml
from poise.exporter.metrics import GPU_PCIE_RX, GPU_PCIE_TX
from poise.exporter.nvml.card import Card, Collector, Read, Tick
from poise.exporter.nvml.fields import FieldBatch

#: The driver counts KB/s.
_KILO = 1e3


def prepare(card: Card, fields: FieldBatch) -> Read:
    """Seen from the card: TX is what it sends."""
    rate = ctypes.c_uint()
    calls = [
        (metric, card.call("nvmlDeviceGetPcieThroughput", ctypes.c_int(counter), ctypes.byref(rate)))
        for metric, counter in ((GPU_PCIE_TX, pynvml.NVML_PCIE_UTIL_TX_BYTES), (GPU_PCIE_RX, pynvml.NVML_PCIE_UTIL_RX_BYTES))
    ]

    def read(tick: Tick) -> None:
        for metric, call in calls:
            if not tick.given(metric) and tick.ask(call, metric):
                tick.set(metric, rate.value * _KILO)

    return read


COLLECTOR = Collector(
    name="pcie_throughput",
    help="PCIe throughput of cards without GPM; blocks for 40 ms per card",
    metrics=(GPU_PCIE_TX, GPU_PCIE_RX),
    prepare=prepare,
    interval=5.0,
    on_by_default=False,
)
