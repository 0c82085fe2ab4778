"""Rows of device memory that were replaced by spare ones after errors, and whether that is still to be done or went wrong. Ampere and newer."""

from __future__ import annotations

import ctypes

import pynvml
from poise.exporter.metrics import GPU_REMAP_FAILED, GPU_REMAP_PENDING, GPU_REMAPPED_ROWS
from poise.exporter.nvml.card import Card, Collector, Number, Read, Tick
from poise.exporter.nvml.fields import FieldBatch


def prepare(card: Card, fields: FieldBatch) -> Read:
    """Counts in the card's life. Not with MIG instances (nvml.h, nvmlDeviceGetRemappedRows)."""
    answers = [ctypes.c_uint() for _ in range(4)]
    call = card.call("nvmlDeviceGetRemappedRows", *[ctypes.byref(answer) for answer in answers])
    correctable, uncorrectable, pending, failed = (
        Number(fields, field_id, call, answer)
        for field_id, answer in zip(
            (
                pynvml.NVML_FI_DEV_REMAPPED_COR,
                pynvml.NVML_FI_DEV_REMAPPED_UNC,
                pynvml.NVML_FI_DEV_REMAPPED_PENDING,
                pynvml.NVML_FI_DEV_REMAPPED_FAILURE,
            ),
            answers,
            strict=True,
        )
    )

    def read(tick: Tick) -> None:
        rows = [
            (label, number.read(tick, GPU_REMAPPED_ROWS))
            for label, number in (("correctable", correctable), ("uncorrectable", uncorrectable))
        ]
        tick.put(GPU_REMAPPED_ROWS, {(label,): value for label, value in rows if value is not None})
        for metric, number in ((GPU_REMAP_PENDING, pending), (GPU_REMAP_FAILED, failed)):
            value = number.read(tick, metric)
            if value is not None:
                tick.set(metric, value)

    return read


COLLECTOR = Collector(
    name="remapped_rows",
    help="replaced rows of device memory",
    metrics=(GPU_REMAPPED_ROWS, GPU_REMAP_PENDING, GPU_REMAP_FAILED),
    prepare=prepare,
    interval=10.0,
)
