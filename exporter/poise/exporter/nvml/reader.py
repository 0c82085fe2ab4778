"""Runs the collectors of one card: which are due, each timed and isolated, and their newest results put together to a `Gpu`.

Slow collectors' results stand until they are due again; a result is never kept beyond its own interval. This file knows no thread: the
sampler calls `tick` from the card's own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from poise.exporter.metrics import Metric
from poise.exporter.nvml.card import Card, Collector, Labels, Read, Tick
from poise.exporter.nvml.fields import FieldBatch
from poise.exporter.nvml.library import NvmlFailure
from poise.exporter.snapshot import Gpu, GpuIdentity, GpuProcess, Reason

logger = logging.getLogger(__name__)

SIMULATED_PREFIX = "Simulated "


@dataclass(frozen=True, slots=True)
class Run:
    """How the newest run of a collector on one card went. `at` is Unix seconds, `duration` seconds."""

    at: float
    duration: float
    success: bool
    error: str
    last_success: float | None
    failures: int


class CardSilent(Exception):
    """No call of a whole tick was answered, so the card as a whole is in error."""


class _Prepared:
    """A collector, its reader (None where preparing failed) and its newest result."""

    __slots__ = ("collector", "error", "read", "result")

    def __init__(self, collector: Collector, card: Card, fields: FieldBatch) -> None:
        self.collector = collector
        self.result: Tick | None = None
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
    """The collectors of one interval, which share one array of field values."""

    def __init__(self, interval: float, collectors: Iterable[Collector], card: Card) -> None:
        self.interval = interval
        self.due = float("-inf")
        self.fields = card.fields()
        self.collectors = [_Prepared(collector, card, self.fields) for collector in collectors]


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
        self._runs = runs
        self._wall = wall
        self._monotonic = monotonic
        by_interval: dict[float, list[Collector]] = {}
        for collector in collectors:
            interval = max(collector.interval or 0.0, card.interval)
            by_interval.setdefault(interval, []).append(collector)
        self._tiers = [_Tier(interval, members, card) for interval, members in sorted(by_interval.items())]

    def tick(self) -> Gpu:
        """Runs what is due and returns the card as it now is.

        Raises:
            NvmlFailure: the card is lost or the driver is gone.
            CardSilent: nothing that was asked was answered.
        """
        answered = False
        started = self._monotonic()
        for tier in self._tiers:
            # Half a tick early is due: the tiers' intervals are multiples of a tick that comes with some jitter.
            if started < tier.due - self.card.interval / 2:
                continue
            tier.due = started + tier.interval
            tier.fields.forget()
            for prepared in tier.collectors:
                tick = self._run(prepared)
                prepared.result = tick
                answered = answered or tick.answered
        self.current = ""
        if not answered:
            errors = [
                prepared.result.error for tier in self._tiers for prepared in tier.collectors if prepared.result and prepared.result.error
            ]
            raise CardSilent(errors[0] if errors else "no call was answered")
        return self._gpu()

    def _run(self, prepared: _Prepared) -> Tick:
        name = prepared.collector.name
        self.current = name
        begun = self._monotonic()
        tick = Tick(begun)
        try:
            if prepared.read is None:
                tick = _all_absent(prepared.collector, begun, prepared.error)
            else:
                prepared.read(tick)
        except NvmlFailure as failure:
            self._note(name, begun, str(failure))
            raise
        except Exception as error:  # a fault of one collector must not cost the others their series
            previous = self._runs.get(name)
            if previous is None or previous.success:
                logger.exception("collector %s failed on card %s", name, self.card.uuid)
            tick = _all_absent(prepared.collector, begun, f"{type(error).__name__}: {error}")
        self._note(name, begun, tick.error)
        return tick

    def _note(self, name: str, begun: float, error: str) -> None:
        previous = self._runs.get(name)
        at = self._wall()
        self._runs[name] = Run(
            at=at,
            duration=self._monotonic() - begun,
            success=not error,
            error=error,
            last_success=at if not error else (previous.last_success if previous else None),
            failures=(previous.failures if previous else 0) + bool(error),
        )

    def _gpu(self) -> Gpu:
        readings: dict[Metric, Mapping[Labels, float]] = {}
        absent: dict[Metric, Reason] = {}
        processes: tuple[GpuProcess, ...] | None = None
        identity = GpuIdentity(name=self.card.name)
        for tier in self._tiers:
            for prepared in tier.collectors:
                result = prepared.result
                if result is None:
                    continue
                readings.update(result.readings)
                absent.update(result.absent)
                if result.processes is not None:
                    processes = result.processes
                if result.identity is not None:
                    identity = result.identity
        return Gpu(
            index=self.card.index,
            uuid=self.card.uuid,
            identity=identity,
            sampled_at=self._wall(),
            readings=readings,
            absent=absent,
            processes=processes,
            simulated=self.card.name.startswith(SIMULATED_PREFIX),
        )


def _all_absent(collector: Collector, now: float, error: str) -> Tick:
    return Tick(now, absent=dict.fromkeys(collector.metrics, Reason.ERROR), error=error)
