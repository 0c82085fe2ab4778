"""Field values of one card: one array made once, filled by one `nvmlDeviceGetFieldValues` per tick, read without creating objects.

A field's type is not documented and differs by driver: what to read is decided by `nvmlReturn` first, then by `valueType` (nvml.h,
nvmlFieldValue_t). Ids are nvml.h's; those that changed meaning between drivers are resolved where they are used.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pynvml
from poise.exporter.nvml.library import SUCCESS

#: nvmlFieldValue_t: fieldId, scopeId, timestamp (µs), latencyUsec, valueType, nvmlReturn, value; 40 bytes.
_LAYOUT = struct.Struct("=IIqqIiQ")
_RETURN, _TYPE, _VALUE = 5, 4, 6

#: The scope that means "sum over all links" (nvml.h, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX).
ALL_LINKS = 0xFFFFFFFF

Row = tuple[int, int, int, int, int, int, int]
Key = TypeVar("Key")
_UNSIGNED_LONG_LONG: int = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG


def decode(row: Row) -> float:
    """The value of a field whose nvmlReturn is SUCCESS, by its valueType (nvmlValueType_t); an unknown type raises ValueError."""
    kind, raw = row[_TYPE], row[_VALUE]
    if kind in (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG):
        return raw
    if kind == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT:
        return raw & 0xFFFFFFFF
    if kind == pynvml.NVML_VALUE_TYPE_SIGNED_INT:
        return (raw & 0xFFFFFFFF ^ 0x80000000) - 0x80000000
    if kind == pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG:
        return (raw ^ 1 << 63) - (1 << 63)
    if kind == pynvml.NVML_VALUE_TYPE_DOUBLE:
        return float(struct.unpack("=d", raw.to_bytes(8, _BYTE_ORDER))[0])
    if kind == pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT:
        return raw & 0xFFFF
    raise ValueError(f"unknown nvmlValueType_t {kind}")


_BYTE_ORDER: Any = "little" if struct.pack("=H", 1) == b"\x01\x00" else "big"


class FieldBatch:
    """The fields that the collectors of one interval want from one card."""

    def __init__(self, function: Callable[..., int], handle: ctypes.c_void_p) -> None:
        self._function = function
        self._handle = handle
        self._wanted: list[tuple[int, int]] = []
        self._slots: dict[tuple[int, int], int] = {}
        self._array: Any = None
        self._reference: Any = None
        self._code = SUCCESS
        self._rows: list[Row] | None = None

    def add(self, field_id: int, scope: int = 0) -> int:
        """Wants a field; the number is its place, for `code` and `value`. The same field twice has one place."""
        key = (field_id, scope)
        if key not in self._slots:
            self._slots[key] = len(self._wanted)
            self._wanted.append(key)
            self._array = None
            self._rows = None
        return self._slots[key]

    def forget(self) -> None:
        """A new tick begins: the first value that is asked for reads all fields anew."""
        self._rows = None

    def code(self, place: int) -> int:
        """The nvmlReturn_t of one field in this tick."""
        rows = self._rows if self._rows is not None else self._read()
        return rows[place][_RETURN] if rows else self._code

    def value(self, place: int) -> float:
        """The value of one field in this tick; only where `code` is SUCCESS."""
        return decode((self._rows if self._rows is not None else self._read())[place])

    def gather(self, places: Iterable[tuple[Key, int]], scale: float) -> tuple[dict[Key, float], int]:
        """Key → value times `scale` of the fields that gave one, and the nvmlReturn_t of the last that did not (else SUCCESS)."""
        rows = self._rows if self._rows is not None else self._read()
        if not rows:
            return {}, self._code
        values: dict[Key, float] = {}
        refusal = SUCCESS
        for key, place in places:
            row = rows[place]
            if row[5] != SUCCESS:
                refusal = row[5]
            else:
                # The common type inline: this loop runs over every link of every card in every tick.
                values[key] = (row[6] if row[4] == _UNSIGNED_LONG_LONG else decode(row)) * scale
        return values, refusal

    def _read(self) -> list[Row]:
        """Asks the driver for all fields at once."""
        if self._array is None:
            self._array = (pynvml.c_nvmlFieldValue_t * len(self._wanted))()
            for entry, (field_id, scope) in zip(self._array, self._wanted, strict=True):
                entry.fieldId, entry.scopeId = field_id, scope
            self._reference = ctypes.byref(self._array)
        self._code = self._function(self._handle, len(self._wanted), self._reference)
        self._rows = list(_LAYOUT.iter_unpack(self._array)) if self._code == SUCCESS else []
        return self._rows
