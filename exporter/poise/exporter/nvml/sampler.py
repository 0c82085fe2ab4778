"""Keeps every card read in the background: one thread per card, one for the driver, and a view of the newest state that never waits.

A driver call that hangs cannot be interrupted, so no thread ever waits for a card's: a card whose tick takes longer than the deadline is
shown as down (`timeout`) until its thread comes back. Cards are known by UUID for as long as the process lives. This file knows no metric.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from poise.exporter.nvml.card import Card, CardMemory, Collector, Peer
from poise.exporter.nvml.driver import Driver, DriverError
from poise.exporter.nvml.library import DRIVER_GONE, LIBRARY_NAME, LOST, NvmlFailure
from poise.exporter.nvml.reader import SIMULATED_PREFIX, CardReader, CardSilent, Run
from poise.exporter.snapshot import CollectorStatus, DriverInfo, Gpu, GpuIdentity, Reason

logger = logging.getLogger(__name__)


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


DRIVER_COLLECTOR = "driver"


@dataclass(slots=True)
class _Record:
    """All that is kept of one card, over losses and driver reloads. Written by the card's thread, read by anybody."""

    gpu: Gpu
    finished: float  # monotonic
    owner: _Worker
    memory: CardMemory = field(default_factory=CardMemory)
    runs: dict[str, Run] = field(default_factory=dict)
    pci_bus_id: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """The state of driver and cards at one moment. Cards are in order of their index."""

    driver: DriverInfo
    gpus: tuple[Gpu, ...]
    collectors: tuple[CollectorStatus, ...]
    #: Whether a thread is stuck in the driver: the process can then not leave in the ordinary way.
    stuck: bool


class _Worker(threading.Thread):
    """The thread of one NVML index in one life of the driver."""

    def __init__(self, sampler: Sampler, driver: Driver, index: int, phase: float) -> None:
        super().__init__(name=f"gpu-{index}", daemon=True)
        self.index = index
        self.leave = threading.Event()
        self.started: float | None = None  # monotonic, while in the driver
        self.reader: CardReader | None = None
        self.record: _Record | None = None
        self._sampler = sampler
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
        return started is not None and now - started > self._sampler.timing.deadline

    @property
    def current(self) -> str:
        """The collector that is running now, or an empty string."""
        return self.reader.current if self.reader else ""

    def run(self) -> None:
        clock = self._sampler.monotonic
        while not self.leave.wait(max(0.0, self._due - clock())):
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
                self._due = max(self._due + self._sampler.interval, now)
            self.begun = True

    def _turn(self, begun: float) -> float:
        """One tick; how long to wait for the next, 0 for the usual interval."""
        try:
            if self.reader is None or begun - self._prepared_at > self._sampler.timing.prepare:
                self._attach()
                self._prepared_at = begun
            assert self.reader is not None
            gpu = self.reader.tick()
        except NvmlFailure as failure:
            self.reader = None
            if failure.code in DRIVER_GONE:
                self._sampler.driver_gone(self, str(failure))
            self._down(Reason.GPU_LOST if failure.code in LOST else Reason.ERROR, str(failure))
            return self._sampler.timing.look
        except CardSilent as silence:
            if self._down(Reason.ERROR, str(silence)):
                # Perhaps it is not the card: after a driver reload all calls fail until NVML is initialised again.
                self._sampler.look()
            return 0.0
        except Exception as error:  # a fault of ours in one card must not end its thread
            logger.exception("reading card %d failed", self.index)
            self.reader = None
            self._down(Reason.ERROR, f"{type(error).__name__}: {error}")
            return self._sampler.timing.look
        self.failure = ""
        took = self._sampler.monotonic() - begun
        if took > self._sampler.timing.deadline:
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
        record = self._sampler.claim(self, seen)
        card = Card(
            self._driver.library,
            handle,
            index=self.index,
            uuid=uuid,
            name=name,
            interval=self._sampler.interval,
            driver_version=self._driver.version,
            memory=record.memory,
            peers=lambda: self._sampler.peers(uuid),
        )
        self.record = record
        self.reader = CardReader(card, self._sampler.collectors, record.runs, wall=self._sampler.wall, monotonic=self._sampler.monotonic)

    def _note_hang(self, took: float) -> None:
        """Counts the hang as a failed run of the collector that took longest."""
        assert self.record is not None
        runs = self.record.runs
        name = max(runs, key=lambda key: runs[key].duration)
        run = runs[name]
        words = f"took {took:.0f} s, deadline {self._sampler.timing.deadline:g} s"
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
        record.finished = self._sampler.monotonic()

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
        record.gpu = down(record.gpu, reason)
        record.finished = self._sampler.monotonic()
        return new


def down(gpu: Gpu, reason: Reason) -> Gpu:
    """The card without readings: identity, and why it is down."""
    return replace(gpu, up=False, down_reason=reason, readings={}, absent={}, processes=None)


class Sampler:
    """All cards of the node."""

    def __init__(
        self,
        collectors: Iterable[Collector],
        interval: float,
        *,
        library: str = LIBRARY_NAME,
        timing: Timing | None = None,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.collectors = tuple(collectors)
        self.interval = interval
        self.timing = timing or Timing()
        self.wall = wall
        self.monotonic = monotonic
        self._library = library
        self._records: dict[str, _Record] = {}
        self._workers: dict[int, _Worker] = {}
        self._lock = threading.Lock()  # of `_records` and `_workers`; never held during a driver call
        self._leave = threading.Event()
        self._wake = threading.Event()
        self._driver: Driver | None = None
        self._info = DriverInfo(error="it has not been asked yet")
        self._driver_run = Run(at=wall(), duration=0.0, success=False, error="", last_success=None, failures=0)
        self._asked_driver_at: float | None = None
        self._asked = False
        self._reinitialise = ""
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)

    # ---------------------------------------------------------------------------------------------------------- from outside
    def start(self) -> None:
        """Starts looking for the driver and returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Tells all threads to leave and returns at once; one that hangs in the driver does not."""
        self._leave.set()
        self._wake.set()
        with self._lock:
            for worker in self._workers.values():
                worker.leave.set()

    def join(self, timeout: float) -> bool:
        """Waits for all threads, at most `timeout` seconds in sum; whether they all left."""
        end = self.monotonic() + timeout
        with self._lock:
            threads = [self._thread, *self._workers.values()]
        for thread in threads:
            if thread.is_alive():
                thread.join(max(0.0, end - self.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def view(self) -> View:
        """The newest state. Never waits for a driver call."""
        now = self.monotonic()
        with self._lock:
            records = list(self._records.values())
            workers = list(self._workers.values())
        stuck_workers = [worker for worker in workers if worker.stuck(now)]
        gpus = sorted((self._shown(record, now) for record in records), key=lambda gpu: (gpu.index, gpu.uuid))
        gpus = [gpu for gpu in gpus if not gpu.up or gpu.sampled_at is not None]
        asked_at = self._asked_driver_at
        driver_stuck = asked_at is not None and now - asked_at > self.timing.deadline
        info = self._info
        if driver_stuck and asked_at is not None and not info.driver:
            info = DriverInfo(error=f"it has not answered for {now - asked_at:.0f} s")
        statuses = self._statuses(records, now, driver_stuck, stuck_workers, workers)
        return View(info, tuple(gpus), statuses, driver_stuck or bool(stuck_workers))

    def settled(self) -> bool:
        """Whether the driver was asked and every card had its first turn, so that a view is not merely early."""
        with self._lock:
            workers = list(self._workers.values())
        return self._asked and all(worker.begun for worker in workers)

    # ------------------------------------------------------------------------------------------------------- for the workers
    def claim(self, worker: _Worker, gpu: Gpu) -> _Record:
        """The record of this card, which from now on is this worker's to write."""
        with self._lock:
            record = self._records.get(gpu.uuid)
            if record is None:
                record = self._records[gpu.uuid] = _Record(gpu=gpu, finished=self.monotonic(), owner=worker)
            record.owner = worker
            record.finished = self.monotonic()
            return record

    def peers(self, uuid: str) -> tuple[Peer, ...]:
        """The other cards that answer now, in order of their index."""
        now = self.monotonic()
        found = []
        with self._lock:
            for record in self._records.values():
                reader = record.owner.reader if record.owner.is_alive() else None
                if record.gpu.uuid == uuid or reader is None or not self._shown(record, now).up or not record.pci_bus_id:
                    continue
                found.append(Peer(record.gpu.index, record.gpu.uuid, record.pci_bus_id, reader.card.handle))
        return tuple(sorted(found, key=lambda peer: peer.index))

    def look(self) -> None:
        """Asks the driver's thread to look at the driver now."""
        self._wake.set()

    def driver_gone(self, worker: _Worker, words: str) -> None:
        """A card's call says that the driver must be initialised again."""
        with self._lock:
            if self._workers.get(worker.index) is not worker:
                return
        self._reinitialise = words
        self._wake.set()

    # ------------------------------------------------------------------------------------------------------ what is shown
    def _shown(self, record: _Record, now: float) -> Gpu:
        gpu = record.gpu
        if record.owner.stuck(now):
            return down(gpu, Reason.TIMEOUT)
        if gpu.up and now - record.finished > self.interval + self.timing.deadline:
            # Nobody reads it any more (the driver has it no longer, or is gone itself), or its thread does not get to.
            return down(gpu, Reason.TIMEOUT if record.owner.is_alive() else Reason.GPU_LOST)
        return gpu

    def _statuses(
        self, records: list[_Record], now: float, driver_stuck: bool, stuck: list[_Worker], workers: list[_Worker]
    ) -> tuple[CollectorStatus, ...]:
        run = self._driver_run
        error = run.error
        if driver_stuck:
            error = "the driver does not answer"
        else:
            error = error or next(
                (f"card {worker.index} does not answer and was never seen" for worker in stuck if worker.record is None), ""
            )
            error = error or next((f"card {worker.index}: {worker.failure}" for worker in workers if worker.failure), "")
        statuses = [
            CollectorStatus(DRIVER_COLLECTOR, self.timing.look, run.duration, not error, run.last_success, run.failures, error),
        ]
        shown = [(record, self._shown(record, now)) for record in records]
        for collector in self.collectors:
            statuses.append(self._status(collector, shown))
        return tuple(statuses)

    def _status(self, collector: Collector, shown: list[tuple[_Record, Gpu]]) -> CollectorStatus:
        name = collector.name
        interval = max(collector.interval or 0.0, self.interval)
        failures = sum(record.runs[name].failures for record, _ in shown if name in record.runs)
        errors = [
            f"card {gpu.index} hangs in it" for record, gpu in shown if gpu.down_reason is Reason.TIMEOUT and record.owner.current == name
        ]
        failures += len(errors)  # a hang is counted in its record once it ends
        runs = []
        for record, gpu in shown:
            if gpu.up and name in record.runs:
                runs.append(record.runs[name])
                if record.runs[name].error:
                    errors.append(f"card {gpu.index}: {record.runs[name].error}")
        if not runs:
            last = [record.runs[name].last_success for record, _ in shown if name in record.runs]
            known = [at for at in last if at is not None]
            return CollectorStatus(name, interval, None, False, max(known, default=None), failures, (errors or ["no card answers"])[0])
        successes = [run.last_success for run in runs]
        return CollectorStatus(
            name,
            interval,
            max(run.duration for run in runs),
            not errors,
            None if None in successes else min(at for at in successes if at is not None),
            failures,
            errors[0] if errors else "",
        )

    # ------------------------------------------------------------------------------------------------------ the driver's thread
    def _run(self) -> None:
        timing = self.timing
        backoff = timing.backoff
        reinitialise_after = timing.reinitialise
        lost_since: float | None = None
        while not self._leave.is_set():
            wait = timing.look
            self._asked_driver_at = begun = self.monotonic()
            try:
                if self._driver is None:
                    self._driver = Driver.open(self._library)
                    self._opened()
                self._ensure_workers(self._driver, self._driver.count())
                self._note_driver(begun, "")
                backoff = timing.backoff
            except (DriverError, NvmlFailure) as error:
                self._no_driver(begun, str(error))
                if self._driver is not None:
                    self._reinitialise = str(error)
                wait = backoff
                backoff = min(2 * backoff, timing.longest_backoff)
            finally:
                self._asked_driver_at = None
                self._asked = True
            self._wake.wait(wait)
            self._wake.clear()
            now = self.monotonic()
            self._tell_hangs(now)
            lost_since = (lost_since or now) if self._any_lost(now) else None
            if lost_since is None:
                reinitialise_after = timing.reinitialise
            elif now - lost_since > reinitialise_after and not self._reinitialise:
                lost_since = now
                reinitialise_after = min(2 * reinitialise_after, timing.longest_reinitialise)
                self._reinitialise = "a lost card may have come back"
            if self._reinitialise and self._driver is not None and not self._leave.is_set():
                self._give_up_driver()

    def _tell_hangs(self, now: float) -> None:
        """Logs each hang once: its own thread cannot."""
        with self._lock:
            workers = list(self._workers.values())
        for worker in workers:
            if worker.stuck(now) and not worker.hang_told:
                worker.hang_told = True
                logger.warning("card %d hangs in the driver, in %s", worker.index, worker.current or "its first call")

    def _opened(self) -> None:
        assert self._driver is not None
        self._info = self._driver.info
        logger.info("NVIDIA driver %s, NVML %s, CUDA %s", self._info.driver, self._info.nvml, self._info.cuda)

    def _no_driver(self, begun: float, error: str) -> None:
        if error != self._info.error:
            logger.warning("no NVIDIA driver: %s", error)
        self._info = DriverInfo(error=error)
        self._note_driver(begun, error)

    def _note_driver(self, begun: float, error: str) -> None:
        previous = self._driver_run
        at = self.wall()
        self._driver_run = Run(
            at, self.monotonic() - begun, not error, error, previous.last_success if error else at, previous.failures + bool(error)
        )

    def _any_lost(self, now: float) -> bool:
        """Whether a card is lost, or was seen and is not among the driver's cards any more."""
        with self._lock:
            return any(self._shown(record, now).down_reason is Reason.GPU_LOST for record in self._records.values())

    def _ensure_workers(self, driver: Driver, count: int) -> None:
        """One live thread for each index below `count`. A changed count means that indices may have moved: all start anew."""
        with self._lock:
            known = len(self._workers)
            workers = list(self._workers.values())
        if known and known != count:
            logger.info("the driver now has %d cards, before %d", count, known)
            if not self._dismiss(workers):
                return
            self._workers = {}
        with self._lock:
            if self._leave.is_set():
                return
            for index in range(count):
                worker = self._workers.get(index)
                if worker is None or not worker.is_alive():
                    # After the first, spread over the interval, so that the cards' ticks do not pile up.
                    worker = _Worker(self, driver, index, self.interval * (1 + index / count))
                    self._workers[index] = worker
                    worker.start()

    def _dismiss(self, workers: list[_Worker]) -> bool:
        """Lets idle threads leave; whether all did. A card that no other thread claims soon is lost."""
        now = self.monotonic()
        if any(worker.stuck(now) for worker in workers):
            return False
        for worker in workers:
            worker.leave.set()
        end = now + self.timing.leave
        for worker in workers:
            worker.join(max(0.0, end - self.monotonic()))
        return not any(worker.is_alive() for worker in workers)

    def _give_up_driver(self) -> None:
        """Shuts NVML down for a new start, unless a thread hangs in it: then the driver is left alone."""
        assert self._driver is not None
        with self._lock:
            workers = list(self._workers.values())
        if not self._dismiss(workers):
            return
        logger.info("the NVIDIA driver is initialised again: %s", self._reinitialise)
        self._reinitialise = ""
        with self._lock:
            self._workers = {}
        self._asked_driver_at = self.monotonic()
        try:
            self._driver.close()
        finally:
            self._asked_driver_at = None
            self._driver = None
