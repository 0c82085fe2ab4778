"""What the driver says has to be done to make the card whole again: 0 nothing, else a reset, a reboot and so on. Drivers from 570."""

from __future__ import annotations

import pynvml
from poise.exporter.metrics import GPU_RECOVERY_ACTION
from poise.exporter.nvml.card import Card, Collector, Read, Tick
from poise.exporter.nvml.fields import FieldBatch


def prepare(card: Card, fields: FieldBatch) -> Read:
    """The number of nvmlDeviceGpuRecoveryAction_t, by the field that is there for it; there is no call."""
    place = fields.add(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)

    def read(tick: Tick) -> None:
        action = tick.field(fields, place, GPU_RECOVERY_ACTION)
        if action is not None:
            tick.set(GPU_RECOVERY_ACTION, action)

    return read


COLLECTOR = Collector(
    name="recovery", help="what has to be done to a broken card", metrics=(GPU_RECOVERY_ACTION,), prepare=prepare, interval=10.0
)
