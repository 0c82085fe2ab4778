"""Keeps every card read in the background: one thread per card, one for the driver, and a view of the newest state that never waits.

A driver call that hangs cannot be interrupted, so no thread ever waits for a card's: a card whose tick takes longer than the deadline is
shown as down (`timeout`) until its thread comes back. Cards are known by UUID for as long as the process lives. This file knows no metric.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from poise.exporter.nvml.card import Collector, Peer
from poise.exporter.nvml.driver import Driver, DriverError
from poise.exporter.nvml.library import LIBRARY_NAME, NvmlFailure
from poise.exporter.nvml.process_list import trust
from poise.exporter.nvml.reader import Run
from poise.exporter.nvml.statuses import collector_status, driver_status
from poise.exporter.nvml.worker import CardThread, Record, Timing, down
from poise.exporter.nvml.xid import NAME as XID
from poise.exporter.nvml.xid import kept_readings
from poise.exporter.nvml.xid_watch import NoThreadError, XidWatch
from poise.exporter.pid_namespace import PidNamespace
from poise.exporter.snapshot import CollectorStatus, DriverInfo, Gpu, Reason

logger = logging.getLogger(__name__)

#: The reason for a new start that is no fault of the driver.
_LOOK_FOR_LOST = "a lost card may have come back"


@dataclass(frozen=True, slots=True)
class View:
    """The state of driver and cards at one moment. Cards are in order of their index."""

    driver: DriverInfo
    gpus: tuple[Gpu, ...]
    collectors: tuple[CollectorStatus, ...]
    #: Whether a thread is stuck in the driver: the process can then not leave in the ordinary way.
    stuck: bool


class Sampler:
    """All cards of the node."""

    def __init__(
        self,
        collectors: Iterable[Collector],
        interval: float,
        *,
        library: str = LIBRARY_NAME,
        timing: Timing | None = None,
        kernel_log: Path | None = None,
        pid_namespace: PidNamespace = PidNamespace.HOST,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        """`kernel_log`: where XIDs are read besides the driver's events, None for nowhere. `wait` waits for an event for so many seconds
        of the monotonic clock that is passed with it."""
        self.collectors = tuple(collectors)
        self.interval = interval
        self.timing = timing or Timing()
        self.pid_namespace = pid_namespace
        self.wall = wall
        self.monotonic = monotonic
        self.wait = wait
        self.xids: XidWatch | None = None
        if any(collector.name == XID for collector in self.collectors):
            self.xids = XidWatch(wall=wall, monotonic=monotonic, deadline=self.timing.deadline, kernel_log=kernel_log)
        self._library = library
        self._records: dict[str, Record] = {}
        self._workers: dict[int, CardThread] = {}
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
        if self.xids is not None:
            self.xids.start()
        self._thread.start()

    def stop(self) -> None:
        """Tells all threads to leave and returns at once; one that hangs in the driver does not."""
        self._leave.set()
        self._wake.set()
        if self.xids is not None:
            self.xids.stop()
        with self._lock:
            for worker in self._workers.values():
                worker.leave.set()

    def join(self, timeout: float) -> bool:
        """Waits for all threads, at most `timeout` seconds in sum; whether they all left."""
        end = self.monotonic() + timeout
        with self._lock:
            threads = [self._thread, *self._workers.values(), *(self.xids.threads() if self.xids is not None else ())]
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
        shown = [(record, self._shown(record, now)) for record in records]
        statuses = [driver_status(self._driver_run, self.timing.look, hangs=driver_stuck, stuck=stuck_workers, threads=workers)]
        statuses += [collector_status(collector, self.interval, shown) for collector in self.collectors]
        events_stuck = self.xids is not None and self.xids.stuck(now)
        return View(info, tuple(gpus), tuple(statuses), driver_stuck or bool(stuck_workers) or events_stuck)

    def settled(self) -> bool:
        """Whether the driver was asked and every card had its first turn, so that a view is not merely early."""
        with self._lock:
            workers = list(self._workers.values())
        return self._asked and all(worker.begun for worker in workers)

    # ------------------------------------------------------------------------------------------------------- for the workers
    def claim(self, worker: CardThread, gpu: Gpu) -> Record:
        """The record of this card, which from now on is this worker's to write."""
        with self._lock:
            record = self._records.get(gpu.uuid)
            if record is None:
                record = self._records[gpu.uuid] = Record(gpu=gpu, finished=self.monotonic(), owner=worker)
            # What nobody has read for too long is not new again because somebody is about to: only its next reading is.
            record.gpu = self._state(record, self.monotonic())
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

    def driver_gone(self, worker: CardThread, words: str) -> None:
        """A card's call says that the driver must be initialised again."""
        with self._lock:
            if self._workers.get(worker.index) is not worker:
                return
        self._reinitialise = words
        self._wake.set()

    # ------------------------------------------------------------------------------------------------------ what is shown
    def _shown(self, record: Record, now: float) -> Gpu:
        gpu = self._state(record, now)
        return gpu if gpu.up or self.xids is None else replace(gpu, readings=kept_readings(record.memory))

    def _state(self, record: Record, now: float) -> Gpu:
        gpu = record.gpu
        if record.owner.stuck(now):
            return down(gpu, Reason.TIMEOUT, self.collectors)
        if gpu.up and now - record.finished > self.interval + self.timing.deadline:
            # Nobody reads it any more (the driver has it no longer, or is gone itself), or its thread does not get to.
            return down(gpu, Reason.TIMEOUT if record.owner.is_alive() else Reason.GPU_LOST, self.collectors)
        return gpu

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
                if self.xids is not None and not self._leave.is_set():
                    self.xids.open(self._driver.library)
                self._ensure_workers(self._driver, self._driver.count())
                self._note_driver(begun, "")
                self._info = self._driver.info
                backoff = timing.backoff
            except (DriverError, NvmlFailure) as error:
                self._no_driver(begun, str(error))
                if self._driver is not None:
                    self._reinitialise = str(error)
                wait = backoff
                backoff = min(2 * backoff, timing.longest_backoff)
            except (
                Exception
            ) as error:  # no thread left for a card, or a fault of ours: the cards that are read go on, and it is tried again
                known = isinstance(error, NoThreadError)
                words = str(error) if known else f"{type(error).__name__}: {error}"
                if self._driver_run.error != words:
                    logger.error("%s", words if known else "looking at the driver failed", exc_info=not known)
                self._note_driver(begun, words)
                wait = backoff
                backoff = min(2 * backoff, timing.longest_backoff)
            finally:
                self._asked_driver_at = None
                self._asked = True
            self.wait(self._wake, wait)
            self._wake.clear()
            now = self.monotonic()
            self._tell_hangs(now)
            lost_since = (lost_since or now) if self._any_lost(now) else None
            if lost_since is None:
                reinitialise_after = timing.reinitialise
            elif now - lost_since > reinitialise_after and not self._reinitialise:
                lost_since = now
                reinitialise_after = min(2 * reinitialise_after, timing.longest_reinitialise)
                self._reinitialise = _LOOK_FOR_LOST
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
        missing = trust(self.pid_namespace, self._driver.version).missing
        if missing:
            logger.warning("%s", missing)

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
        if known and known != count and self._dismiss(workers):
            # Where a thread hangs, the old ones go on until it comes back.
            logger.info("the driver now has %d cards, before %d", count, known)
            self._workers = {}
        with self._lock:
            if self._leave.is_set():
                return
            for index in range(count):
                worker = self._workers.get(index)
                if worker is None or not worker.is_alive():
                    # After the first, spread over the interval, so that the cards' ticks do not pile up.
                    worker = CardThread(self, driver, index, self.interval * (1 + index / count))
                    try:
                        worker.start()
                    except RuntimeError as problem:  # what threading says of it
                        raise NoThreadError(f"card {index} is not read: {problem}; raise the limit of processes") from None
                    self._workers[index] = worker

    def _dismiss(self, workers: list[CardThread]) -> bool:
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
        if not self._dismiss(workers) or (self.xids is not None and not self.xids.close(self.timing.leave)):
            return
        logger.info("the NVIDIA driver is initialised again: %s", self._reinitialise)
        unload = self._reinitialise != _LOOK_FOR_LOST
        self._reinitialise = ""
        with self._lock:
            self._workers = {}
        self._asked_driver_at = self.monotonic()
        try:
            # After a driver upgrade another library lies under the same name; only a library that is unloaded makes room for it.
            self._driver.close(unload=unload)
        finally:
            self._asked_driver_at = None
            self._driver = None
