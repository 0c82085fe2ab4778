"""The BAR1 aperture, through which the CPU and other cards reach device memory."""

from __future__ import annotations

import ctypes

import pynvml
from poise.exporter.metrics import GPU_BAR1_TOTAL, GPU_BAR1_USED
from poise.exporter.nvml.card import Card, Collector, Read, Tick
from poise.exporter.nvml.fields import FieldBatch


def prepare(card: Card, fields: FieldBatch) -> Read:
    """Bytes, as the driver gives them."""
    bar1 = pynvml.c_nvmlBAR1Memory_t()
    call = card.call("nvmlDeviceGetBAR1MemoryInfo", ctypes.byref(bar1))

    def read(tick: Tick) -> None:
        if tick.ask(call, GPU_BAR1_TOTAL, GPU_BAR1_USED):
            tick.set(GPU_BAR1_TOTAL, bar1.bar1Total)
            tick.set(GPU_BAR1_USED, bar1.bar1Used)

    return read


COLLECTOR = Collector(
    name="bar1", help="BAR1 aperture of each card", metrics=(GPU_BAR1_TOTAL, GPU_BAR1_USED), prepare=prepare, interval=10.0
)
