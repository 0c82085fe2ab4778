"""The driver as a whole: loading and initialising NVML, its versions, how many cards it has, handles to them, and giving it up again.

Any of these calls may hang; whoever calls them does so in a thread that nobody waits for. This file knows no thread and no metric.
"""

from __future__ import annotations

import ctypes
import re

import pynvml
from poise.exporter.nvml.library import LIBRARY_NAME, SUCCESS, VERSION_MISMATCH, Library, LibraryMissing, NvmlFailure, words_of
from poise.exporter.snapshot import DriverInfo

_TEXT_SIZE = 96


class DriverError(Exception):
    """There is no usable driver; the message is for a person."""


class Driver:
    """NVML after its initialisation."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.info = self._read_info()

    @property
    def version(self) -> tuple[int, ...]:
        """The driver's version as numbers, (580, 95, 5); empty when it has none."""
        return tuple(int(number) for number in re.findall(r"\d+", self.info.driver))

    @classmethod
    def open(cls, name: str = LIBRARY_NAME) -> Driver:
        """Loads the library and initialises NVML. `name`: soname or path.

        Raises:
            DriverError: no library, no driver, or the two do not fit.
        """
        try:
            library = Library(name)
        except LibraryMissing as error:
            raise DriverError(f"its library cannot be loaded ({error})") from None
        code = library.function("nvmlInitWithFlags")(ctypes.c_uint(0))
        if code == SUCCESS:
            return cls(library)
        if code == VERSION_MISMATCH:
            # An upgrade put a new library beside the old one. Unload ours, so that the next try finds the new one.
            library.close()
            raise DriverError(
                f"the driver was upgraded and its kernel module does not fit the library yet (nvmlInit: {words_of(code)}); "
                "load the new module or restart the node"
            )
        raise DriverError(f"it does not start (nvmlInit: {words_of(code)})")

    def count(self) -> int:
        """How many cards the driver has, lost ones perhaps included.

        Raises:
            NvmlFailure: the driver does not say.
            ForeignProcess: this process was forked after NVML was initialised.
        """
        self.library.check_process()
        number = ctypes.c_uint()
        code = self.library.function("nvmlDeviceGetCount_v2")(ctypes.byref(number))
        if code != SUCCESS:
            raise NvmlFailure("nvmlDeviceGetCount", code)
        return number.value

    def handle(self, index: int) -> ctypes.c_void_p:
        """The handle of the card with this NVML index.

        Raises:
            NvmlFailure: the card does not answer.
            ForeignProcess: this process was forked after NVML was initialised.
        """
        self.library.check_process()
        handle = ctypes.c_void_p()
        code = self.library.function("nvmlDeviceGetHandleByIndex_v2")(ctypes.c_uint(index), ctypes.byref(handle))
        if code != SUCCESS:
            raise NvmlFailure("nvmlDeviceGetHandleByIndex", code)
        return handle

    def text(self, handle: ctypes.c_void_p, name: str) -> str:
        """A text that a card tells, such as ``nvmlDeviceGetUUID``.

        Raises:
            NvmlFailure: the card does not tell.
        """
        buffer = ctypes.create_string_buffer(_TEXT_SIZE)
        code = self.library.function(name)(handle, buffer, ctypes.c_uint(_TEXT_SIZE))
        if code != SUCCESS:
            raise NvmlFailure(name, code)
        return buffer.value.decode(errors="replace").strip()

    def close(self, *, unload: bool = False) -> None:
        """Shuts NVML down: all handles die. No thread may be in the driver. `unload`: the library goes too, and its functions with it."""
        self.library.check_process()
        self.library.function("nvmlShutdown")()
        if unload:
            self.library.close()

    def _read_info(self) -> DriverInfo:
        cuda = ctypes.c_int()
        code = self.library.function("nvmlSystemGetCudaDriverVersion_v2")(ctypes.byref(cuda))
        # 1000 × major + 10 × minor (nvml.h, NVML_CUDA_DRIVER_VERSION_MAJOR).
        cuda_version = f"{cuda.value // 1000}.{cuda.value % 1000 // 10}" if code == SUCCESS else ""
        return DriverInfo(
            driver=self._system_text("nvmlSystemGetDriverVersion", pynvml.NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE),
            nvml=self._system_text("nvmlSystemGetNVMLVersion", pynvml.NVML_SYSTEM_NVML_VERSION_BUFFER_SIZE),
            cuda=cuda_version,
        )

    def _system_text(self, name: str, size: int) -> str:
        buffer = ctypes.create_string_buffer(size)
        if self.library.function(name)(buffer, ctypes.c_uint(size)) != SUCCESS:
            return ""
        return buffer.value.decode(errors="replace").strip()
