"""Device memory: total, used, free, and what driver and firmware reserve."""

from __future__ import annotations

import ctypes
import struct

import pynvml
from poise.exporter.metrics import GPU_MEMORY_FREE, GPU_MEMORY_RESERVED, GPU_MEMORY_TOTAL, GPU_MEMORY_USED
from poise.exporter.nvml.card import Card, Collector, Read, Tick
from poise.exporter.nvml.fields import FieldBatch

#: nvmlMemory_v2_t: version, 4 bytes of padding, total, reserved, free, used. Read at every tick, so without pynvml's struct, whose
#: attributes go through Python code.
_MEMORY = struct.Struct("=I4xQQQQ")

_METRICS = (GPU_MEMORY_TOTAL, GPU_MEMORY_USED, GPU_MEMORY_FREE, GPU_MEMORY_RESERVED)


def prepare(card: Card, fields: FieldBatch) -> Read:
    """Version 2 of the call only: version 1 counts the reserved part as used (nvml.h, nvmlMemory_v2_t)."""
    memory = ctypes.create_string_buffer(_MEMORY.size)
    _MEMORY.pack_into(memory, 0, pynvml.nvmlMemory_v2, 0, 0, 0, 0)
    call = card.call("nvmlDeviceGetMemoryInfo_v2", memory)

    def read(tick: Tick) -> None:
        if tick.ask(call, *_METRICS):
            _, total, reserved, free, used = _MEMORY.unpack(memory)
            tick.set(GPU_MEMORY_TOTAL, total)
            tick.set(GPU_MEMORY_USED, used)
            tick.set(GPU_MEMORY_FREE, free)
            tick.set(GPU_MEMORY_RESERVED, reserved)

    return read


COLLECTOR = Collector(name="memory", help="device memory of each card", metrics=_METRICS, prepare=prepare)
