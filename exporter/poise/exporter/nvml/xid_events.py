"""The driver's events as a source of XIDs: one set of events in one life of the driver, and the thread that waits on it.

Waits are short, so that the thread can leave; a driver that does not come back from one stops this thread and nothing else. Cards are
registered by their own threads. This file knows no counter.
"""

from __future__ import annotations

import ctypes
import logging
import struct
import threading
from collections.abc import Callable
from typing import TypeVar

import pynvml
from poise.exporter.nvml.library import NOT_SUPPORTED, REFUSALS, SUCCESS, Library, words_of

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

#: How long one call waits for an event. Leaving takes as long at most, and the whole exporter has two seconds for it.
WAIT_MILLISECONDS = 100
#: Waits after a call that failed: the first, and the longest after doubling.
PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
#: How long is waited for a card that is just being registered before the set is left to it.
_FREE_SECONDS = 0.1
_NOTHING_WRONG = (SUCCESS, pynvml.NVML_ERROR_TIMEOUT)
_XID_EVENT: int = pynvml.nvmlEventTypeXidCriticalError
#: nvmlEventData_t: device, eventType, eventData, gpuInstanceId, computeInstanceId.
_DATA = struct.Struct("=QQQII")


class EventSet:
    """A set of events of the driver. Cards may be registered while another thread waits on it (NVML is thread-safe, nvml.h)."""

    def __init__(self, library: Library) -> None:
        self._create = library.function("nvmlEventSetCreate")
        self._free = library.function("nvmlEventSetFree")
        self._supported = library.function("nvmlDeviceGetSupportedEventTypes")
        self._register = library.function("nvmlDeviceRegisterEvents")
        self._wait = library.function("nvmlEventSetWait_v2", "nvmlEventSetWait")
        self._set = ctypes.c_void_p()
        self._data = ctypes.create_string_buffer(_DATA.size)
        self._lock = threading.Lock()  # held while a card is registered: a set that is freed meanwhile would be written to
        self._open = False

    def make(self) -> int:
        """Makes the set; the nvmlReturn_t."""
        code = self._create(ctypes.byref(self._set))
        self._open = code == SUCCESS
        return code

    def register(self, handle: ctypes.c_void_p) -> int:
        """Wants the XIDs of a card, as far as it has such events: one type too many and none is registered (nvml.h). The nvmlReturn_t."""
        types = ctypes.c_ulonglong()
        code = self._supported(handle, ctypes.byref(types))
        if code != SUCCESS:
            return code
        wanted = types.value & _XID_EVENT
        if not wanted:
            return NOT_SUPPORTED
        with self._lock:
            return self._register(handle, ctypes.c_ulonglong(wanted), self._set) if self._open else int(pynvml.NVML_ERROR_UNINITIALIZED)

    def wait(self, milliseconds: int) -> tuple[int, int, int]:
        """The nvmlReturn_t of one wait (TIMEOUT when nothing came), and the card's handle as a number and its XID."""
        code = self._wait(self._set, self._data, ctypes.c_uint(milliseconds))
        if code != SUCCESS:
            return code, 0, 0
        device, kind, data, _, _ = _DATA.unpack(self._data)
        return code, device, data if kind == _XID_EVENT else 0

    def free(self) -> None:
        """Frees the set, unless a card hangs while it is being registered."""
        if self._lock.acquire(timeout=_FREE_SECONDS):
            try:
                if self._open:
                    self._open = False
                    self._free(self._set)
            finally:
                self._lock.release()


class EventThread(threading.Thread):
    """Waits for events in one life of the driver. `report(handle, code)` gets each XID, with the handle as a number."""

    def __init__(self, library: Library, report: Callable[[int, int], None], monotonic: Callable[[], float]) -> None:
        super().__init__(name="xid-events", daemon=True)
        self._library = library
        self._report = report
        self._monotonic = monotonic
        self._leave = threading.Event()
        self._since: float | None = None  # monotonic, while in the driver
        #: The set in which cards are to be registered; None while there is none.
        self.event_set: EventSet | None = None
        #: Why no events come, in words; "" while they do.
        self.problem = ""
        #: The nvmlReturn_t with which this driver refuses events for good; else SUCCESS.
        self.refusal = SUCCESS

    def stop(self) -> None:
        """Tells the thread to leave."""
        self._leave.set()

    @property
    def left(self) -> bool:
        """Whether it was told to leave and did."""
        return self._leave.is_set() and not self.is_alive()

    def stuck(self, now: float, deadline: float) -> bool:
        """Whether a call into the driver is past its deadline (seconds)."""
        since = self._since
        return since is not None and now - since > deadline

    def run(self) -> None:
        pause = PAUSE_SECONDS
        while not self._leave.is_set():
            begun = self._monotonic()
            code = self.begin()
            try:
                while code in _NOTHING_WRONG and not self._leave.is_set():
                    code = self.take(WAIT_MILLISECONDS)
            finally:
                self.end()
            if self._leave.is_set():
                return
            if code in REFUSALS:
                self.refusal = code  # this driver has no events
                return
            # The set is made anew: after a card was lost, with those cards that still register.
            if self._monotonic() - begun > LONGEST_PAUSE_SECONDS:
                pause = PAUSE_SECONDS
            self._leave.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def begin(self) -> int:
        """Makes the set; the nvmlReturn_t."""
        events = EventSet(self._library)
        code = self._timed(events.make)
        if code != SUCCESS:
            return self._failed("nvmlEventSetCreate", code)
        self.event_set, self.problem = events, ""
        return code

    def take(self, milliseconds: int) -> int:
        """Waits for one event at most so long, and reports it; the nvmlReturn_t."""
        events = self.event_set
        assert events is not None
        code, handle, xid = self._timed(lambda: events.wait(milliseconds))
        if code == SUCCESS and xid:
            self._report(handle, xid)
        return code if code in _NOTHING_WRONG else self._failed("nvmlEventSetWait", code)

    def end(self) -> None:
        """Gives the set up."""
        events, self.event_set = self.event_set, None
        if events is not None:
            self._timed(events.free)

    def _timed(self, call: Callable[[], Result]) -> Result:
        self._since = self._monotonic()
        try:
            return call()
        finally:
            self._since = None

    def _failed(self, call: str, code: int) -> int:
        words = f"{call}: {words_of(code)}"
        if words != self.problem:
            logger.info("no events from the driver: %s", words)
        self.problem = words
        return code
