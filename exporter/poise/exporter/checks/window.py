"""The last minute in a few numbers per card and engine, and means over it. Pure: time is an argument, nothing is read here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from poise.exporter import metrics as m
from poise.exporter.checks import thresholds as t
from poise.exporter.metrics import Metric
from poise.exporter.snapshot import EnginePage, Gpu, NodeSnapshot, Readings, Work

_PREFILL_AND_DECODE = (m.ENGINE_PROMPT_TOKENS, m.ENGINE_GENERATION_TOKENS)
#: Counters of engines whose growth over the window checks look at. Labels that nothing asks for are summed away.
_COUNTERS = (
    m.ENGINE_GENERATION_TOKENS,
    m.ENGINE_REQUESTS_FINISHED,
    m.ENGINE_PREEMPTIONS,
    m.ENGINE_KV_TRANSFER_FAILURES,
    m.ENGINE_KV_TRANSFER_EXPIRED,
    m.ENGINE_KV_TRANSFER_LATE,
)
#: Gauges of engines whose mean over the window checks look at, summed over the ranks; besides these the highest use of a rank's KV cache.
_GAUGES = (m.ENGINE_REQUESTS_RUNNING, m.ENGINE_REQUESTS_WAITING)

#: Reasons for low clocks that are somebody's fault, of which the time is looked at.
SLOWDOWN_REASONS = ("hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake")
#: Errors of links are summed over a card's links and under two words, as the alert NVLinkErrors parts them: those of which each counts (the link
#: trained anew, or lost data), and packets that were repeated or damaged on the way. Types as in poise_gpu_nvlink_errors_total. Symbols that are
#: corrected are no errors of packets.
LINK_BREAKS, LINK_REPEATS = "breaks", "repeats"
_LINK_GROUPS = {
    **dict.fromkeys(
        ("recovery", "ecc", "link_recovery_successful", "link_recovery_failed", "local_link_integrity", "buffer_overrun", "malformed"),
        LINK_BREAKS,
    ),
    **dict.fromkeys(
        ("replay", "crc_flit", "crc_data", "effective", "receive", "receive_remote", "receive_general", "transmit_discard"), LINK_REPEATS
    ),
}

#: A counter and the values of the labels that are told apart.
CounterKey = tuple[Metric, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class CardMoment:
    """One card at one moment; None where it was not read. Utilization 0..1, busy in seconds, power in watts, clock in hertz."""

    utilization: float | None = None
    busy_seconds: float | None = None
    power: float | None = None
    sm_clock: float | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """What load verdicts need of one snapshot; `tokens` are prompt and generation tokens per engine, over all its ranks.

    `requests` are running and waiting ones per engine, `rank_requests` and `rank_tokens` the same per data-parallel rank. `counters`: owner (engine, router,
    UUID) → counter with its labels → value, summed over the ranks; an engine that did not answer has none. `gauges` likewise, `round_trips` in
    seconds per engine. `rdma_bytes` over all ports, both directions.
    """

    at: float
    cards: Mapping[str, CardMoment] = field(default_factory=dict)
    tokens: Mapping[str, float] = field(default_factory=dict)
    requests: Mapping[str, float] = field(default_factory=dict)
    rank_requests: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    rank_tokens: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    counters: Mapping[str, Mapping[CounterKey, float]] = field(default_factory=dict)
    gauges: Mapping[str, Mapping[Metric, float]] = field(default_factory=dict)
    round_trips: Mapping[str, float] = field(default_factory=dict)
    rdma_bytes: float | None = None


def moment_of(snapshot: NodeSnapshot) -> Moment:
    """Condense a snapshot."""
    tokens: dict[str, float] = {}
    requests: dict[str, float] = {}
    rank_requests: dict[str, dict[str, float]] = {}
    rank_tokens: dict[str, dict[str, float]] = {}
    counters: dict[str, dict[CounterKey, float]] = {}
    gauges: dict[str, dict[Metric, float]] = {}
    for engine in snapshot.engines:
        if engine.observed.page is None:
            continue
        work = engine.observed.page.work
        name = engine.identity.engine
        counters[name] = engine_counters(engine.observed.page)
        gauges[name] = {metric: sum(part.value(metric) or 0.0 for part in work) for metric in _GAUGES}
        used = [value for part in work if (value := part.value(m.ENGINE_KV_CACHE_USAGE)) is not None]
        if used:
            gauges[name][m.ENGINE_KV_CACHE_USAGE] = max(used)
        rank_requests[name] = _by_rank(work, _GAUGES)
        rank_tokens[name] = _by_rank(work, _PREFILL_AND_DECODE)
        tokens[engine.identity.engine] = sum(part.value(metric) or 0.0 for part in work for metric in _PREFILL_AND_DECODE)
        requests[engine.identity.engine] = sum(
            (part.value(m.ENGINE_REQUESTS_RUNNING) or 0.0) + (part.value(m.ENGINE_REQUESTS_WAITING) or 0.0) for part in work
        )
    cards = {gpu.uuid: _card_moment(gpu) for gpu in snapshot.gpus if gpu.up}
    counters.update((gpu.uuid, _card_counters(gpu)) for gpu in snapshot.gpus if gpu.up)
    counters.update((router.name, dict(_flat(router.readings, m.ROUTER_REQUESTS, m.ROUTER_ERRORS))) for router in snapshot.routers)
    round_trips = {engine.identity.engine: engine.observed.rtt for engine in snapshot.engines if engine.observed.rtt is not None}
    moved = [count for port in snapshot.rdma_ports or () for count in (port.sent_bytes, port.received_bytes) if count is not None]
    rdma_bytes = float(sum(moved)) if moved else None
    return Moment(snapshot.taken_at, cards, tokens, requests, rank_requests, rank_tokens, counters, gauges, round_trips, rdma_bytes)


def _by_rank(work: Iterable[Work], metrics: tuple[Metric, ...]) -> dict[str, float]:
    """The sum of some readings by data-parallel rank."""
    found: dict[str, float] = {}
    for part in work:
        found[part.dp_rank] = found.get(part.dp_rank, 0.0) + sum(part.value(metric) or 0.0 for metric in metrics)
    return found


def engine_counters(page: EnginePage) -> dict[CounterKey, float]:
    """The counters of an engine that checks look at, since its start, summed over its ranks; prompt tokens by source, the rest without labels.

    Of KV transfers their number and bytes (keys: the histograms' metrics).
    """
    found: dict[CounterKey, float] = {}

    def add(key: CounterKey, value: float) -> None:
        found[key] = found.get(key, 0.0) + value

    for part in page.work:
        for metric in _COUNTERS:
            for value in part.readings.get(metric, {}).values():
                add((metric, ()), value)
        for labels, value in part.readings.get(m.ENGINE_PROMPT_TOKENS_BY_SOURCE, {}).items():
            add((m.ENGINE_PROMPT_TOKENS_BY_SOURCE, labels), value)
        for histogram in part.histograms.get(m.ENGINE_KV_TRANSFER_TIME, {}).values():
            add((m.ENGINE_KV_TRANSFER_TIME, ()), histogram.count)
        for histogram in part.histograms.get(m.ENGINE_KV_TRANSFER_BYTES, {}).values():
            add((m.ENGINE_KV_TRANSFER_BYTES, ()), histogram.sum)
    return found


def _card_counters(gpu: Gpu) -> dict[CounterKey, float]:
    """Bytes over all NVLinks, both directions: the card's own sum where it has one, else that of its links. Errors of its links, and
    seconds in which it was slowed."""
    totals = [value for metric in (m.GPU_NVLINK_TOTAL_TX, m.GPU_NVLINK_TOTAL_RX) for value in gpu.readings.get(metric, {}).values()]
    links = [value for metric in (m.GPU_NVLINK_TX, m.GPU_NVLINK_RX) for value in gpu.readings.get(metric, {}).values()]
    found: dict[CounterKey, float] = {(m.GPU_NVLINK_TOTAL_TX, ()): sum(totals or links)} if totals or links else {}
    for (_, kind), count in gpu.readings.get(m.GPU_NVLINK_ERRORS, {}).items():
        group = _LINK_GROUPS.get(kind)
        if group is not None:
            key = (m.GPU_NVLINK_ERRORS, (group,))
            found[key] = found.get(key, 0.0) + count
    for reason in SLOWDOWN_REASONS:
        seconds = gpu.value(m.GPU_CLOCKS_EVENT_SECONDS, reason)
        if seconds is not None:
            found[m.GPU_CLOCKS_EVENT_SECONDS, (reason,)] = seconds
    return found


def _flat(readings: Readings, *metrics: Metric) -> Iterator[tuple[CounterKey, float]]:
    for metric in metrics:
        for labels, value in readings.get(metric, {}).items():
            yield (metric, labels), value


def _card_moment(gpu: Gpu) -> CardMoment:
    return CardMoment(gpu.value(m.GPU_UTILIZATION), gpu.value(m.GPU_BUSY_SECONDS), gpu.value(m.GPU_POWER), gpu.value(m.GPU_CLOCK, "sm"))


@dataclass(frozen=True, slots=True)
class Window:
    """Moments, oldest first, the newest being now. Empty only before the first snapshot."""

    moments: tuple[Moment, ...]
    _parts: dict[float, Window | None] = field(default_factory=dict, compare=False, repr=False)  # of `over`, which every check asks

    @property
    def now(self) -> float:
        """Unix seconds of the newest moment."""
        return self.moments[-1].at if self.moments else 0.0

    def over(self, seconds: float) -> Window | None:
        """The part of the last `seconds`, or None when the moments do not reach back that far."""
        if seconds not in self._parts:
            start = self.now - seconds
            inside = tuple(moment for moment in self.moments if moment.at >= start)
            covered = len(inside) >= 2 and self.now - inside[0].at >= seconds * t.WINDOW_COVERAGE
            self._parts[seconds] = Window(inside) if covered else None
        return self._parts[seconds]

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

    @property
    def seconds(self) -> float:
        """From the oldest moment to the newest."""
        return self.now - self.moments[0].at if self.moments else 0.0

    def increase(self, owner: str, metric: Metric, *labels: str) -> float | None:
        """By how much a counter grew, over its resets; None when it was not read at least twice."""
        key = (metric, labels)
        known = [counters[key] for moment in self.moments if (counters := moment.counters.get(owner)) is not None and key in counters]
        if len(known) < 2:
            return None
        return sum(later - earlier if later >= earlier else later for earlier, later in pairwise(known))

    def rdma_bytes(self) -> float | None:
        """Bytes over all RDMA ports of the node, both directions; None when they were not read at least twice."""
        known = [moment.rdma_bytes for moment in self.moments if moment.rdma_bytes is not None]
        return max(0.0, known[-1] - known[0]) if len(known) >= 2 else None

    def gauge(self, owner: str, metric: Metric) -> float | None:
        """Mean of a gauge of an engine over the moments in which it told it, None when it never did."""
        told = [value for moment in self.moments if (value := moment.gauges.get(owner, {}).get(metric)) is not None]
        return sum(told) / len(told) if told else None

    def round_trip(self, engine: str) -> float | None:
        """The shortest TCP connect to an engine: what is longer than that is the load of a machine, not the network."""
        return min((moment.round_trips[engine] for moment in self.moments if engine in moment.round_trips), default=None)

    def longest(self) -> Window:
        """The part that load verdicts are given on: the last minute, else the last ten seconds, else what there is."""
        return self.over(t.PROBLEM_WINDOW) or self.over(t.WATCH_WINDOW) or self

    def least_requests(self, engine: str) -> float:
        """Lowest number of running and waiting requests seen; 0 when the engine did not answer all the time."""
        return min((moment.requests.get(engine, 0.0) for moment in self.moments), default=0.0)

    def rank_requests(self, engine: str) -> dict[str, float]:
        """Mean number of running and waiting requests by data-parallel rank."""
        held = [moment.rank_requests[engine] for moment in self.moments if engine in moment.rank_requests]
        names = sorted({rank for ranks in held for rank in ranks}, key=lambda name: (len(name), name))
        return {name: sum(ranks.get(name, 0.0) for ranks in held) / len(held) for name in names}

    def stuck_ranks(self, engine: str) -> list[str]:
        """Data-parallel ranks that held requests in every moment, and made no token; none when the engine did not answer all the time."""
        if len(self.moments) < 2:
            return []
        first, last = (moment.rank_tokens.get(engine, {}) for moment in (self.moments[0], self.moments[-1]))
        still = sorted((rank for rank, tokens in last.items() if first.get(rank) == tokens), key=lambda name: (len(name), name))
        if not still or any(engine not in moment.rank_tokens for moment in self.moments):
            return []
        return [
            rank
            for rank in still
            if all(moment.rank_requests[engine].get(rank) for moment in self.moments)
            and len({moment.rank_tokens[engine].get(rank) for moment in self.moments}) == 1
        ]

    def most_requests(self, engine: str) -> float:
        """Highest number of running and waiting requests seen."""
        return max((moment.requests.get(engine, 0.0) for moment in self.moments), default=0.0)

    def _mean(self, values: list[float | None]) -> float | None:
        """Mean of values that were read at least in half of the moments."""
        known = [value for value in values if value is not None]
        if not known or len(known) * 2 < len(self.moments):
            return None
        return sum(known) / len(known)
