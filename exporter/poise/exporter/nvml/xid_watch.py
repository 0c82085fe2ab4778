"""Listens for XIDs: joins the driver's events and the kernel log to the cards' ledgers, and says in the log what came.

One for the life of the process. Events come and go with the driver, the kernel log stays; a card is known to events by its handle and to the
kernel log by its PCI address. How an error that both tell is counted once stands in xid.py.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from poise.exporter.nvml.kernel_log import KernelLog, KernelXid, bus_address
from poise.exporter.nvml.library import SUCCESS, Library
from poise.exporter.nvml.xid import TELL_SECONDS, Source, XidLedger
from poise.exporter.nvml.xid_catalogue import Severity, lookup
from poise.exporter.nvml.xid_events import EventSet, EventThread

logger = logging.getLogger(__name__)

#: XIDs of PCI addresses at which NVML has (yet) no card: so many addresses and so many XIDs of each are kept for when one appears.
_MOST_ADDRESSES = 32
_MOST_WAITING = 64
#: So many different errors of switches, and of cards that are not ours, are logged.
_MOST_TOLD = 256


@dataclass(frozen=True, slots=True)
class _Listed:
    """A card that joined."""

    index: int
    uuid: str
    ledger: XidLedger


@dataclass(frozen=True, slots=True)
class _Line:
    """An XID of the kernel log. `now`: monotonic seconds of reading, `at`: Unix seconds of the error."""

    code: int
    now: float
    at: float
    history: bool


class NoThreadError(Exception):
    """The system has no thread left; the message says for what."""


class XidWatch:
    """Both sources and the cards."""

    def __init__(
        self, *, wall: Callable[[], float], monotonic: Callable[[], float], deadline: float, kernel_log: Path | None = None
    ) -> None:
        """`deadline`: seconds after which a call into the driver hangs. `kernel_log`: where it is read; None leaves it alone."""
        self._wall = wall
        self._monotonic = monotonic
        self._deadline = deadline
        self._lock = threading.Lock()  # of what follows; never held during a driver call
        self._by_handle: dict[int, str] = {}
        self._by_uuid: dict[str, _Listed] = {}
        self._by_address: dict[str, _Listed] = {}
        self._waiting: dict[str, list[_Line]] = {}
        self._told_of_others: dict[tuple[str, int], float] = {}
        self._events: EventThread | None = None
        self._stopped = False
        self._log = KernelLog(kernel_log, self.on_line) if kernel_log is not None else None

    # ------------------------------------------------------------------------------------------------------------- the sources
    def start(self) -> None:
        """Begins to follow the kernel log."""
        if self._log is None:
            return
        if self._log.problem:
            logger.info("XIDs come from NVML's events alone; the kernel log cannot be read (%s)", self._log.problem)
        self._log.start()

    def stop(self) -> None:
        """Tells all threads to leave and returns at once."""
        self._stopped = True
        if self._log is not None:
            self._log.stop()
        if self._events is not None:
            self._events.stop()

    def threads(self) -> list[threading.Thread]:
        """Those that run."""
        return [thread for thread in (self._log, self._events) if thread is not None and thread.is_alive()]

    def open(self, library: Library) -> None:
        """Waits for events of a driver that was initialised; nothing when that is done already. Raises NoThreadError."""
        # One that hung when it was told to leave, for a new start that did not come, has left by now.
        if self._events is None or self._events.left:
            events = EventThread(library, self.on_event, self._monotonic)
            self.attach(events)
            try:
                events.start()
            except RuntimeError as problem:  # what threading says of it; the next look tries again
                self._events = None
                raise NoThreadError(f"XIDs are not waited for: {problem}; raise the limit of processes") from None
            if self._stopped:  # meanwhile, by another thread, which may not have seen this one
                events.stop()

    def attach(self, events: EventThread) -> None:
        """Takes these events, whoever asks for them."""
        self._events = events

    def close(self, timeout: float) -> bool:
        """Leaves the driver, which is to be shut down; whether the thread left within `timeout` real seconds."""
        if self._events is None:
            return True
        self._events.stop()
        self._events.join(timeout)
        if self._events.is_alive():
            return False
        self._events = None
        with self._lock:
            self._by_handle.clear()
        return True

    def stuck(self, now: float) -> bool:
        """Whether the thread that waits for events hangs in the driver. `now`: monotonic seconds."""
        return self._events is not None and self._events.stuck(now, self._deadline)

    @property
    def event_set(self) -> EventSet | None:
        """Where cards are to be registered now."""
        return self._events.event_set if self._events is not None else None

    @property
    def event_refusal(self) -> int:
        """The nvmlReturn_t with which this driver refuses events altogether; else SUCCESS."""
        return self._events.refusal if self._events is not None else SUCCESS

    @property
    def event_problem(self) -> str:
        """Why no events come, in words; "" while they do."""
        if self.stuck(self._monotonic()):
            return "the driver does not come back from waiting for events"
        return self._events.problem if self._events is not None else ""

    @property
    def log_readable(self) -> bool:
        """Whether the kernel log is followed."""
        return self._log is not None and not self._log.problem

    @property
    def log_problem(self) -> str:
        """Why it is not, in words."""
        return self._log.problem if self._log is not None else "it is not asked"

    # --------------------------------------------------------------------------------------------------------------- the cards
    def join(self, index: int, uuid: str, bus_id: str, ledger: XidLedger) -> None:
        """A card and where its XIDs are counted. What the kernel log told of its address before is counted now."""
        listed = _Listed(index, uuid, ledger)
        address = bus_address(bus_id)
        with self._lock:
            self._by_uuid[uuid] = listed
            if address:
                self._by_address[address] = listed
            waiting = self._waiting.pop(address, [])
        for line in waiting:
            self._take_line(listed, line)

    def register(self, events: EventSet, handle: ctypes.c_void_p, uuid: str) -> int:
        """Registers a card for events, from the card's own thread; the nvmlReturn_t."""
        with self._lock:
            self._by_handle[handle.value or 0] = uuid
        code = events.register(handle)
        if code == SUCCESS:
            logger.debug("XIDs of %s come as events", uuid)
        return code

    # ------------------------------------------------------------------------------------------------------------------ reports
    def on_event(self, handle: int, code: int) -> None:
        """The driver tells of an XID of the card with this handle."""
        with self._lock:
            listed = self._by_uuid.get(self._by_handle.get(handle, ""))
        if listed is None:
            logger.warning("XID %d of a card that is not known", code)
            return
        self._count(listed, Source.EVENT, code, self._monotonic(), self._wall())

    def on_line(self, xid: KernelXid, history: bool) -> None:
        """The kernel log tells of an XID. `history`: it stood there before the exporter started."""
        now = self._monotonic()
        # The kernel stamps its records by a clock that runs like the monotonic one.
        at = self._wall() - max(0.0, now - xid.at) if history else self._wall()
        if xid.switch:
            self._tell_switch(xid, now, history)
            return
        line = _Line(xid.code, now, at, history)
        with self._lock:
            listed = self._by_address.get(xid.bus_id)
            if listed is None and (xid.bus_id in self._waiting or len(self._waiting) < _MOST_ADDRESSES):
                waiting = self._waiting.setdefault(xid.bus_id, [])
                waiting.append(line)
                del waiting[:-_MOST_WAITING]
        if listed is not None:
            self._take_line(listed, line)
        elif not history and self._worth_telling(xid, now):
            logger.warning("XID %d of PCI %s, where NVML lists no card: %s", xid.code, xid.bus_id, _words(xid.code))

    def _take_line(self, listed: _Listed, line: _Line) -> None:
        if line.history:
            listed.ledger.remember(line.code, line.at)
            self._tell(listed, line.code, line.now, "before the exporter started: ")
        else:
            self._count(listed, Source.LOG, line.code, line.now, line.at)

    def _count(self, listed: _Listed, source: Source, code: int, now: float, at: float) -> None:
        if listed.ledger.observe(source, code, now, at):
            self._tell(listed, code, now, "")

    @staticmethod
    def _tell(listed: _Listed, code: int, now: float, when: str) -> None:
        if listed.ledger.worth_telling(code, now, history=bool(when)):
            level = logging.INFO if when or lookup(code).severity is Severity.INFORMATION else logging.WARNING
            logger.log(level, "card %d (%s): %sXID %d, %s", listed.index, listed.uuid, when, code, _words(code))

    def _tell_switch(self, xid: KernelXid, now: float, history: bool) -> None:
        """An NVSwitch is no card of ours: its errors are told and have no series."""
        if self._worth_telling(xid, now):
            level, when = (logging.INFO, "before the exporter started: ") if history else (logging.WARNING, "")
            logger.log(level, "NVSwitch at PCI %s: %sSXID %d, %s", xid.bus_id, when, xid.code, xid.text or "no text")

    def _worth_telling(self, xid: KernelXid, now: float) -> bool:
        """Whether an error of what is no card of ours should be logged now, which is then noted."""
        key = (xid.bus_id, xid.code)
        told = self._told_of_others.get(key)
        if told is None and len(self._told_of_others) >= _MOST_TOLD:
            return False
        if told is not None and now - told < TELL_SECONDS:
            return False
        self._told_of_others[key] = now
        return True


def _words(code: int) -> str:
    entry = lookup(code)
    return f"{entry.name}: {entry.meaning}; {entry.action}"
