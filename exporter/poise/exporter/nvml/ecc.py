"""Memory errors that ECC corrected, and those that it could not: since the driver was loaded, and in the card's life. Absent with ECC off."""

from __future__ import annotations

import ctypes

import pynvml
from poise.exporter.metrics import GPU_ECC_ERRORS, GPU_ECC_ERRORS_LIFETIME, Metric
from poise.exporter.nvml.card import Card, Collector, Labels, Number, Read, Tick
from poise.exporter.nvml.fields import FieldBatch

_CORRECTED: int = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
_UNCORRECTED: int = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
#: Metric → nvmlEccCounterType_t, and label → nvmlMemoryErrorType_t and field id (nvml.h, NVML_FI_DEV_ECC_*_TOTAL).
_COUNTERS: tuple[tuple[Metric, int, dict[str, tuple[int, int]]], ...] = (
    (
        GPU_ECC_ERRORS,
        pynvml.NVML_VOLATILE_ECC,
        {
            "corrected": (_CORRECTED, pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL),
            "uncorrected": (_UNCORRECTED, pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL),
        },
    ),
    (
        GPU_ECC_ERRORS_LIFETIME,
        pynvml.NVML_AGGREGATE_ECC,
        {
            "corrected": (_CORRECTED, pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL),
            "uncorrected": (_UNCORRECTED, pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL),
        },
    ),
)


def prepare(card: Card, fields: FieldBatch) -> Read:
    """Totals over all places in the card, by type."""
    asked: list[tuple[Metric, list[tuple[Labels, Number]]]] = []
    for metric, counter, types in _COUNTERS:
        numbers: list[tuple[Labels, Number]] = []
        for label, (kind, field_id) in types.items():
            count = ctypes.c_ulonglong()
            call = card.call("nvmlDeviceGetTotalEccErrors", ctypes.c_int(kind), ctypes.c_int(counter), ctypes.byref(count))
            numbers.append(((label,), Number(fields, field_id, call, count)))
        asked.append((metric, numbers))

    def read(tick: Tick) -> None:
        for metric, numbers in asked:
            values = [(labels, number.read(tick, metric)) for labels, number in numbers]
            tick.put(metric, {labels: value for labels, value in values if value is not None})

    return read


COLLECTOR = Collector(
    name="ecc", help="memory errors of each card", metrics=tuple(metric for metric, _, _ in _COUNTERS), prepare=prepare, interval=10.0
)
