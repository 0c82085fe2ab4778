"""Power and energy. The driver gives milliwatts and millijoules since it was loaded."""

from __future__ import annotations

import ctypes

from poise.exporter.metrics import GPU_ENERGY, GPU_POWER, GPU_POWER_LIMIT
from poise.exporter.nvml.card import Card, Collector, Read, Tick
from poise.exporter.nvml.fields import FieldBatch

_MILLI = 1e-3


def prepare(card: Card, fields: FieldBatch) -> Read:
    """The limit is the enforced one: the least of all limits that hold, out-of-band ones included."""
    power = ctypes.c_uint()
    limit = ctypes.c_uint()
    energy = ctypes.c_ulonglong()
    get_power = card.call("nvmlDeviceGetPowerUsage", ctypes.byref(power))
    get_limit = card.call("nvmlDeviceGetEnforcedPowerLimit", ctypes.byref(limit))
    get_energy = card.call("nvmlDeviceGetTotalEnergyConsumption", ctypes.byref(energy))

    def read(tick: Tick) -> None:
        if tick.ask(get_power, GPU_POWER):
            tick.set(GPU_POWER, power.value * _MILLI)
        if tick.ask(get_limit, GPU_POWER_LIMIT):
            tick.set(GPU_POWER_LIMIT, limit.value * _MILLI)
        if tick.ask(get_energy, GPU_ENERGY):
            tick.set(GPU_ENERGY, energy.value * _MILLI)

    return read


COLLECTOR = Collector(
    name="power", help="power, power limit and energy of each card", metrics=(GPU_POWER, GPU_POWER_LIMIT, GPU_ENERGY), prepare=prepare
)
