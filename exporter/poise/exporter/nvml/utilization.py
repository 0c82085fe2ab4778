"""Utilization: the driver's gauges, the highest of its samples of the last minute, and the time that the card was busy.

NVML's gauge says how things were in the driver's last sample period (1/6 to 1 s). Its ring of samples
(`nvmlDeviceGetSamples`) has every period, so that the integral over it misses no burst. Where there is no ring, or while it gives
nothing, the gauge is integrated instead.
"""

from __future__ import annotations

import ctypes
import struct
from collections import deque
from typing import Any

import pynvml
from poise.exporter.metrics import GPU_BUSY_SECONDS, GPU_MEMORY_BUSY, GPU_UTILIZATION, GPU_UTILIZATION_PEAK
from poise.exporter.nvml.card import Card, Collector, Read, Tick
from poise.exporter.nvml.fields import FieldBatch, decode
from poise.exporter.nvml.library import INSUFFICIENT_SIZE, NOT_FOUND, REFUSALS, SUCCESS

#: Window of the peak, seconds (the contract's help text names it).
PEAK_SECONDS = 60.0
#: A ring that gave nothing for so long is taken for silent and the gauge is integrated: longer than any sample period (1 s, nvml.h).
SILENT_SECONDS = 2.5
#: nvmlSample_t: time stamp in microseconds, then a value of the type that the call names.
_SAMPLE = struct.Struct("=QQ")
_FIRST_CAPACITY = 128
_LARGEST_CAPACITY = 1 << 16

Sample = tuple[int, float]  # driver's time stamp in microseconds, ratio


class BusyMeter:
    """Integrates utilization to busy seconds and remembers the peak. Pure: samples and times are arguments; times are monotonic seconds."""

    def __init__(self) -> None:
        self.busy_seconds = 0.0
        self.last_stamp = 0
        self._last_tick: float | None = None
        self._last_sample: float | None = None
        self._by_gauge = 0.0  # seconds integrated by the gauge since the last sample; the next sample must not count them again
        self._peaks: deque[tuple[float, float]] = deque()  # decreasing ratios with their times: the first is the peak

    def advance(self, now: float, samples: list[Sample], gauge: float | None, longest_gap: float) -> None:
        """Takes one tick's samples (oldest first, all newer than `last_stamp`) and the gauge.

        `longest_gap`: seconds between ticks above which the gauge says nothing about the time between them.
        """
        elapsed = 0.0 if self._last_tick is None else max(0.0, now - self._last_tick)
        self._last_tick = now
        if samples:
            newest = samples[-1][0]
            # Longer gaps are times that nobody watched; the newer sample does not speak for all of them.
            longest = SILENT_SECONDS + min(elapsed, longest_gap)
            for stamp, ratio in samples:
                if self.last_stamp and self._last_sample is not None:
                    seconds = (stamp - self.last_stamp) / 1e6 - self._by_gauge
                    self.busy_seconds += ratio * max(0.0, min(seconds, longest))
                self._by_gauge = 0.0
                self.last_stamp = stamp
                self._remember(now - (newest - stamp) / 1e6, ratio)
            if self._last_sample is None:
                self.last_stamp = newest
            self._last_sample = now
        elif gauge is not None:
            self._remember(now, gauge)
            silent = self._last_sample is None or now - self._last_sample > SILENT_SECONDS
            if silent and elapsed <= longest_gap:
                # On turning silent, the time that was left to the ring in vain is counted as well.
                seconds = elapsed if self._last_sample is None else max(0.0, now - self._last_sample - self._by_gauge)
                self.busy_seconds += gauge * seconds
                self._by_gauge += seconds
        while self._peaks and self._peaks[0][0] < now - PEAK_SECONDS:
            self._peaks.popleft()

    def restart(self) -> None:
        """The driver was loaded anew: its time stamps are not comparable with those of before. Keeps the integral."""
        self.last_stamp = 0
        self._last_sample = None
        self._last_tick = None
        self._by_gauge = 0.0

    @property
    def peak(self) -> float | None:
        """Highest ratio of the last minute, None before the first."""
        return self._peaks[0][1] if self._peaks else None

    def _remember(self, when: float, ratio: float) -> None:
        while self._peaks and self._peaks[-1][1] <= ratio:
            self._peaks.pop()
        self._peaks.append((when, ratio))


class SampleRing:
    """Reads the driver's ring of utilization samples that are newer than a time stamp."""

    def __init__(self, card: Card) -> None:
        self._function = card.library.function("nvmlDeviceGetSamples")
        self._handle = card.handle
        self._type = ctypes.c_int(pynvml.NVML_GPU_UTILIZATION_SAMPLES)
        self._value_type = ctypes.c_int()
        self._count = ctypes.c_uint()
        self._references = (ctypes.byref(self._value_type), ctypes.byref(self._count))
        self._buffer: Any = ctypes.create_string_buffer(_FIRST_CAPACITY * _SAMPLE.size)
        self.refusal = SUCCESS

    def read(self, after: int) -> tuple[int, list[Sample]]:
        """The nvmlReturn_t and the samples after a time stamp, oldest first. No newer sample is SUCCESS with an empty list."""
        if self.refusal:
            return self.refusal, []
        while True:
            capacity = len(self._buffer) // _SAMPLE.size
            self._count.value = capacity
            code = int(self._function(self._handle, self._type, ctypes.c_ulonglong(after), *self._references, self._buffer))
            if code != INSUFFICIENT_SIZE or capacity >= _LARGEST_CAPACITY:
                break
            self._buffer = ctypes.create_string_buffer(2 * capacity * _SAMPLE.size)
        if code == NOT_FOUND:
            return SUCCESS, []
        if code in REFUSALS:
            self.refusal = code
        if code != SUCCESS:
            return code, []
        kind = self._value_type.value
        found = []
        for place in range(min(self._count.value, capacity)):
            stamp, raw = _SAMPLE.unpack_from(self._buffer, place * _SAMPLE.size)
            if stamp > after:
                found.append((stamp, min(1.0, max(0.0, decode(kind, raw) / 100))))
        found.sort()
        return SUCCESS, found


def prepare(card: Card, fields: FieldBatch) -> Read:
    """Percent of the driver become ratios. Busy seconds go on over a lost card and a driver reload."""
    rates = (ctypes.c_uint * 2)()  # nvmlUtilization_t: gpu, memory
    get_rates = card.call("nvmlDeviceGetUtilizationRates", ctypes.byref(rates))
    ring = SampleRing(card)
    meter = card.keep("utilization", BusyMeter)
    meter.restart()
    longest_gap = 3 * card.interval

    def read(tick: Tick) -> None:
        gauge = None
        if tick.ask(get_rates, GPU_UTILIZATION, GPU_MEMORY_BUSY):
            gauge = rates[0] / 100
            tick.set(GPU_UTILIZATION, gauge)
            tick.set(GPU_MEMORY_BUSY, rates[1] / 100)
        code, samples = ring.read(meter.last_stamp)
        if code == SUCCESS:
            tick.answered = True
        meter.advance(tick.now, samples, gauge, longest_gap)
        if code != SUCCESS and gauge is None:
            tick.refuse(code, "nvmlDeviceGetSamples", GPU_UTILIZATION_PEAK, GPU_BUSY_SECONDS)
            return
        if code != SUCCESS:
            tick.refuse(code, "nvmlDeviceGetSamples")
        tick.set(GPU_BUSY_SECONDS, meter.busy_seconds)
        if meter.peak is not None:
            tick.set(GPU_UTILIZATION_PEAK, meter.peak)

    return read


COLLECTOR = Collector(
    name="utilization",
    help="how busy each card is",
    metrics=(GPU_UTILIZATION, GPU_UTILIZATION_PEAK, GPU_BUSY_SECONDS, GPU_MEMORY_BUSY),
    prepare=prepare,
)
