"""Every answer of the driver as it is: all field values of all cards by number, and the plain calls that write one number."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml
from gpu_probe.nvml import Nvml

#: Beyond the newest id of nvml.h 13.4 (302).
LAST_FIELD = 320
ALL_LINKS = 0xFFFFFFFF
#: Fields with a link as scope.
LINK_FIELDS = (138, 139, 140, 141, 161, 162, 163, 164, 165, 166, 167, *range(201, 223), 296)
NUMBERS = (
    "nvmlDeviceGetIndex",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetModuleId",
    "nvmlDeviceGetBrand",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetNumaNodeId",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetSupportedClocksEventReasons",
    "nvmlDeviceGetFanSpeed",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetGpuMaxPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetPcieReplayCounter",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceGetNumGpuCores",
    "nvmlDeviceGetMemoryBusWidth",
)


def dump(nvml: Nvml) -> dict[str, Any]:
    """JSON-ready. A field or call without a value has its nvmlReturn_t."""
    cards = []
    for gpu in nvml.gpus:
        fields: dict[str, Any] = {}
        for field in nvml.fields(gpu, [(number, 0) for number in range(1, LAST_FIELD + 1)]):
            fields[str(field.field)] = (
                {"code": field.code} if field.code else {"type": field.kind, "value": field.value, "us": field.latency}
            )
        links: dict[str, Any] = {}
        count = int(nvml.field(gpu, pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT).value or 0)
        scopes = (*range(count), ALL_LINKS) if count else ()
        for field in nvml.fields(gpu, [(number, scope) for number in LINK_FIELDS for scope in scopes]):
            if not field.code:
                links.setdefault(str(field.field), {})["all" if field.scope == ALL_LINKS else str(field.scope)] = field.value
        calls: dict[str, Any] = {}
        for name in NUMBERS:
            code, value = nvml.number(name, gpu.handle, kind=ctypes.c_ulonglong)
            calls[name] = {"code": code} if code else {"value": value}
        for clock in range(4):
            for name in ("nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo"):
                code, value = nvml.number(name, gpu.handle, ctypes.c_int(clock))
                calls[f"{name}({clock})"] = {"code": code} if code else {"value": value}
        for threshold in range(8):
            code, value = nvml.number("nvmlDeviceGetTemperatureThreshold", gpu.handle, ctypes.c_int(threshold))
            calls[f"nvmlDeviceGetTemperatureThreshold({threshold})"] = {"code": code} if code else {"value": value}
        cards.append(
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "name": gpu.name,
                "serial": gpu.serial,
                "pci": gpu.bus_id,
                "fields": fields,
                "link_fields": links,
                "calls": calls,
            }
        )
    return {"cards": cards, "failures": nvml.failures}
