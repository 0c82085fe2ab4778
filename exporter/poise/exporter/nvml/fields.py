"""Field values of one card: one array made once, filled by one `nvmlDeviceGetFieldValues` per tick, read without creating objects.

A field's type is not documented and differs by driver: what to read is decided by `nvmlReturn` first, then by `valueType` (nvml.h,
nvmlFieldValue_t). Ids are nvml.h's; those that changed meaning between drivers are resolved where they are used.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pynvml
from poise.exporter.nvml.library import SUCCESS

#: nvmlFieldValue_t is 40 bytes: fieldId, scopeId, timestamp (µs), latencyUsec, valueType, nvmlReturn, value. Of each, the last three.
_ENTRY = "24xiIQ"

#: The scope that means "sum over all links" (nvml.h, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX).
ALL_LINKS = 0xFFFFFFFF

Key = TypeVar("Key")
_UNSIGNED_LONG_LONG: int = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG


def decode(kind: int, raw: int) -> float:
    """The value in the 64 bits of an nvmlValue_t, by its nvmlValueType_t; an unknown type raises ValueError."""
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
        self._arguments: tuple[Any, ...] = ()
        self._layout = struct.Struct("")
        #: Per field: valueType, nvmlReturn and the raw 64 bits. None: not read in this tick.
        self._flat: tuple[int, ...] | None = None
        self._codes: tuple[int, ...] = ()

    def add(self, field_id: int, scope: int = 0) -> int:
        """Wants a field; the number is its place, for `code` and `value`. The same field twice has one place."""
        key = (field_id, scope)
        if key not in self._slots:
            self._slots[key] = len(self._wanted)
            self._wanted.append(key)
            self._array = None
            self._flat = None
        return self._slots[key]

    def forget(self) -> None:
        """A new tick begins: the first value that is asked for reads all fields anew."""
        self._flat = None

    def code(self, place: int) -> int:
        """The nvmlReturn_t of one field in this tick."""
        if self._flat is None:
            self._read()
        return self._codes[place]

    def value(self, place: int) -> float:
        """The value of one field in this tick; only where `code` is SUCCESS."""
        flat = self._flat or self._read()
        return decode(flat[3 * place], flat[3 * place + 2])

    def gather(self, keys: Sequence[Key], first: int, scale: float) -> tuple[dict[Key, float], int]:
        """Key → value times `scale` for the fields from place `first` on, and the nvmlReturn_t of the last that gave none (else SUCCESS).

        Runs over every link of every card in every tick, so the usual case (all gave one, all of one type) is done by slices.
        """
        flat = self._flat or self._read()
        last = first + len(keys)
        codes = self._codes[first:last]
        kinds = flat[3 * first : 3 * last : 3]
        raws = flat[3 * first + 2 : 3 * last : 3]
        if not any(codes) and kinds.count(_UNSIGNED_LONG_LONG) == len(kinds):
            return dict(zip(keys, [raw * scale for raw in raws], strict=True)), SUCCESS
        values: dict[Key, float] = {}
        refusal = SUCCESS
        for key, code, kind, raw in zip(keys, codes, kinds, raws, strict=True):
            if code == SUCCESS:
                values[key] = decode(kind, raw) * scale
            else:
                refusal = code
        return values, refusal

    def _read(self) -> tuple[int, ...]:
        """Asks the driver for all fields at once."""
        count = len(self._wanted)
        if self._array is None:
            self._array = (pynvml.c_nvmlFieldValue_t * count)()
            for entry, (field_id, scope) in zip(self._array, self._wanted, strict=True):
                entry.fieldId, entry.scopeId = field_id, scope
            self._arguments = (self._handle, count, ctypes.byref(self._array))
            self._layout = struct.Struct("=" + _ENTRY * count)
        code = self._function(*self._arguments)
        # What the call as a whole refuses, it refuses for each field.
        self._flat = flat = self._layout.unpack(self._array) if code == SUCCESS else (0, code, 0) * count
        self._codes = flat[1::3]
        return flat
