"""The driver's library as C functions: loading, prepared calls, and what its return codes mean.

Calls go straight through ctypes with arguments that were made once, because a tick makes dozens of them per card. Structs and
constants are nvidia-ml-py's (`pynvml`), which are nvml.h's. This file knows no card, no metric and no thread.
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
from collections.abc import Callable
from typing import Any

import pynvml
from poise.exporter.snapshot import Reason

LIBRARY_NAME = "libnvidia-ml.so.1"

SUCCESS: int = pynvml.NVML_SUCCESS
NOT_FOUND: int = pynvml.NVML_ERROR_NOT_FOUND
INSUFFICIENT_SIZE: int = pynvml.NVML_ERROR_INSUFFICIENT_SIZE
FUNCTION_NOT_FOUND: int = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
NOT_SUPPORTED: int = pynvml.NVML_ERROR_NOT_SUPPORTED
VERSION_MISMATCH: int = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
UNKNOWN: int = pynvml.NVML_ERROR_UNKNOWN

#: The card does not do this, this driver does not know it, or we may not: the answer will be the same next time.
#: INVALID_ARGUMENT is how an older driver answers a sensor, link or struct version that it does not know (nvml.h).
REFUSALS: frozenset[int] = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)
#: The card itself is gone or must be reset.
LOST: frozenset[int] = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
#: The driver is gone from under us: everything has to be initialised again.
DRIVER_GONE: frozenset[int] = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)

_REASONS: dict[int, Reason] = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: Reason.NOT_SUPPORTED,
    pynvml.NVML_ERROR_INVALID_ARGUMENT: Reason.NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION: Reason.NO_PERMISSION,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: Reason.FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: Reason.FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_GPU_IS_LOST: Reason.GPU_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED: Reason.GPU_LOST,
    pynvml.NVML_ERROR_TIMEOUT: Reason.TIMEOUT,
}


def reason_of(code: int) -> Reason:
    """Why a series is absent, from an nvmlReturn_t."""
    return _REASONS.get(code, Reason.ERROR)


def words_of(code: int) -> str:
    """An nvmlReturn_t in words, e.g. "GPU is lost (15)"; asks no library."""
    text = pynvml.NVMLError._errcode_to_string.get(code, "error")
    return f"{text.rstrip('.')} ({code})"


class NvmlFailure(Exception):
    """A call failed in a way that ends what we were doing: the card is lost, or the driver is gone."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(f"{what}: {words_of(code)}")
        self.code = code


class ForeignProcess(Exception):
    """NVML was initialised by another process, of which this one is a fork: handles do not survive that."""


class LibraryMissing(Exception):
    """The driver's library cannot be loaded; the message is the loader's."""


def _missing(*_arguments: object) -> int:
    """Stands in for a symbol that this library does not have."""
    return FUNCTION_NOT_FOUND


class Library:
    """A loaded ``libnvidia-ml.so.1``. Its functions are private to us: argument types set elsewhere (pynvml) do not reach them."""

    def __init__(self, name: str = LIBRARY_NAME) -> None:
        """Loads the library, by soname or path.

        Raises:
            LibraryMissing: there is none, or it cannot be loaded.
        """
        try:
            self._library = ctypes.CDLL(name)
        except OSError as error:
            raise LibraryMissing(str(error)) from None
        self._process = os.getpid()

    def check_process(self) -> None:
        """Raises ForeignProcess in a fork of the process that loaded the library."""
        if os.getpid() != self._process:
            raise ForeignProcess(
                f"NVML was initialised by process {self._process} and this is its fork {os.getpid()}: handles do not survive a fork; "
                "start a new Sampler here"
            )

    def function(self, *names: str) -> Callable[..., int]:
        """The first of these symbols that the library has; else a function that answers FUNCTION_NOT_FOUND."""
        for name in names:
            try:
                function: Callable[..., int] = self._library[name]
            except AttributeError:
                continue
            return function
        return _missing

    def has(self, name: str) -> bool:
        """Whether the library has this symbol."""
        return self.function(name) is not _missing

    def close(self) -> None:
        """Unloads the library, so that the next load finds the file that a driver upgrade put in its place.

        Only for a library that no thread is in and whose functions nobody keeps.
        """
        _ctypes.dlclose(self._library._handle)


class Call:
    """One driver call with its arguments made once. A refusal is remembered: the driver is not asked again by this object."""

    __slots__ = ("arguments", "function", "name", "refusal")

    def __init__(self, name: str, function: Callable[..., int], arguments: tuple[Any, ...]) -> None:
        self.name = name
        self.function = function
        self.arguments = arguments
        self.refusal = FUNCTION_NOT_FOUND if function is _missing else SUCCESS

    def run(self) -> int:
        """The nvmlReturn_t of the call, or of the refusal that it met before."""
        if self.refusal:
            return self.refusal
        code = self.function(*self.arguments)
        if code in REFUSALS:
            self.refusal = code
        return code
