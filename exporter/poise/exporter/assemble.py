"""Puts the newest of cards and engines together to a snapshot, has it checked, and publishes both as one; once per interval.

Nothing here waits for a card or an engine: it takes what is there. Sources and checks are passed in. This file knows no driver and no format.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from poise.exporter.checks.runner import CheckOutcome
from poise.exporter.interconnect_results import Kept, usable
from poise.exporter.nvml.sampler import View
from poise.exporter.ownership import join
from poise.exporter.snapshot import CollectorStatus, NodeSnapshot, ObservedEngine, RdmaPort, Router, ViewLimit

logger = logging.getLogger(__name__)

#: sysfs changes only when a card leaves or joins the bus.
EXPECTED_SECONDS = 10.0
#: How long the first snapshot waits for the cards' first readings; without a hang they take some milliseconds.
SETTLE_SECONDS = 2.0
_SETTLE_STEP_SECONDS = 0.02


class Cards(Protocol):
    """Where the newest state of the cards comes from."""

    def view(self) -> View: ...

    def settled(self) -> bool: ...


class EnginesLike(Protocol):
    """The newest state of the engines."""

    @property
    def engines(self) -> tuple[ObservedEngine, ...]: ...

    @property
    def collectors(self) -> tuple[CollectorStatus, ...]: ...

    @property
    def routers(self) -> tuple[Router, ...]: ...


class Engines(Protocol):
    """Where the newest state of the engines comes from."""

    def latest(self) -> EnginesLike: ...


class Checks(Protocol):
    """The checklist with its memory of the last minute."""

    def observe(self, snapshot: NodeSnapshot) -> CheckOutcome: ...


@dataclass(frozen=True, slots=True)
class Published:
    """A snapshot with what the checks say of it; `outcome` is None when the checks themselves failed."""

    snapshot: NodeSnapshot
    outcome: CheckOutcome | None


class Assembler:
    """Makes a snapshot per interval in its own thread; `latest` is what was published last."""

    def __init__(
        self,
        cards: Cards,
        engines: Engines,
        checks: Checks,
        *,
        node: str,
        kernel: str,
        interval: float,
        title_of: Callable[[int], str],
        expected: Callable[[], int | None],
        view_limits: tuple[ViewLimit, ...] | None = None,
        rdma: Callable[[], tuple[RdmaPort, ...] | None] = lambda: None,
        interconnect: Callable[[], Kept] = Kept,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._cards = cards
        self._engines = engines
        self._checks = checks
        self._node = node
        self._kernel = kernel
        self._interval = interval
        self._title_of = title_of
        self._expected = expected
        self._view_limits = view_limits
        self._rdma = rdma
        self._interconnect = interconnect
        self._wall = wall
        self._expected_value: int | None = None
        self._expected_at: float | None = None
        self._published: Published | None = None
        self._first = threading.Event()
        self._leave = threading.Event()
        self._broken = ""
        self._checks_work = True
        self._thread = threading.Thread(target=self._run, name="assemble", daemon=True)

    def start(self) -> None:
        """Starts making snapshots."""
        self._thread.start()

    def stop(self) -> None:
        """Tells the thread to leave; returns at once."""
        self._leave.set()

    def join(self, timeout: float) -> bool:
        """Waits for the thread; whether it left."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def latest(self) -> Published | None:
        """What was published last, None before the first."""
        return self._published

    def wait(self, timeout: float) -> bool:
        """Waits for the first snapshot; whether there is one."""
        return self._first.wait(timeout)

    def assemble(self) -> Published:
        """One snapshot with its checks, from what the sources have now."""
        now = self._wall()
        view = self._cards.view()
        observed = self._engines.latest()
        joined = join(view.gpus, observed.engines, self._title_of)
        snapshot = NodeSnapshot(
            node=self._node,
            taken_at=now,
            driver=view.driver,
            gpus=view.gpus,
            gpus_expected=self._expected_gpus(now),
            engines=joined.engines,
            collectors=(*view.collectors, *observed.collectors),
            kernel=self._kernel,
            gpu_process_readings=joined.gpu_readings,
            routers=observed.routers,
            view_limits=self._view_limits,
            rdma_ports=self._rdma(),
            interconnect=usable(
                self._interconnect(), now=now, driver=view.driver.driver, cards=frozenset(gpu.uuid for gpu in view.gpus if gpu.up)
            ),
        )
        return Published(snapshot, self._checked(snapshot))

    def _checked(self, snapshot: NodeSnapshot) -> CheckOutcome | None:
        try:
            outcome = self._checks.observe(snapshot)
        except Exception:  # the readings are worth publishing without a judgement
            if self._checks_work:
                logger.exception("the checks failed; the page goes on without them")
            self._checks_work = False
            return None
        self._checks_work = True
        return outcome

    def _run(self) -> None:
        due = time.monotonic()
        while not self._cards.settled() and time.monotonic() < due + SETTLE_SECONDS:
            if self._leave.wait(_SETTLE_STEP_SECONDS):
                return
        while not self._leave.is_set():
            try:
                self._published = self.assemble()
                self._broken = ""
                self._first.set()
            except Exception as error:  # a page that gets old says so (poise_snapshot_age_seconds); the thread must live on
                words = f"{type(error).__name__}: {error}"
                if words != self._broken:
                    logger.exception("no snapshot could be made")
                self._broken = words
            due = max(due + self._interval, time.monotonic())
            self._leave.wait(max(0.0, due - time.monotonic()))

    def forget_expected(self) -> None:
        """How many cards are expected is asked anew for the next snapshot."""
        self._expected_at = None

    def _expected_gpus(self, now: float) -> int | None:
        if self._expected_at is None or not 0 <= now - self._expected_at < EXPECTED_SECONDS:
            self._expected_value = self._expected()
            self._expected_at = now
        return self._expected_value
