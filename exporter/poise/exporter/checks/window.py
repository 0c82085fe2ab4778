"""The last minute in a few numbers per card and engine, and means over it. Pure: time is an argument, nothing is read here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from poise.exporter import metrics as m
from poise.exporter.checks import thresholds as t
from poise.exporter.metrics import Metric
from poise.exporter.snapshot import Gpu, NodeSnapshot

_PREFILL_AND_DECODE = (m.ENGINE_PROMPT_TOKENS, m.ENGINE_GENERATION_TOKENS)


@dataclass(frozen=True, slots=True)
class CardMoment:
    """One card at one moment; None where it was not read. Utilization 0..1, busy in seconds, power in watts, clock in hertz."""

    utilization: float | None = None
    busy_seconds: float | None = None
    power: float | None = None
    sm_clock: float | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """What load verdicts need of one snapshot; `tokens` are prompt and generation tokens per engine, over all its ranks."""

    at: float
    cards: Mapping[str, CardMoment] = field(default_factory=dict)
    tokens: Mapping[str, float] = field(default_factory=dict)
    requests: Mapping[str, float] = field(default_factory=dict)


def moment_of(snapshot: NodeSnapshot) -> Moment:
    """Condense a snapshot."""
    tokens: dict[str, float] = {}
    requests: dict[str, float] = {}
    for engine in snapshot.engines:
        if engine.observed.page is None:
            continue
        work = engine.observed.page.work
        tokens[engine.identity.engine] = sum(part.value(metric) or 0.0 for part in work for metric in _PREFILL_AND_DECODE)
        requests[engine.identity.engine] = sum(
            (part.value(m.ENGINE_REQUESTS_RUNNING) or 0.0) + (part.value(m.ENGINE_REQUESTS_WAITING) or 0.0) for part in work
        )
    cards = {gpu.uuid: _card_moment(gpu) for gpu in snapshot.gpus if gpu.up}
    return Moment(snapshot.taken_at, cards, tokens, requests)


def _card_moment(gpu: Gpu) -> CardMoment:
    return CardMoment(gpu.value(m.GPU_UTILIZATION), gpu.value(m.GPU_BUSY_SECONDS), gpu.value(m.GPU_POWER), gpu.value(m.GPU_CLOCK, "sm"))


@dataclass(frozen=True, slots=True)
class Window:
    """Moments, oldest first, the newest being now. Empty only before the first snapshot."""

    moments: tuple[Moment, ...]

    @property
    def now(self) -> float:
        """Unix seconds of the newest moment."""
        return self.moments[-1].at if self.moments else 0.0

    def over(self, seconds: float) -> Window | None:
        """The part of the last `seconds`, or None when the moments do not reach back that far."""
        start = self.now - seconds
        inside = tuple(moment for moment in self.moments if moment.at >= start)
        if len(inside) < 2 or self.now - inside[0].at < seconds * t.WINDOW_COVERAGE:
            return None
        return Window(inside)

    def busy_ratio(self, uuid: str) -> float | None:
        """Mean share of busy time of a card, from its busy seconds, else from its utilization; None when it has neither throughout."""
        counted = [(moment.at, moment.cards[uuid].busy_seconds) for moment in self.moments if uuid in moment.cards]
        known = [(at, busy) for at, busy in counted if busy is not None]
        if len(known) >= 2 and len(known) == len(self.moments) and known[-1][1] >= known[0][1] and known[-1][0] > known[0][0]:
            return min(1.0, (known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0]))
        return self._mean([moment.cards[uuid].utilization for moment in self.moments if uuid in moment.cards])

    def power(self, uuid: str) -> float | None:
        """Mean power of a card in watts."""
        return self._mean([moment.cards[uuid].power for moment in self.moments if uuid in moment.cards])

    def sm_clock(self, uuid: str) -> float | None:
        """Mean SM clock of a card in hertz."""
        return self._mean([moment.cards[uuid].sm_clock for moment in self.moments if uuid in moment.cards])

    def token_rate(self, engine: str) -> float | None:
        """Tokens per second of an engine, prefill and decode together; None when its page was not read at least twice."""
        known = [(moment.at, moment.tokens[engine]) for moment in self.moments if engine in moment.tokens]
        if len(known) < 2 or known[-1][0] <= known[0][0]:
            return None
        gained = sum(max(0.0, later - earlier) for (_, earlier), (_, later) in pairwise(known))
        return gained / (known[-1][0] - known[0][0])

    def most_requests(self, engine: str) -> float:
        """Highest number of running and waiting requests seen."""
        return max((moment.requests.get(engine, 0.0) for moment in self.moments), default=0.0)

    def _mean(self, values: list[float | None]) -> float | None:
        """Mean of values that were read at least in half of the moments."""
        known = [value for value in values if value is not None]
        if not known or len(known) * 2 < len(self.moments):
            return None
        return sum(known) / len(known)


def last_value(snapshot: NodeSnapshot, uuid: str, metric: Metric, *labels: str) -> float | None:
    """A reading of a card by UUID, or None."""
    gpu = snapshot.gpu(uuid)
    return gpu.value(metric, *labels) if gpu else None
