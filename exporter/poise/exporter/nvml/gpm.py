"""Activity inside the card, by NVML's GPU performance monitoring: SMs, tensor cores, device memory and PCIe. Hopper and newer.

A value is the average between two samples of the driver's counters, which must be more than 100 ms apart (nvml.h, nvmlGpmMetricsGet). Two
samples are allocated once and change places, so that each tick takes one and the other is the one of the tick before. They are one card's
and its thread's alone: samples that two threads wrote at once have brought a kernel down (plazonic/nvidia_gpu_prometheus_exporter #7).
"""

from __future__ import annotations

import ctypes
import logging
import math
import struct

import pynvml
from poise.exporter.metrics import (
    GPU_DRAM_ACTIVE,
    GPU_PCIE_RX,
    GPU_PCIE_TX,
    GPU_SM_ACTIVE,
    GPU_SM_OCCUPANCY,
    GPU_TENSOR_ACTIVE,
    Metric,
)
from poise.exporter.nvml.card import Card, Collector, Read, Tick
from poise.exporter.nvml.fields import FieldBatch
from poise.exporter.nvml.library import NOT_SUPPORTED, REFUSALS, SUCCESS
from poise.exporter.snapshot import Reason

logger = logging.getLogger(__name__)

_PERCENT = 1e-2
_MEBI = float(1 << 20)
#: Metric → nvmlGpmMetricId_t, and what its unit is in ours. PCIe is seen from the card: TX is what it sends.
_ASKED: tuple[tuple[Metric, int, float], ...] = (
    (GPU_SM_ACTIVE, pynvml.NVML_GPM_METRIC_SM_UTIL, _PERCENT),
    (GPU_SM_OCCUPANCY, pynvml.NVML_GPM_METRIC_SM_OCCUPANCY, _PERCENT),
    (GPU_TENSOR_ACTIVE, pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, _PERCENT),
    (GPU_DRAM_ACTIVE, pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, _PERCENT),
    (GPU_PCIE_TX, pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, _MEBI),
    (GPU_PCIE_RX, pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, _MEBI),
)
METRICS = tuple(metric for metric, _, _ in _ASKED)
#: nvmlGpmMetric_t: metricId, nvmlReturn, value, three pointers to texts. Of each, the second and third.
_ANSWERS = struct.Struct("=" + "4xId24x" * len(_ASKED))
_ANSWERS_AT: int = pynvml.c_nvmlGpmMetricsGet_t.metrics.offset
#: sample1 and sample2 of nvmlGpmMetricsGet_t. Written at every tick, so without pynvml's struct, whose attributes go through Python code.
_SAMPLES = struct.Struct("=QQ")
_SAMPLES_AT: int = pynvml.c_nvmlGpmMetricsGet_t.sample1.offset
#: Seconds between two samples: more than the driver's 100 ms, as ticks come with some jitter.
SHORTEST_SECONDS = 0.15
#: The samples' calls in the order of nvml.h.
_QUERY, _ALLOCATE, _FREE, _TAKE, _COMPARE = (
    "nvmlGpmQueryDeviceSupport",
    "nvmlGpmSampleAlloc",
    "nvmlGpmSampleFree",
    "nvmlGpmSampleGet",
    "nvmlGpmMetricsGet",
)


class _Activity:
    """The two samples of one card and what they say. Made for one life of the driver: no sample is used beyond it."""

    def __init__(self, card: Card) -> None:
        self._card = card
        function = card.library.function
        self._query, self._allocate, self._free = function(_QUERY), function(_ALLOCATE), function(_FREE)
        self._take, self._compare = function(_TAKE), function(_COMPARE)
        self._samples: list[ctypes.c_void_p] = []
        self._taken_at: float | None = None
        #: How long ago the sample before may be for an average to say anything of now.
        self._longest = max(3 * card.interval, 2 * SHORTEST_SECONDS)
        #: What is answered instead of values, for good, and by which call.
        self._refusal: tuple[int, str] = (SUCCESS, "")
        self._values: dict[Metric, float] = {}
        self._codes: dict[Metric, int] = {}
        self._empty: list[Metric] = []
        self._request = pynvml.c_nvmlGpmMetricsGet_t()
        self._request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(_ASKED)
        for place, (_, number, _) in enumerate(_ASKED):
            self._request.metrics[place].metricId = number
        self._request_reference = ctypes.byref(self._request)

    def read(self, tick: Tick) -> None:
        """One tick: takes a sample, compares it with the one before."""
        code, what = self._refusal
        if code == SUCCESS:
            code, what = self._advance(tick)
        if code != SUCCESS:
            self._values, self._codes, self._empty = {}, {}, []
            # Two samples that do not fit (INVALID_ARGUMENT) are no last word.
            if code in REFUSALS and what != _COMPARE:
                self._refuse(code, what)
            tick.refuse(code, what, *METRICS)
            return
        for metric, value in self._values.items():
            tick.set(metric, value)
        for metric, refusal in self._codes.items():
            tick.refuse(refusal, what, metric)
        for metric in self._empty:
            tick.absent[metric] = Reason.ERROR

    def _advance(self, tick: Tick) -> tuple[int, str]:
        """Brings the values up to date; the nvmlReturn_t of the call that ended it and that call's name."""
        if not self._samples:
            code, what = self._open()
            if code != SUCCESS:
                return code, what
        before = self._taken_at
        if before is not None and tick.now - before < SHORTEST_SECONDS:
            # A tick that follows a late one at once: the averages up to that one are as new as the driver makes them.
            return SUCCESS, _COMPARE
        older, newer = self._samples
        code = self._take(self._card.handle, newer)
        if code != SUCCESS:
            return code, _TAKE
        tick.answered = True
        self._samples.reverse()
        self._taken_at = tick.now
        self._values, self._codes, self._empty = {}, {}, []
        if before is None or tick.now - before > self._longest:
            return SUCCESS, _TAKE
        _SAMPLES.pack_into(self._request, _SAMPLES_AT, older.value, newer.value)
        code = self._compare(self._request_reference)
        if code == SUCCESS:
            self._take_over()
        return code, _COMPARE

    def _take_over(self) -> None:
        """What each metric says. A value that is no number is left out: the driver had nothing to divide by."""
        answers = iter(_ANSWERS.unpack_from(self._request, _ANSWERS_AT))
        for (metric, _, scale), code, value in zip(_ASKED, answers, answers, strict=True):
            if code != SUCCESS:
                self._codes[metric] = code
            elif math.isfinite(value):
                self._values[metric] = max(0.0, min(1.0, value * scale) if scale == _PERCENT else value * scale)
            else:
                self._empty.append(metric)

    def _open(self) -> tuple[int, str]:
        """Asks whether the card has it, and allocates the samples."""
        support = pynvml.c_nvmlGpmSupport_t()
        support.version = pynvml.NVML_GPM_SUPPORT_VERSION
        code = self._query(self._card.handle, ctypes.byref(support))
        if code != SUCCESS:
            return code, _QUERY
        if not support.isSupportedDevice:
            return NOT_SUPPORTED, _QUERY
        samples: list[ctypes.c_void_p] = []
        for _ in range(2):
            sample = ctypes.c_void_p()
            code = self._allocate(ctypes.byref(sample))
            if code != SUCCESS:
                for earlier in samples:
                    self._free(earlier)
                return code, _ALLOCATE
            samples.append(sample)
        self._samples = samples
        self._card.on_close(self._close)
        return SUCCESS, ""

    def _close(self) -> None:
        while self._samples:
            self._free(self._samples.pop())

    def _refuse(self, code: int, what: str) -> None:
        """Keeps the refusal, and says once in a card's life that it is for want of permission."""
        self._refusal = (code, what)
        self._close()
        told: set[int] = self._card.keep("gpm refusals", set)
        if code == pynvml.NVML_ERROR_NO_PERMISSION and code not in told:
            logger.warning(
                "card %d (%s): no permission for activity counters (%s); give the exporter CAP_SYS_ADMIN, or load the driver with "
                "NVreg_RestrictProfilingToAdminUsers=0",
                self._card.index,
                self._card.uuid,
                what,
            )
        told.add(code)


def prepare(card: Card, fields: FieldBatch) -> Read:
    """Percent become ratios, MiB/s bytes per second. There is nothing in the first tick, which has no sample before it."""
    return _Activity(card).read


COLLECTOR = Collector(
    name="gpm", help="activity of SMs, tensor cores, device memory and PCIe (Hopper and newer)", metrics=METRICS, prepare=prepare
)
