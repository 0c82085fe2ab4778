"""One card as collectors see it (handle, prepared calls, what must outlive a lost card), and what one run of a collector gave.

Collectors prepare calls once and run them every tick; all memory of refusals lives in the prepared calls. This file knows no metric
by name and no thread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from poise.exporter.metrics import Metric
from poise.exporter.nvml.fields import FieldBatch
from poise.exporter.nvml.library import DRIVER_GONE, LOST, REFUSALS, SUCCESS, Call, Library, NvmlFailure, reason_of, words_of
from poise.exporter.pid_namespace import PidNamespace
from poise.exporter.snapshot import GpuIdentity, GpuProcess, Reason

if TYPE_CHECKING:
    from poise.exporter.nvml.xid_watch import XidWatch

State = TypeVar("State")
Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Peer:
    """Another card of the node that answered lately: what topology and links need to know of it."""

    index: int
    uuid: str
    pci_bus_id: str
    handle: ctypes.c_void_p


@dataclass(slots=True)
class CardMemory:
    """What of a card must survive its loss and a driver reload: integrals that we keep ourselves, keyed by collector."""

    kept: dict[str, object] = field(default_factory=dict)


class Card:
    """One card in one life of the driver. Used by its own thread only."""

    def __init__(
        self,
        library: Library,
        handle: ctypes.c_void_p,
        *,
        index: int,
        uuid: str,
        name: str,
        interval: float,
        driver_version: tuple[int, ...],
        memory: CardMemory,
        peers: Callable[[], tuple[Peer, ...]],
        sysfs: Path = Path("/sys"),
        pid_namespace: PidNamespace = PidNamespace.HOST,
        xids: XidWatch | None = None,
    ) -> None:
        self.library = library
        self.handle = handle
        self.index = index
        self.uuid = uuid
        self.name = name
        self.interval = interval
        self.driver_version = driver_version
        self.peers = peers
        self.sysfs = sysfs
        self.pid_namespace = pid_namespace
        #: Who listens for the card's XIDs; None where nobody does.
        self.xids = xids
        self._memory = memory
        self._releases: list[Callable[[], object]] = []
        #: NVLink links → bus id of the far end ("" unknown) and its type; written by the collector of links, read by topology. A link
        #: that is down does not tell, so what it told before is kept.
        self.link_peers: dict[int, tuple[str, str]] = self.keep("link_peers", dict)

    def call(self, names: str | tuple[str, ...], *arguments: Any) -> Call:
        """A prepared call ``name(handle, *arguments)``; with several names, the first symbol that the library has."""
        candidates = (names,) if isinstance(names, str) else names
        return Call(candidates[0], self.library.function(*candidates), (self.handle, *arguments))

    def fields(self) -> FieldBatch:
        """A new, empty array of field values of this card."""
        return FieldBatch(self.library.function("nvmlDeviceGetFieldValues"), self.handle)

    def keep(self, key: str, make: Callable[[], State]) -> State:
        """State that outlives this object, made at first use."""
        return cast(State, self._memory.kept.setdefault(key, make()))

    def on_close(self, release: Callable[[], object]) -> None:
        """What has to be given back to the driver when this card's readers are dropped."""
        self._releases.append(release)

    def close(self) -> None:
        """Gives back what readers hold in the driver. In the card's own thread, and before NVML is shut down or unloaded."""
        while self._releases:
            self._releases.pop()()


class Tick:
    """One run of the collectors of one interval on one card: what they read, what they could not and why.

    `now` is monotonic seconds; `quicker` are the newest runs of the shorter intervals. A call that fails puts the reason on the metrics that
    it would have fed; a refusal (not supported, no permission, unknown to this driver) is an answer, everything else is also an `error` of
    the collector that runs.
    """

    __slots__ = ("absent", "answered", "error", "identity", "now", "processes", "processes_complete", "quicker", "readings")

    def __init__(self, now: float, quicker: Sequence[Tick] = ()) -> None:
        self.now = now
        self.quicker = quicker
        self.readings: dict[Metric, Mapping[Labels, float]] = {}
        self.absent: dict[Metric, Reason] = {}
        self.processes: tuple[GpuProcess, ...] | None = None
        #: Whether `processes` holds those of other pid namespaces too.
        self.processes_complete = True
        self.identity: GpuIdentity | None = None
        #: Whether the driver answered anything, if only with a refusal.
        self.answered = False
        #: What went wrong in the collector that is running; the reader clears it between two.
        self.error = ""

    def ask(self, call: Call, *metrics: Metric) -> bool:
        """Runs a call; True when it succeeded, else the metrics are marked absent.

        Raises:
            NvmlFailure: the card is lost or the driver is gone.
        """
        code = call.refusal
        if not code:
            code = call.function(*call.arguments)
            if code == SUCCESS:
                self.answered = True
                return True
            if code in REFUSALS:
                call.refusal = code
                self.answered = True
        self.refuse(code, call.name, *metrics)
        return False

    def refuse(self, code: int, what: str, *metrics: Metric) -> None:
        """Notes that `what` failed with this nvmlReturn_t and that these metrics are therefore absent.

        Raises:
            NvmlFailure: the card is lost or the driver is gone.
        """
        if code in LOST or code in DRIVER_GONE:
            raise NvmlFailure(what, code)
        if code not in REFUSALS and not self.error:
            self.error = f"{what}: {words_of(code)}"
        reason = reason_of(code)
        for metric in metrics:
            self.absent.setdefault(metric, reason)

    def given(self, metric: Metric) -> bool:
        """Whether a collector that ran before gives this series, here or at a shorter interval."""
        return bool(self.readings.get(metric)) or any(tick.readings.get(metric) for tick in self.quicker)

    def set(self, metric: Metric, value: float) -> None:
        """The value of a metric without own labels."""
        self.readings[metric] = {(): value}

    def put(self, metric: Metric, values: Mapping[Labels, float]) -> None:
        """All values of a metric with own labels; nothing when there are none."""
        if values:
            self.readings[metric] = values

    def put_fields(self, batch: FieldBatch, metric: Metric, keys: Sequence[Labels], first: int, scale: float = 1) -> None:
        """The values of the fields from place `first` on, one per label tuple, times `scale`; absent only when no field gave one."""
        values, refusal = batch.gather(keys, first, scale)
        if values:
            self.answered = True
            self.readings[metric] = values
        if refusal and (not values or refusal in LOST or refusal in DRIVER_GONE):
            self.refuse(refusal, "nvmlDeviceGetFieldValues", metric)

    def field(self, batch: FieldBatch, place: int, *metrics: Metric) -> float | None:
        """The value of one field, or None and the metrics marked absent."""
        code = batch.code(place)
        if code == SUCCESS:
            self.answered = True
            return batch.value(place)
        self.refuse(code, "nvmlDeviceGetFieldValues", *metrics)
        return None


class Number:
    """A number that the driver gives as a field value, or else by a call of its own.

    A field comes with all others of its interval in one call of the driver. A driver that is older than the field, or a card that lacks it
    there, refuses it: then, and whenever the field fails, the call is asked instead.
    """

    __slots__ = ("_batch", "_call", "_place", "_value")

    def __init__(self, batch: FieldBatch, field_id: int, call: Call, value: Any) -> None:
        """`value`: the ctypes number that `call` writes, in the unit of the field."""
        self._batch = batch
        self._place: int | None = batch.add(field_id)
        self._call = call
        self._value = value

    def read(self, tick: Tick, *metrics: Metric) -> float | None:
        """The number, or None and the metrics marked absent.

        Raises:
            NvmlFailure: the card is lost or the driver is gone.
        """
        if self._place is not None:
            code = self._batch.code(self._place)
            if code == SUCCESS:
                tick.answered = True
                return self._batch.value(self._place)
            if code in REFUSALS:
                self._place = None
            elif code in LOST or code in DRIVER_GONE:
                tick.refuse(code, "nvmlDeviceGetFieldValues", *metrics)
        return float(self._value.value) if tick.ask(self._call, *metrics) else None


class Read(Protocol):
    """What a prepared collector does in a tick."""

    def __call__(self, tick: Tick) -> None: ...


class Prepare(Protocol):
    """Prepares a collector for one card: makes structs, calls and fields, and returns what runs each tick."""

    def __call__(self, card: Card, fields: FieldBatch) -> Read: ...


@dataclass(frozen=True, slots=True)
class Collector:
    """The declaration of a collector: one file, one job.

    `interval` in seconds; None means every tick. `metrics` are all that it may give. `help` is the help of its flag.
    """

    name: str
    help: str
    metrics: tuple[Metric, ...]
    prepare: Prepare
    interval: float | None = None
    #: False for what a card cannot be published without.
    optional: bool = True
    #: False for what runs only when it was switched on by name, because it costs more than it mostly gives.
    on_by_default: bool = True
