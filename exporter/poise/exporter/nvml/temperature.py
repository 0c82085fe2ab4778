"""Temperatures, how far the card is from slowing itself down, and its fan."""

from __future__ import annotations

import ctypes

import pynvml
from poise.exporter.metrics import GPU_FAN, GPU_TEMPERATURE, GPU_TEMPERATURE_MARGIN
from poise.exporter.nvml.card import Card, Collector, Read, Tick
from poise.exporter.nvml.fields import FieldBatch
from poise.exporter.nvml.library import REFUSALS, SUCCESS
from poise.exporter.snapshot import Reason

_CORE = ("core",)
_MEMORY = ("memory",)


def prepare(card: Card, fields: FieldBatch) -> Read:
    """Newer drivers are asked by the versioned call and tell the margin; older ones by the plain call and the slowdown threshold."""
    # nvmlTemperature_v1_t: version, sensorType, temperature; nvmlMarginTemperature_v1_t: version, marginTemperature.
    versioned = (ctypes.c_int * 3)(pynvml.nvmlTemperature_v1, pynvml.NVML_TEMPERATURE_GPU, 0)
    plain = ctypes.c_uint()
    margin = (ctypes.c_int * 2)(pynvml.nvmlMarginTemperature_v1, 0)
    slowdown = ctypes.c_uint()
    fan = ctypes.c_uint()
    get_versioned = card.call("nvmlDeviceGetTemperatureV", ctypes.byref(versioned))
    get_plain = card.call("nvmlDeviceGetTemperature", ctypes.c_int(pynvml.NVML_TEMPERATURE_GPU), ctypes.byref(plain))
    get_margin = card.call("nvmlDeviceGetMarginTemperature", ctypes.byref(margin))
    get_slowdown = card.call(
        "nvmlDeviceGetTemperatureThreshold", ctypes.c_int(pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN), ctypes.byref(slowdown)
    )
    get_fan = card.call("nvmlDeviceGetFanSpeed", ctypes.byref(fan))
    memory_place = fields.add(pynvml.NVML_FI_DEV_MEMORY_TEMP)

    def read_core(tick: Tick) -> int | None:
        code = get_versioned.run()
        if code == SUCCESS:
            tick.answered = True
            return versioned[2]
        if code not in REFUSALS:
            tick.refuse(code, get_versioned.name, GPU_TEMPERATURE)
            return None
        return plain.value if tick.ask(get_plain, GPU_TEMPERATURE) else None

    def read(tick: Tick) -> None:
        core = read_core(tick)
        memory = tick.field(fields, memory_place)
        tick.put(
            GPU_TEMPERATURE,
            {labels: value for labels, value in ((_CORE, core), (_MEMORY, memory)) if value is not None},
        )
        code = get_margin.run()
        if code == SUCCESS:
            tick.set(GPU_TEMPERATURE_MARGIN, margin[1])
        elif code not in REFUSALS:
            tick.refuse(code, get_margin.name, GPU_TEMPERATURE_MARGIN)
        elif tick.ask(get_slowdown, GPU_TEMPERATURE_MARGIN):
            if core is not None:
                tick.set(GPU_TEMPERATURE_MARGIN, slowdown.value - core)
            else:
                tick.absent[GPU_TEMPERATURE_MARGIN] = tick.absent.get(GPU_TEMPERATURE, Reason.ERROR)
        if tick.ask(get_fan, GPU_FAN):
            tick.set(GPU_FAN, fan.value / 100)

    return read


COLLECTOR = Collector(
    name="temperature",
    help="temperatures, margin to slowdown and fan of each card",
    metrics=(GPU_TEMPERATURE, GPU_TEMPERATURE_MARGIN, GPU_FAN),
    prepare=prepare,
)
