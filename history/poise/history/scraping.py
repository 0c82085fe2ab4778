"""Scrapes several targets into a store, each at its own moments, until told to stop; targets come and go while it runs.

    targets ─► one task each: wait for the slot ─► Scraper (large pages: threads) ─► one thread: Labeller, store.append
                                                      └─► observe (the page)

Owns when whom is scraped. A target's moments are *slots*: multiples of its interval, moved by a share of it that depends on the target alone,
so that not all are scraped at once and none drifts. A slot that is missed is left out; the first scrape of a target waits for none, so that what it
says is known at once (settling.py). Whatever goes wrong with one target ends neither its loop nor that of another. The store is written by one thread, so that neither the
hourly flush nor a slow disk holds up the event loop; while the last scrape of a target is still on its way to the disk, further ones are
observed and counted as not kept; so is an attempt for which this process lacked something. Semantics of what is appended: Prometheus' (scrape/scrape.go).
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from poise.exporter.engines.credentials import Credentials
from poise.exporter.setting_values import is_loopback
from poise.history.fetch import Fetcher, address
from poise.history.labelling import Labeller
from poise.history.promql.labels import Labels
from poise.history.scrape import Fetch, Scrape, Scraper
from poise.history.targets import Target
from poise.history.text_format import Metadata
from poise.history.threads import started

log = logging.getLogger(__name__)

#: A scrape that begins so near to its slot gets the slot's time, because evenly spaced times take least room: share of the interval, and
#: seconds. Prometheus takes 1 % up to 2 ms (scrape/scrape.go, ScrapeTimestampTolerance); a busy machine of two cores wakes us later than that.
ALIGN_SHARE, ALIGN_SECONDS = 0.01, 0.01
#: Seconds between the first scrapes of targets that come together: hundreds of pages at once would take each other's time.
FIRST_APART = 0.02
#: Large pages that are read at the same time. They share one interpreter: more would not be faster, but a usual one need not wait for one that
#: changes all its labels.
READERS = 2
#: Seconds until it is tried again to take a target over for which this process lacked something.
AGAIN = 1.0


class SampleStore(Protocol):
    """Who keeps samples; `poise.history.store.store.Store` does."""

    def append(self, target: str, at: float, samples: Mapping[Labels, float]) -> None: ...

    def forget_target(self, target: str, at: float) -> None: ...


@dataclass(slots=True)
class TargetStatus:
    """How one target does. `last` is None before the first attempt; `not_kept` counts scrapes that the store was not ready for, and those that
    were none (`Scrape.ours`).

    `known_at` is when it was asked last (Unix seconds), as far as the store has it; `grace` seconds for which it may be no good at first.
    """

    target: Target
    last: Scrape | None = None
    successes: int = 0
    failures: int = 0
    not_kept: int = 0
    samples: int = 0
    known_at: float | None = None
    grace: float = 0.0

    def count(self, scrape: Scrape) -> None:
        """Takes in an attempt."""
        self.last = scrape
        self.successes += scrape.up
        self.failures += not scrape.up and not scrape.ours
        self.not_kept += scrape.ours

    @property
    def metadata(self) -> Mapping[str, Metadata]:
        """What its newest page says of its families."""
        return {} if self.last is None else self.last.metadata

    @property
    def health(self) -> str:
        """In Prometheus' words."""
        return "unknown" if self.last is None or self.last.ours else "up" if self.last.up else "down"


def offset(target: Target) -> float:
    """By how many seconds the target's slots are moved, 0 ≤ offset < interval; the same for the same target everywhere."""
    return zlib.crc32(f"{target.url} {target.key}".encode()) / 2**32 * target.interval


def next_slot(target: Target, now: float, last: int | None) -> tuple[int, float]:
    """The number and the time (Unix seconds) of the slot after `now`; `last` is the number of the slot that was had, which is not had twice."""
    number = int((now - offset(target)) // target.interval) + 1
    if number == last:  # woken a moment before it was due
        number += 1
    return number, number * target.interval + offset(target)


def aligned(at: float, due: float, interval: float) -> float:
    """The time that a scrape's samples get: that at which it was due where it began near enough, else that at which it began."""
    return due if abs(at - due) <= min(ALIGN_SECONDS, ALIGN_SHARE * interval) else at


def fetcher(target: Target) -> Fetch:
    """How a target's page is had. Between machines it comes compressed; on one machine that would only cost both time."""
    return Fetcher(Credentials(target.access), compressed=not is_loopback(address(target.url).host))


class ScrapePool:
    """Scrapes targets. `observe` gets each attempt at once, in the event loop, whatever the store does. Runs in one event loop."""

    def __init__(
        self,
        store: SampleStore,
        *,
        wall_clock: Callable[[], float],
        clock: Callable[[], float],
        observe: Callable[[Target, Scrape], None] = lambda target, scrape: None,
        get: Callable[[Target], Fetch] = fetcher,
    ) -> None:
        self._store = store
        self._wall_clock = wall_clock
        self._clock = clock
        self._observe = observe
        self._get = get
        self._wanted: tuple[Target, ...] = ()
        self._changed = asyncio.Event()
        self._running: dict[str, _TargetLoop] = {}
        self._writer = started(1, "poise-history")
        self._readers = started(READERS, "poise-page")

    def set_targets(self, targets: Sequence[Target]) -> None:
        """The targets from now on: new ones are scraped, those that are gone end, changed ones are taken anew. Labels must be distinct."""
        self._wanted = tuple(targets)
        self._changed.set()

    def status(self) -> list[TargetStatus]:
        """How each target does, in the order of the targets."""
        return [loop.status if (loop := self._running.get(target.key)) is not None else TargetStatus(target) for target in self._wanted]

    async def run(self) -> None:
        """Scrape until cancelled. What was scraped by then is in the store when this returns."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    await self._changed.wait()
                    self._changed.clear()
                    try:
                        await self._take_over(tasks)
                    except Exception:
                        log.exception("the targets could not be taken over; it is tried again")
                        asyncio.get_running_loop().call_later(AGAIN, self._changed.set)
        finally:
            last = [loop.pending for loop in self._running.values() if loop.pending is not None]
            self._writer.shutdown(wait=False)
            self._readers.shutdown(wait=False, cancel_futures=True)
            await asyncio.gather(*(asyncio.wrap_future(future) for future in last), return_exceptions=True)

    async def _take_over(self, tasks: asyncio.TaskGroup) -> None:
        wanted = {target.key: target for target in self._wanted}
        for key, loop in list(self._running.items()):
            if wanted.get(key) == loop.status.target:
                continue
            del self._running[key]
            await loop.stop()
            if key not in wanted:
                log.info("target %s (%s) is not scraped any more", loop.status.target.name, loop.status.target.url)
                self._writer.submit(self._store.forget_target, key, self._wall_clock())
        for number, target in enumerate(target for key, target in wanted.items() if key not in self._running):
            loop = self._running[target.key] = _TargetLoop(target, self)
            loop.task = tasks.create_task(loop.run(number * FIRST_APART), name=f"scraping {target.name}")

    # What a loop needs of its pool.
    def scraper(self, target: Target) -> Scraper:
        """The scraper of a target."""
        return Scraper(
            target.url,
            wall_clock=self._wall_clock,
            clock=self._clock,
            timeout=target.timeout,
            limit=target.body_limit,
            max_series=target.sample_limit,
            empty_is_up=True,
            get=self._get(target),
            threads=self._readers,
        )

    def keep(self, status: TargetStatus, labeller: Labeller, scrape: Scrape, at: float) -> Future[None]:
        """Label and append in the writing thread, the only one that has the labeller."""
        return self._writer.submit(self._append, status, labeller, scrape, at)

    def _append(self, status: TargetStatus, labeller: Labeller, scrape: Scrape, at: float) -> None:
        samples = labeller.samples(scrape)
        status.samples += len(samples)
        self._store.append(status.target.key, at, samples)

    def tell(self, target: Target, scrape: Scrape) -> None:
        """An attempt was made."""
        self._observe(target, scrape)

    def now(self) -> float:
        """Unix seconds."""
        return self._wall_clock()


class _TargetLoop:
    """One target: waits for its slots and scrapes it at each."""

    def __init__(self, target: Target, pool: ScrapePool) -> None:
        self.status = TargetStatus(target)
        self.scraper = pool.scraper(target)
        self.pending: Future[None] | None = None
        self.task: asyncio.Task[None] | None = None
        self._labeller = Labeller(target)
        self._pool = pool
        self._told = ""

    async def stop(self) -> None:
        """Ends it; a scrape in flight is given up."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])

    async def run(self, wait: float) -> None:
        """Scrape in `wait` seconds and then at every slot, until cancelled."""
        target, slot = self.status.target, None
        await asyncio.sleep(wait)
        due = self._pool.now()
        while True:
            try:
                await self._scrape(due)
            except Exception as error:  # the next scrape comes as planned, and those of other targets
                self._not_kept(error)
            now = self._pool.now()
            slot, due = next_slot(target, now, slot)
            await asyncio.sleep(due - now)

    async def _scrape(self, due: float) -> None:
        status, target = self.status, self.status.target
        scrape = await self.scraper.scrape()
        if scrape.error != (status.last.error if status.last is not None else ""):
            log.warning("target %s (%s): %s", target.name, target.url, scrape.error or "answers again")
        status.count(scrape)
        self._pool.tell(target, scrape)
        if scrape.ours:
            return
        if self.pending is not None and not self.pending.done():
            status.not_kept += 1
            return
        self.pending = self._pool.keep(status, self._labeller, scrape, aligned(scrape.at, due, target.interval))
        self.pending.add_done_callback(lambda written: self._written(written, scrape.at))

    def _written(self, written: Future[None], at: float) -> None:
        """In the writing thread. A store tells of a disk that does not take it; what it raises is an error of ours."""
        if written.cancelled():
            return
        fault = written.exception()
        if fault is not None:
            self._not_kept(fault)
        else:
            self.status.known_at, self._told = at, ""

    def _not_kept(self, fault: BaseException) -> None:
        self.status.not_kept += 1
        words = f"{type(fault).__name__}: {fault}"
        if words != self._told:
            log.error("target %s (%s): a scrape could not be kept", self.status.target.name, self.status.target.url, exc_info=fault)
        self._told = words
