"""Runs the collectors of one card: which are due, each timed and isolated, and their newest results put together to a `Gpu`.

Slow collectors' results stand until they are due again; a result is never kept beyond its own interval. This file knows no thread: the
sampler calls `tick` from the card's own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from poise.exporter.metrics import Metric
from poise.exporter.nvml.card import Card, Collector, Labels, Read, Tick
from poise.exporter.nvml.fields import FieldBatch
from poise.exporter.nvml.library import NvmlFailure
from poise.exporter.snapshot import Gpu, GpuIdentity, GpuProcess, Reason

logger = logging.getLogger(__name__)

SIMULATED_PREFIX = "Simulated "


class Run(NamedTuple):
    """How the newest run of a collector on one card went. `at` is Unix seconds, `duration` seconds. Made for each run, so a light type."""

    at: float
    duration: float
    success: bool
    error: str
    last_success: float | None
    failures: int


class CardSilent(Exception):
    """No call of a whole tick was answered, so the card as a whole is in error."""


class _Prepared:
    """A collector and its reader, None where preparing failed."""

    __slots__ = ("collector", "error", "read")

    def __init__(self, collector: Collector, card: Card, fields: FieldBatch) -> None:
        self.collector = collector
        self.read: Read | None = None
        self.error = ""
        try:
            self.read = collector.prepare(card, fields)
        except NvmlFailure:
            raise
        except Exception as error:  # a fault of one collector must not cost the others their series
            logger.exception("collector %s could not be prepared for card %s", collector.name, card.uuid)
            self.error = f"{type(error).__name__}: {error}"


class _Tier:
    """The collectors of one interval, which share one array of field values, and their newest result."""

    def __init__(self, interval: float, collectors: Iterable[Collector], card: Card) -> None:
        self.interval = interval
        self.due = float("-inf")
        self.fields = card.fields()
        self.collectors = [_Prepared(collector, card, self.fields) for collector in collectors]
        self.result = Tick(0.0)
        #: The tiers of shorter intervals.
        self.quicker: tuple[_Tier, ...] = ()


class CardReader:
    """Reads one card in one life of the driver. `runs` is the card's record of runs, which outlives the reader."""

    def __init__(
        self,
        card: Card,
        collectors: Iterable[Collector],
        runs: dict[str, Run],
        *,
        wall: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        """Prepares all collectors.

        Raises:
            NvmlFailure: the card is lost or the driver is gone.
        """
        self.card = card
        self.current = ""
        self._identity = GpuIdentity(name=card.name)
        self._newest: Gpu | None = None
        self._simulated = card.name.startswith(SIMULATED_PREFIX)
        self._runs = runs
        self._wall = wall
        self._monotonic = monotonic
        by_interval: dict[float, list[Collector]] = {}
        for collector in collectors:
            interval = max(collector.interval or 0.0, card.interval)
            by_interval.setdefault(interval, []).append(collector)
        self._tiers = [_Tier(interval, members, card) for interval, members in sorted(by_interval.items())]
        for place, tier in enumerate(self._tiers):
            tier.quicker = tuple(self._tiers[:place])

    def tick(self) -> Gpu:
        """Runs what is due and returns the card as it now is.

        Raises:
            NvmlFailure: the card is lost or the driver is gone.
            CardSilent: nothing that was asked was answered.
            ForeignProcess: this process was forked from the one that initialised NVML.
        """
        self.card.library.check_process()
        asked = answered = False
        error = ""
        started = self._monotonic()
        at = self._wall()
        for tier in self._tiers:
            # The quick tier runs in every tick, however soon it follows a late one. For the others half a tick early is due: their
            # intervals are multiples of a tick that comes with some jitter.
            if tier.interval > self.card.interval and started < tier.due - self.card.interval / 2:
                continue
            asked = True
            tier.due = started + tier.interval
            tier.fields.forget()
            tick = Tick(started, tuple([other.result for other in tier.quicker]) if tier.quicker else ())
            begun = self._monotonic()
            for prepared in tier.collectors:
                tick.error = ""
                begun = self._run(prepared, tick, at, begun)
                error = error or tick.error
            tier.result = tick
            answered = answered or tick.answered
        self.current = ""
        if asked:
            # A tick of nothing but refusals that are known already asks the driver nothing, and is no silence.
            self._newest = self._gpu() if answered or not error else None
        if self._newest is None:
            raise CardSilent(error or "no call was answered")
        return self._newest

    def close(self) -> None:
        """Gives back what the collectors hold in the driver; the reader is of no use after that."""
        self.card.close()

    def _run(self, prepared: _Prepared, tick: Tick, at: float, begun: float) -> float:
        """Runs one collector that began at `begun`; when it ended (both monotonic)."""
        name = self.current = prepared.collector.name
        try:
            if prepared.read is None:
                self._all_absent(prepared.collector, tick, prepared.error)
            else:
                prepared.read(tick)
        except NvmlFailure as failure:
            self._note(name, at, self._monotonic() - begun, str(failure))
            raise
        except Exception as error:  # a fault of one collector must not cost the others their series
            previous = self._runs.get(name)
            if previous is None or previous.success:
                logger.exception("collector %s failed on card %s", name, self.card.uuid)
            self._all_absent(prepared.collector, tick, f"{type(error).__name__}: {error}")
        ended = self._monotonic()
        self._note(name, at, ended - begun, tick.error)
        return ended

    @staticmethod
    def _all_absent(collector: Collector, tick: Tick, error: str) -> None:
        """What a collector that broke would have given is absent, but for what it had given before."""
        tick.error = error
        for metric in collector.metrics:
            if metric not in tick.readings:
                tick.absent.setdefault(metric, Reason.ERROR)

    def _note(self, name: str, at: float, duration: float, error: str) -> None:
        previous = self._runs.get(name)
        failures, last_success = (previous.failures, previous.last_success) if previous else (0, None)
        if error:
            self._runs[name] = Run(at, duration, False, error, last_success, failures + 1)
        else:
            self._runs[name] = Run(at, duration, True, "", at, failures)

    def _gpu(self) -> Gpu:
        readings: dict[Metric, Mapping[Labels, float]] = {}
        absent: dict[Metric, Reason] = {}
        processes: tuple[GpuProcess, ...] | None = None
        processes_complete = True
        # Slow ones first: of a series that two intervals give, the quicker one's value stands.
        for tier in reversed(self._tiers):
            result = tier.result
            readings.update(result.readings)
            absent.update(result.absent)
            if result.processes is not None:
                processes, processes_complete = result.processes, result.processes_complete
            if result.identity is not None:
                self._identity = result.identity
        return Gpu(
            index=self.card.index,
            uuid=self.card.uuid,
            identity=self._identity,
            sampled_at=self._wall(),
            readings=readings,
            # What one collector could not give another may have given.
            absent={metric: reason for metric, reason in absent.items() if not readings.get(metric)},
            processes=processes,
            processes_complete=processes_complete,
            simulated=self._simulated,
        )
