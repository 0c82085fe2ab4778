"""Utilization of the video encoder and decoder."""

from __future__ import annotations

import ctypes

from poise.exporter.metrics import GPU_DECODER_UTILIZATION, GPU_ENCODER_UTILIZATION
from poise.exporter.nvml.card import Card, Collector, Read, Tick
from poise.exporter.nvml.fields import FieldBatch


def prepare(card: Card, fields: FieldBatch) -> Read:
    """Percent over the driver's own sample period, which it tells in the second number and which we do not need."""
    share = ctypes.c_uint()
    period = ctypes.c_uint()
    calls = (
        (GPU_ENCODER_UTILIZATION, card.call("nvmlDeviceGetEncoderUtilization", ctypes.byref(share), ctypes.byref(period))),
        (GPU_DECODER_UTILIZATION, card.call("nvmlDeviceGetDecoderUtilization", ctypes.byref(share), ctypes.byref(period))),
    )

    def read(tick: Tick) -> None:
        for metric, call in calls:
            if tick.ask(call, metric):
                tick.set(metric, share.value / 100)

    return read


COLLECTOR = Collector(
    name="codec",
    help="video encoder and decoder of each card",
    metrics=(GPU_ENCODER_UTILIZATION, GPU_DECODER_UTILIZATION),
    prepare=prepare,
    interval=5.0,
)
