"""The driver as the probes see it: cards, plain calls with their return code, field values with type and cost. Calls may hang."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pynvml
from poise.exporter.nvml.driver import Driver
from poise.exporter.nvml.fields import decode
from poise.exporter.nvml.identity import sysfs_bus_id
from poise.exporter.nvml.library import SUCCESS, words_of

Sample: Any = pynvml.c_nvmlGpmSample_t  # a pointer to what only the driver knows

#: One call takes so many field values at most (the driver's own limit is not documented; nvidia-smi asks for about as many).
FIELDS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card that answered."""

    index: int
    handle: ctypes.c_void_p
    uuid: str
    name: str
    serial: str
    bus_id: str
    architecture: int


@dataclass(frozen=True, slots=True)
class Field:
    """One field value as the driver gave it: `code` first, and only then type and value. `latency` in microseconds, the driver's own."""

    field: int
    scope: int
    code: int
    kind: int
    value: float | None
    latency: int

    def text(self) -> str:
        return f"{self.value:g}" if self.code == SUCCESS and self.value is not None else words_of(self.code)


class Nvml:
    """NVML, initialised, and its cards."""

    def __init__(self, library: str) -> None:
        """Raises DriverError with the reason in words."""
        self.driver = Driver.open(library)
        self.gpus: list[Gpu] = []
        self.failures: list[str] = []
        for index in range(self.driver.count()):
            try:
                self.gpus.append(self._gpu(index))
            except Exception as error:  # one card that does not answer is itself an observation
                self.failures.append(f"card {index}: {error}")

    def _gpu(self, index: int) -> Gpu:
        handle = self.driver.handle(index)
        pci = pynvml.nvmlPciInfo_t()
        architecture = ctypes.c_uint()
        self.call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci))
        self.call("nvmlDeviceGetArchitecture", handle, ctypes.byref(architecture))
        try:
            serial = self.driver.text(handle, "nvmlDeviceGetSerial")
        except Exception:  # not every card has one
            serial = ""
        uuid, name = self.driver.text(handle, "nvmlDeviceGetUUID"), self.driver.text(handle, "nvmlDeviceGetName")
        return Gpu(index, handle, uuid, name, serial, sysfs_bus_id(pci.busId), architecture.value)

    def call(self, name: str, *arguments: Any) -> int:
        """The nvmlReturn_t of one call."""
        return int(self.driver.library.function(name)(*arguments))

    def number(self, name: str, *arguments: Any, kind: Any = ctypes.c_uint) -> tuple[int, Any]:
        """The nvmlReturn_t of a call that writes one number behind its arguments, and that number."""
        result = kind()
        return self.call(name, *arguments, ctypes.byref(result)), result.value

    def fields(self, gpu: Gpu, wanted: Sequence[tuple[int, int]]) -> list[Field]:
        """(field, scope) → value, some dozens a call."""
        found: list[Field] = []
        for first in range(0, len(wanted), FIELDS_AT_ONCE):
            part = wanted[first : first + FIELDS_AT_ONCE]
            array = (pynvml.c_nvmlFieldValue_t * len(part))()
            for entry, (field, scope) in zip(array, part, strict=True):
                entry.fieldId, entry.scopeId = field, scope
            code = self.call("nvmlDeviceGetFieldValues", gpu.handle, ctypes.c_int(len(part)), array)
            for entry, (field, scope) in zip(array, part, strict=True):
                own = code or entry.nvmlReturn
                raw = int.from_bytes(bytes(entry.value)[:8], "little")
                try:
                    value = decode(entry.valueType, raw) if own == SUCCESS else None
                except ValueError:
                    value = None
                found.append(Field(field, scope, own, entry.valueType, value, entry.latencyUsec))
        return found

    def field(self, gpu: Gpu, field: int, scope: int = 0) -> Field:
        return self.fields(gpu, [(field, scope)])[0]
