"""Processes with memory on the card: compute, graphics and MPS clients. Who they belong to is decided elsewhere.

Compute processes are listed in every tick. The other two lists are empty on most servers, so they are asked more rarely.

What the lists are worth in a container depends on the driver (process_list.py): what is not known there is absent, not 0 and not nobody.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

from poise.exporter.metrics import GPU_FOREIGN_MEMORY, GPU_PROCESS_MEMORY
from poise.exporter.nvml.card import Card, Collector, Read, Tick
from poise.exporter.nvml.fields import FieldBatch
from poise.exporter.nvml.library import INSUFFICIENT_SIZE, REFUSALS, SUCCESS
from poise.exporter.nvml.process_list import trust
from poise.exporter.snapshot import GpuProcess, Reason

#: nvmlProcessInfo_t of the `_v2` and `_v3` calls: pid, 4 bytes of padding, usedGpuMemory, gpuInstanceId, computeInstanceId.
_ENTRY = struct.Struct("=I4xQII")
#: NVML_VALUE_NOT_AVAILABLE: the driver does not know (e.g. under WDDM).
_NOT_AVAILABLE = 0xFFFFFFFFFFFFFFFF
_FIRST_CAPACITY = 64
#: More processes on one card than this are an answer that we do not believe.
_LARGEST_CAPACITY = 1 << 16

#: How long the lists of graphics and MPS clients stand, seconds.
OTHERS_SECONDS = 5.0

#: What the list gives once it is joined with the engines.
METRICS = (GPU_PROCESS_MEMORY, GPU_FOREIGN_MEMORY)


class _List:
    """One of the driver's process lists, with a buffer that grows when the driver says it is too small."""

    def __init__(self, function: Callable[..., int], handle: ctypes.c_void_p, name: str) -> None:
        self.name = name
        self.refusal = SUCCESS
        self._function = function
        self._handle = handle
        self._count = ctypes.c_uint()
        self._count_reference = ctypes.byref(self._count)
        self._buffer: Any = ctypes.create_string_buffer(_FIRST_CAPACITY * _ENTRY.size)

    def read(self, into: dict[int, int | None]) -> int:
        """Adds pid → bytes (None unknown) of this list; the nvmlReturn_t. A process in two lists counts once, with the larger figure."""
        if self.refusal:
            return self.refusal
        while True:
            capacity = len(self._buffer) // _ENTRY.size
            self._count.value = capacity
            code = self._function(self._handle, self._count_reference, self._buffer)
            if code != INSUFFICIENT_SIZE or capacity >= _LARGEST_CAPACITY:
                break
            self._buffer = ctypes.create_string_buffer(max(2 * capacity, 2 * self._count.value) * _ENTRY.size)
        if code in REFUSALS:
            self.refusal = code
        if code == SUCCESS:
            for place in range(min(self._count.value, capacity)):
                pid, used, _, _ = _ENTRY.unpack_from(self._buffer, place * _ENTRY.size)
                known = into.get(pid)
                if used == _NOT_AVAILABLE:
                    into.setdefault(pid, None)
                elif known is None or used > known:
                    into[pid] = used
        return int(code)


def prepare(card: Card, fields: FieldBatch) -> Read:
    """The compute list decides whether anything is known; graphics and MPS lists add to it where the driver has them."""
    compute, *others = [
        _List(card.library.function(f"{name}_v3", f"{name}_v2"), card.handle, name)
        for name in (
            "nvmlDeviceGetComputeRunningProcesses",
            "nvmlDeviceGetGraphicsRunningProcesses",
            "nvmlDeviceGetMPSComputeRunningProcesses",
        )
    ]
    worth = trust(card.pid_namespace, card.driver_version)
    others_found: dict[int, int | None] = {}
    others_due = float("-inf")

    def read_others(tick: Tick) -> None:
        nonlocal others_due
        # Half a tick early is due, as for a collector of that interval.
        if tick.now < others_due - card.interval / 2:
            return
        others_due = tick.now + OTHERS_SECONDS
        others_found.clear()
        for process_list in others:
            code = process_list.read(others_found)
            if code != SUCCESS:
                tick.refuse(code, process_list.name)

    def read(tick: Tick) -> None:
        read_others(tick)
        found = dict(others_found)
        code = compute.read(found)
        if code != SUCCESS:
            tick.refuse(code, compute.name, *METRICS)
            return
        tick.answered = True
        if not worth.complete:
            tick.absent[GPU_FOREIGN_MEMORY] = Reason.NOT_SUPPORTED
        if not worth.pids:
            tick.absent[GPU_PROCESS_MEMORY] = Reason.NOT_SUPPORTED
            return
        tick.processes_complete = worth.complete
        tick.processes = tuple(GpuProcess(pid, found[pid] if worth.zero_sizes else found[pid] or None) for pid in sorted(found))
        if found and all(process.used_bytes is None for process in tick.processes):
            # The list without sizes still tells who owns the card.
            tick.absent[GPU_PROCESS_MEMORY] = Reason.NOT_SUPPORTED

    return read


COLLECTOR = Collector(name="processes", help="processes with memory on each card", metrics=METRICS, prepare=prepare)
