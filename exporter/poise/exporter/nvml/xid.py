"""XIDs of a card: how often each was reported and when last, from NVML's events and from the kernel log, each error once.

Owns the counting. The counters are kept by us, not by the card: a card that is lost, most of all, keeps them (docs/adr/0011). Who listens
is xid_watch.py; what a code means is xid_catalogue.py.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Mapping
from enum import Enum

import pynvml
from poise.exporter.metrics import GPU_XID_ERRORS, GPU_XID_LAST, Metric
from poise.exporter.nvml.card import Card, CardMemory, Collector, Labels, Read, Tick
from poise.exporter.nvml.fields import FieldBatch
from poise.exporter.nvml.identity import sysfs_bus_id
from poise.exporter.nvml.library import DRIVER_GONE, LOST, NOT_SUPPORTED, REFUSALS, SUCCESS, NvmlFailure, words_of
from poise.exporter.nvml.xid_catalogue import FATAL, UNKNOWN_CODE
from poise.exporter.snapshot import Readings

NAME = "xid"
METRICS = (GPU_XID_ERRORS, GPU_XID_LAST)

#: Both sources tell of an error at once; so much later they tell of two.
PAIR_SECONDS = 10.0
#: More codes than the catalogue has (about 110) are counted as unknown, whatever a driver or a log may say.
MOST_CODES = 160
#: Sightings that wait for their other half, per code: more within PAIR_SECONDS are a storm, of which a few may count twice.
_MOST_UNPAIRED = 1000
#: A card's XID of one code is logged once in so many seconds.
TELL_SECONDS = 60.0
#: A registration that failed for no lasting reason is tried again after so many seconds.
RETRY_SECONDS = 30.0
_CALL = "nvmlDeviceRegisterEvents"
#: Refusals of cards that know no events at all.
_NO_FAULT = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT)


class Source(Enum):
    """Who told of an XID."""

    EVENT = "NVML event"
    LOG = "kernel log"

    @property
    def other(self) -> Source:
        """The one that may tell of the same error."""
        return Source.LOG if self is Source.EVENT else Source.EVENT


class XidLedger:
    """The XIDs of one card. Written by those who listen, read by the card's thread and by views: every method may be called by any thread.

    An error is counted when the first source tells of it. The other source's word for the same code within PAIR_SECONDS is taken for
    the same error. So what only one of them tells counts as well: the kernel log of a card that is lost, an event without a line.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Labels, float] = {(str(code),): 0.0 for code in FATAL}
        self._last: dict[Labels, float] = {}
        self._unpaired: dict[tuple[Source, int], deque[float]] = {}
        self._told: dict[tuple[int, bool], float] = {}
        self._readings: dict[Metric, Mapping[Labels, float]] = {}
        self._publish()
        #: The set of events in which the card is registered; of the thread of the card alone, as all below.
        self.registered: object = None
        #: nvmlReturn_t of the last registration, where the card cannot have events and nothing else tells of its XIDs.
        self.refusal = SUCCESS
        #: Why it is in none, in words.
        self.problem = ""
        self.tried_at = float("-inf")

    @property
    def readings(self) -> Readings:
        """Counts and times as they now are; never changed afterwards."""
        return self._readings

    def observe(self, source: Source, code: int, now: float, at: float) -> bool:
        """Takes one report; whether it was counted. `now`: monotonic seconds, `at`: Unix seconds."""
        code = self._bounded(code)
        with self._lock:
            others = self._pruned(source.other, code, now)
            if others:
                others.popleft()
                return False
            self._pruned(source, code, now).append(now)
            key = (str(code),)
            self._counts[key] = self._counts.get(key, 0.0) + 1
            self._last[key] = max(at, self._last.get(key, at))
            self._publish()
            return True

    def remember(self, code: int, at: float) -> None:
        """An XID from before the exporter started: known by its time, not counted (after a restart it would count again)."""
        key = (str(self._bounded(code)),)
        with self._lock:
            self._last[key] = max(at, self._last.get(key, at))
            self._publish()

    def worth_telling(self, code: int, now: float, *, history: bool = False) -> bool:
        """Whether this code should be logged now, which is then noted. An XID of before does not silence the next."""
        key = (self._bounded(code), history)
        with self._lock:
            told = self._told.get(key)
            if told is not None and now - told < TELL_SECONDS:
                return False
            self._told[key] = now
            return True

    def _bounded(self, code: int) -> int:
        known = (str(code),) in self._counts or (str(code),) in self._last
        return code if known or (0 < code < UNKNOWN_CODE and len(self._counts.keys() | self._last.keys()) < MOST_CODES) else UNKNOWN_CODE

    def _pruned(self, source: Source, code: int, now: float) -> deque[float]:
        waiting = self._unpaired.setdefault((source, code), deque(maxlen=_MOST_UNPAIRED))
        while waiting and now - waiting[0] > PAIR_SECONDS:
            waiting.popleft()
        return waiting

    def _publish(self) -> None:
        self._readings = {GPU_XID_ERRORS: dict(self._counts)}
        if self._last:
            self._readings[GPU_XID_LAST] = dict(self._last)


def kept_readings(memory: CardMemory) -> Readings:
    """What a card that is down still has: its XIDs, where something listens for them."""
    ledger = memory.kept.get(NAME)
    return ledger.readings if isinstance(ledger, XidLedger) and not ledger.refusal else {}


def prepare(card: Card, fields: FieldBatch) -> Read:
    """Registers the card for events, from its own thread so that a card that hangs in it costs no other its events."""
    ledger = card.keep(NAME, XidLedger)
    watch = card.xids
    if watch is not None:
        pci = pynvml.nvmlPciInfo_t()
        get_pci = card.call(("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2"), ctypes.byref(pci))
        bus_id = sysfs_bus_id(pci.busId) if get_pci.run() == SUCCESS else ""
        watch.join(card.index, card.uuid, bus_id, ledger)

    def register(tick: Tick) -> None:
        assert watch is not None
        now = tick.now
        events = watch.event_set
        if events is None:
            ledger.refusal = SUCCESS if watch.log_readable else watch.event_refusal
            return
        if ledger.registered is events or now - ledger.tried_at < RETRY_SECONDS:
            return
        ledger.tried_at = now
        code = watch.register(events, card.handle, card.uuid)
        if code == SUCCESS:
            tick.answered = True
            ledger.registered, ledger.tried_at = events, float("-inf")
        ledger.refusal = code if code in REFUSALS and not watch.log_readable else SUCCESS
        ledger.problem = f"card {card.index} has no events ({_CALL}: {words_of(code)})" if code else ""
        if code in LOST or code in DRIVER_GONE:
            raise NvmlFailure(_CALL, code)

    def read(tick: Tick) -> None:
        if watch is None:
            tick.refuse(NOT_SUPPORTED, _CALL, *METRICS)
            return
        register(tick)
        problem = ledger.problem or watch.event_problem
        # The kernel log has every XID, and a card that knows no events is no fault of anybody.
        if problem and not watch.log_readable and ledger.refusal not in _NO_FAULT:
            tick.error = f"XIDs may be missed: {problem}; the kernel log cannot be read either ({watch.log_problem})"
        if ledger.refusal:
            tick.refuse(ledger.refusal, _CALL, *METRICS)
            return
        tick.readings.update(ledger.readings)

    return read


COLLECTOR = Collector(name=NAME, help="XID errors of each card, from NVML events and the kernel log", metrics=METRICS, prepare=prepare)
