"""The thread of one card: attaches to it, ticks, publishes what it read, and says what is wrong when it cannot.

A driver call that hangs stops this thread and nothing else; whoever shows cards looks at `stuck` and waits for nothing. The rest of the
node is known through `Home` only.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from poise.exporter.metrics import GPU_INFO
from poise.exporter.nvml.card import Card, CardMemory, Collector, Peer
from poise.exporter.nvml.driver import Driver
from poise.exporter.nvml.library import DRIVER_GONE, LOST, NvmlFailure
from poise.exporter.nvml.processes import METRICS as PROCESS_METRICS
from poise.exporter.nvml.reader import SIMULATED_PREFIX, CardReader, CardSilent, Run
from poise.exporter.nvml.xid import METRICS as XID_METRICS
from poise.exporter.nvml.xid_watch import XidWatch
from poise.exporter.pid_namespace import PidNamespace
from poise.exporter.snapshot import Gpu, GpuIdentity, Reason

logger = logging.getLogger(__name__)

#: Reasons that are the card's state of the moment; the others are answers that stay.
_DOWN_REASONS = (Reason.GPU_LOST, Reason.TIMEOUT, Reason.ERROR)


@dataclass(frozen=True, slots=True)
class Timing:
    """Deadlines and waits of the sampler, in seconds."""

    #: A tick that takes longer is a hang. A healthy tick takes milliseconds; a first one without persistence mode was seen at 1.5 s.
    deadline: float = 3.0
    #: How often the driver is asked how many cards it has, and a card that is down is tried again.
    look: float = 5.0
    #: Waits between tries to initialise: the first, and the longest after doubling.
    backoff: float = 1.0
    longest_backoff: float = 30.0
    #: A card that came back to the bus is seen only by a new NVML: how long a loss lasts before that is tried; then the wait doubles.
    reinitialise: float = 30.0
    longest_reinitialise: float = 600.0
    #: Readers are prepared anew so often, which forgets what the driver refused (it may answer now) and counts links again.
    prepare: float = 300.0
    #: How long idle card threads are given to leave before NVML is shut down.
    leave: float = 2.0


@dataclass(slots=True)
class Record:
    """All that is kept of one card, over losses and driver reloads. Written by the card's thread, read by anybody."""

    gpu: Gpu
    finished: float  # monotonic
    owner: CardThread
    memory: CardMemory = field(default_factory=CardMemory)
    runs: dict[str, Run] = field(default_factory=dict)
    pci_bus_id: str = ""


class Home(Protocol):
    """What a card's thread needs of the node."""

    @property
    def collectors(self) -> tuple[Collector, ...]: ...

    @property
    def interval(self) -> float: ...

    @property
    def timing(self) -> Timing: ...

    @property
    def wall(self) -> Callable[[], float]: ...

    @property
    def monotonic(self) -> Callable[[], float]: ...

    @property
    def wait(self) -> Callable[[threading.Event, float], bool]: ...

    @property
    def xids(self) -> XidWatch | None: ...

    @property
    def pid_namespace(self) -> PidNamespace: ...

    def claim(self, thread: CardThread, gpu: Gpu) -> Record:
        """The record of this card, which from now on is this thread's to write."""

    def peers(self, uuid: str) -> tuple[Peer, ...]:
        """The other cards that answer now, in order of their index."""

    def look(self) -> None:
        """Asks for a look at the driver now."""

    def driver_gone(self, thread: CardThread, words: str) -> None:
        """A card's call says that the driver must be initialised again."""


class CardThread(threading.Thread):
    """The thread of one NVML index in one life of the driver."""

    def __init__(self, home: Home, driver: Driver, index: int, phase: float) -> None:
        super().__init__(name=f"gpu-{index}", daemon=True)
        self.index = index
        self.leave = threading.Event()
        self.started: float | None = None  # monotonic, while in the driver
        self.reader: CardReader | None = None
        self.record: Record | None = None
        self._home = home
        self._driver = driver
        self._phase = phase
        self._due = float("-inf")
        self._prepared_at = 0.0
        #: The first turn is over, however it went.
        self.begun = False
        #: Why a card that was never seen is not read; it has no UUID under which that could be shown.
        self.failure = ""
        #: Its hang was logged.
        self.hang_told = False

    def stuck(self, now: float) -> bool:
        """Whether the tick under way is past its deadline."""
        started = self.started
        return started is not None and now - started > self._home.timing.deadline

    @property
    def current(self) -> str:
        """The collector that is running now, or an empty string."""
        return self.reader.current if self.reader else ""

    def run(self) -> None:
        clock = self._home.monotonic
        while not self._home.wait(self.leave, max(0.0, self._due - clock())):
            self.started = begun = clock()
            try:
                pause = self._turn(begun)
            finally:
                self.started = None
            now = clock()
            if pause:
                self._due = now + pause
            elif not self.begun:
                self._due = begun + self._phase
            else:
                self._due = max(self._due + self._home.interval, now)
            self.begun = True
        self._detach()

    def _turn(self, begun: float) -> float:
        """One tick; how long to wait for the next, 0 for the usual interval."""
        try:
            if self.reader is None or begun - self._prepared_at > self._home.timing.prepare:
                self._attach()
                self._prepared_at = begun
            assert self.reader is not None
            gpu = self.reader.tick()
        except NvmlFailure as failure:
            self._detach()
            if failure.code in DRIVER_GONE:
                self._home.driver_gone(self, str(failure))
            self._down(Reason.GPU_LOST if failure.code in LOST else Reason.ERROR, str(failure))
            return self._home.timing.look
        except CardSilent as silence:
            if self._down(Reason.ERROR, str(silence)):
                # Perhaps it is not the card: after a driver reload all calls fail until NVML is initialised again.
                self._home.look()
            return 0.0
        except Exception as error:  # a fault of ours in one card must not end its thread
            logger.exception("reading card %d failed", self.index)
            self._detach()
            self._down(Reason.ERROR, f"{type(error).__name__}: {error}")
            return self._home.timing.look
        self.failure = ""
        took = self._home.monotonic() - begun
        if took > self._home.timing.deadline:
            # What a tick that hung has read is of no one moment; the next tick follows at once.
            self._note_hang(took)
            return 0.0
        self._publish(gpu)
        return 0.0

    def _attach(self) -> None:
        """Gets handle, UUID and name, and prepares the collectors. Whatever fails here is the card's own failure."""
        handle = self._driver.handle(self.index)
        uuid = self._driver.text(handle, "nvmlDeviceGetUUID")
        name = self._driver.text(handle, "nvmlDeviceGetName")
        seen = Gpu(index=self.index, uuid=uuid, identity=GpuIdentity(name=name), simulated=name.startswith(SIMULATED_PREFIX))
        record = self._home.claim(self, seen)
        card = Card(
            self._driver.library,
            handle,
            index=self.index,
            uuid=uuid,
            name=name,
            interval=self._home.interval,
            driver_version=self._driver.version,
            memory=record.memory,
            peers=lambda: self._home.peers(uuid),
            pid_namespace=self._home.pid_namespace,
            xids=self._home.xids,
        )
        self.record = record
        self._detach()
        self.reader = CardReader(card, self._home.collectors, record.runs, wall=self._home.wall, monotonic=self._home.monotonic)

    def _detach(self) -> None:
        """Lets go of the reader, with what it holds in the driver."""
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.close()

    def _note_hang(self, took: float) -> None:
        """Counts the hang as a failed run of the collector that took longest."""
        assert self.record is not None
        runs = self.record.runs
        name = max(runs, key=lambda key: runs[key].duration)
        run = runs[name]
        words = f"took {took:.0f} s, deadline {self._home.timing.deadline:g} s"
        logger.info("card %d (%s) answers again: %s %s", self.index, self.record.gpu.uuid, name, words)
        self.hang_told = False
        runs[name] = run._replace(success=False, error=words, failures=run.failures + 1)

    def _publish(self, gpu: Gpu) -> None:
        record = self.record
        if record is None or record.owner is not self:
            return
        if not record.gpu.up and record.gpu.sampled_at is not None:
            logger.info("card %d (%s) is back", gpu.index, gpu.uuid)
        elif record.gpu.sampled_at is None:
            logger.info("card %d: %s (%s)", gpu.index, gpu.identity.name, gpu.uuid)
        record.pci_bus_id = gpu.identity.pci_bus_id
        record.gpu = gpu
        record.finished = self._home.monotonic()

    def _down(self, reason: Reason, words: str) -> bool:
        """Marks the card down; whether that is new."""
        record = self.record
        if record is None:
            if words != self.failure:
                logger.warning("card %d is not read: %s", self.index, words)
            self.failure = words
        if record is None or record.owner is not self:
            return False
        new = record.gpu.up or record.gpu.down_reason is not reason
        if new:
            logger.warning("card %d (%s) is down, %s: %s", record.gpu.index, record.gpu.uuid, reason, words)
        record.gpu = down(record.gpu, reason, self._home.collectors)
        record.finished = self._home.monotonic()
        return new


def down(gpu: Gpu, reason: Reason, collectors: Iterable[Collector]) -> Gpu:
    """The card without readings: identity, why it is down, and that reason on each series that it would give. XIDs are not read from the
    card and may go on (xid.kept_readings).

    Those are the ones that it gave last, or, of a card that was never read, all that the collectors may give. What the driver had refused
    stays refused: the card would not give it if it were up. One entry a metric, so that a card that is down has fewer series than one that is up.
    """
    if gpu.sampled_at is None:
        given = {metric for collector in collectors for metric in collector.metrics if metric is not GPU_INFO}
    else:
        given = {*gpu.readings, *(PROCESS_METRICS if gpu.processes is not None else ())}
    absent = {metric: reason if why in _DOWN_REASONS else why for metric, why in gpu.absent.items()}
    given.difference_update(absent, XID_METRICS)
    absent.update(dict.fromkeys(sorted(given, key=lambda metric: metric.name), reason))
    return replace(gpu, up=False, down_reason=reason, readings={}, absent=absent, processes=None)
