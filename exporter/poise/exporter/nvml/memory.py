"""Device memory: total, used, free, and what driver and firmware reserve."""

from __future__ import annotations

import ctypes

import pynvml
from poise.exporter.metrics import GPU_MEMORY_FREE, GPU_MEMORY_RESERVED, GPU_MEMORY_TOTAL, GPU_MEMORY_USED
from poise.exporter.nvml.card import Card, Collector, Read, Tick
from poise.exporter.nvml.fields import FieldBatch

_METRICS = (GPU_MEMORY_TOTAL, GPU_MEMORY_USED, GPU_MEMORY_FREE, GPU_MEMORY_RESERVED)


def prepare(card: Card, fields: FieldBatch) -> Read:
    """Version 2 of the call only: version 1 counts the reserved part as used (nvml.h, nvmlMemory_v2_t)."""
    memory = pynvml.c_nvmlMemory_v2_t()
    memory.version = pynvml.nvmlMemory_v2
    call = card.call("nvmlDeviceGetMemoryInfo_v2", ctypes.byref(memory))

    def read(tick: Tick) -> None:
        if tick.ask(call, *_METRICS):
            tick.set(GPU_MEMORY_TOTAL, memory.total)
            tick.set(GPU_MEMORY_USED, memory.used)
            tick.set(GPU_MEMORY_FREE, memory.free)
            tick.set(GPU_MEMORY_RESERVED, memory.reserved)

    return read


COLLECTOR = Collector(name="memory", help="device memory of each card", metrics=_METRICS, prepare=prepare)
