"""Power and energy. The driver gives milliwatts and millijoules since it was loaded."""

from __future__ import annotations

import ctypes

import pynvml
from poise.exporter.metrics import GPU_ENERGY, GPU_POWER, GPU_POWER_LIMIT
from poise.exporter.nvml.card import Card, Collector, Number, Read, Tick
from poise.exporter.nvml.fields import FieldBatch

_MILLI = 1e-3


def prepare(card: Card, fields: FieldBatch) -> Read:
    """Power is the average of a second where the card has that, else what it draws now: both the field and the call mean that (nvml.h).

    The limit is the enforced one: the least of all limits that hold, out-of-band ones included.
    """
    numbers = []
    for metric, field_id, name, value in (
        (GPU_POWER, pynvml.NVML_FI_DEV_POWER_AVERAGE, "nvmlDeviceGetPowerUsage", ctypes.c_uint()),
        (GPU_POWER_LIMIT, pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT, "nvmlDeviceGetEnforcedPowerLimit", ctypes.c_uint()),
        (GPU_ENERGY, pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, "nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong()),
    ):
        numbers.append((metric, Number(fields, field_id, card.call(name, ctypes.byref(value)), value)))

    def read(tick: Tick) -> None:
        for metric, number in numbers:
            value = number.read(tick, metric)
            if value is not None:
                tick.set(metric, value * _MILLI)

    return read


COLLECTOR = Collector(
    name="power", help="power, power limit and energy of each card", metrics=(GPU_POWER, GPU_POWER_LIMIT, GPU_ENERGY), prepare=prepare
)
