"""What the cards and servers did during one step: utilization, power, traffic, tokens, transfers, from pages of the exporter.

Owns the arithmetic. Pure. Utilization and power are means over a window inside the step (counters at both ends, by the driver's own sample
times); bytes and tokens are what the counters gained from before the step to after it, when nothing else ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from poise.testbed.bench.observe import Card, NodePage, Place, gained
from poise.testbed.plan import EnginePlan
from poise.testbed.shapes import EngineRole

# Below, the cards of a group are too idle for their difference to mean anything (the contract's poise_engine:gpu_imbalance:ratio).
SKEW_NEEDS = 0.3
# A window shorter than this says little: the counters move once a second.
SHORTEST_WINDOW = 2.0


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of one step: before it began and after the counters came to rest, and the first and last within it."""

    before: NodePage
    first: NodePage | None
    last: NodePage | None
    after: NodePage


@dataclass(frozen=True, slots=True)
class CardUsage:
    """One card. `engine` and `role` are those of the deployment's plan; `utilization` 0..1, `power_watts` and `window_seconds` of the window;
    `nvlink_*_bytes` of the whole step."""

    gpu: int
    uuid: str
    name: str
    engine: str
    role: EngineRole
    use: str
    tp_rank: str
    pp_rank: str
    dp_rank: str
    utilization: float | None
    power_watts: float | None
    memory_used_bytes: float | None
    nvlink_tx_bytes: float | None
    nvlink_rx_bytes: float | None
    window_seconds: float | None


@dataclass(frozen=True, slots=True)
class EngineUsage:
    """One server: what each of its counters gained in the step, by the names of observe.py. What it does not have is not there."""

    engine: str
    role: EngineRole
    gained: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RoleUsage:
    """The cards of one role together: means over them."""

    role: EngineRole
    cards: int
    utilization: float | None
    power_watts: float | None


@dataclass(frozen=True, slots=True)
class Transfers:
    """KV cache that decode pulled from prefill. `seconds` is the sum over transfers, which overlap."""

    transfers: float
    bytes: float | None
    seconds: float | None
    failures: float | None
    expired: float | None


@dataclass(frozen=True, slots=True)
class Usage:
    """`settled`: the exporter's counters reached what the client counted. `skew` is 1 − min/max of the most uneven group of ranks, None where
    every group is idle or has one card. Joules are those of all cards over the step's duration, for each output token; NVLink bytes those sent
    by all cards, for each token of prompt or answer."""

    settled: bool
    cards: tuple[CardUsage, ...]
    engines: tuple[EngineUsage, ...]
    roles: tuple[RoleUsage, ...]
    skew: float | None
    power_watts: float | None
    joules_per_output_token: float | None
    nvlink_tx_bytes: float | None
    nvlink_bytes_per_token: float | None
    kv_transfer: Transfers | None


def usage(pages: Pages, planned: Sequence[tuple[EnginePlan, int]], duration: float, tokens: tuple[int, int], settled: bool) -> Usage:
    """Of one step. `planned` are the deployment's engines, each with the cards that it was meant to have when healthy; `tokens` are the input
    and output tokens that the client counted in `duration` seconds."""
    cards = tuple(sorted(_cards(pages, planned), key=lambda card: card.gpu))
    own = [card for card in cards if card.use == "own"]
    power = total(card.power_watts for card in own)
    sent = total(card.nvlink_tx_bytes for card in own)
    roles: list[EngineRole] = list(dict.fromkeys(engine.role for engine, _ in planned))
    return Usage(
        settled=settled,
        cards=cards,
        engines=tuple(_engine(engine, pages) for engine, _ in planned),
        roles=tuple(_role(role, [card for card in own if card.role == role]) for role in roles),
        skew=skew_of(cards),
        power_watts=power,
        joules_per_output_token=None if power is None or not tokens[1] else power * duration / tokens[1],
        nvlink_tx_bytes=sent,
        nvlink_bytes_per_token=None if sent is None or not sum(tokens) else sent / sum(tokens),
        kv_transfer=_transfers([engine for engine, _ in planned], pages),
    )


def skew_of(cards: Sequence[CardUsage]) -> float | None:
    """The most uneven group: ranks of one engine that share data-parallel rank and pipeline stage, and the cards it was meant to use and leaves."""
    groups: dict[tuple[str, str, str], list[float | None]] = {}
    for card in cards:
        if card.use == "own":
            groups.setdefault((card.engine, card.dp_rank, card.pp_rank), []).append(card.utilization)
    for card in cards:
        if card.use == "free":
            for key, shares in groups.items():
                if key[0] == card.engine:
                    shares.append(card.utilization)
    found = [value for shares in groups.values() if (value := skew(shares)) is not None]
    return max(found, default=None)


def skew(shares: Sequence[float | None]) -> float | None:
    """1 − min/max, to a thousandth; None below SKEW_NEEDS, for fewer than two cards, or when one is unknown."""
    known = [share for share in shares if share is not None]
    if len(known) < 2 or len(known) < len(shares) or max(known) <= SKEW_NEEDS:
        return None
    return round(1 - min(known) / max(known), 3)


def total(values: Iterable[float | None]) -> float | None:
    """The sum; None when there is nothing, or something is unknown."""
    known = list(values)
    summed = 0.0
    for value in known:
        if value is None:
            return None
        summed += value
    return summed if known else None


def mean(values: Iterable[float | None]) -> float | None:
    """None when there is nothing, or something is unknown."""
    known = list(values)
    summed = total(known)
    return None if summed is None else summed / len(known)


def _cards(pages: Pages, planned: Sequence[tuple[EnginePlan, int]]) -> list[CardUsage]:
    found = []
    for engine, meant in planned:
        seen = pages.after.engines.get(engine.port)
        places = () if seen is None else seen.places
        own = [place for place in places if place.use == "own"]
        # On a node with more cards than the engine was meant to have, the others are nobody's business.
        free = [place for place in places if place.use == "free"][: max(0, meant - len(own))]
        found += [_card(pages, engine, place) for place in (*own, *free) if place.uuid in pages.after.cards]
    return found


def _card(pages: Pages, engine: EnginePlan, place: Place) -> CardUsage:
    before, after = pages.before.cards.get(place.uuid), pages.after.cards[place.uuid]
    first = None if pages.first is None else pages.first.cards.get(place.uuid)
    last = None if pages.last is None else pages.last.cards.get(place.uuid)
    seconds = _gained(first, last, "sampled")
    window = seconds if seconds is not None and seconds >= SHORTEST_WINDOW else None
    busy, energy = _gained(first, last, "busy_seconds"), _gained(first, last, "energy_joules")
    return CardUsage(
        gpu=after.gpu,
        uuid=place.uuid,
        name=after.name,
        engine=engine.name,
        role=engine.role,
        use=place.use,
        tp_rank=place.tp_rank,
        pp_rank=place.pp_rank,
        dp_rank=place.dp_rank,
        utilization=None if window is None or busy is None else min(1.0, busy / window),
        power_watts=None if window is None or energy is None else energy / window,
        memory_used_bytes=(last or after).figures.get("memory_used_bytes"),
        nvlink_tx_bytes=_gained(before, after, "nvlink_tx_bytes"),
        nvlink_rx_bytes=_gained(before, after, "nvlink_rx_bytes"),
        window_seconds=window,
    )


def _gained(before: Card | None, after: Card | None, name: str) -> float | None:
    return None if before is None or after is None else gained(before.figures, after.figures, name)


def _engine(engine: EnginePlan, pages: Pages) -> EngineUsage:
    return EngineUsage(engine.name, engine.role, engine_gained(engine, pages.before, pages.after))


def engine_gained(engine: EnginePlan, before: NodePage, after: NodePage) -> dict[str, float]:
    """What each counter of an engine gained between two pages."""
    earlier, later = before.engines.get(engine.port), after.engines.get(engine.port)
    if earlier is None or later is None:
        return {}
    differences = {name: gained(earlier.counters, later.counters, name) for name in later.counters}
    return {name: value for name, value in differences.items() if value is not None}


def _role(role: EngineRole, cards: Sequence[CardUsage]) -> RoleUsage:
    return RoleUsage(role, len(cards), mean(card.utilization for card in cards), mean(card.power_watts for card in cards))


def _transfers(engines: Sequence[EnginePlan], pages: Pages) -> Transfers | None:
    """Transfers count where they are pulled, on decode; prefill knows of those that nobody fetched (vLLM 0.32, NIXL)."""
    if not any(engine.kv_connector for engine in engines):
        return None
    sums: dict[str, float] = {}
    for engine in engines:
        for name, value in engine_gained(engine, pages.before, pages.after).items():
            sums[name] = sums.get(name, 0.0) + value
    if "kv_transfers" not in sums:
        return None
    return Transfers(
        sums["kv_transfers"],
        sums.get("kv_transfer_bytes"),
        sums.get("kv_transfer_seconds"),
        sums.get("kv_transfer_failures"),
        sums.get("kv_transfers_expired"),
    )


def reached(engines: Sequence[EnginePlan], direct: str | None, before: NodePage, after: NodePage, tokens: tuple[int, int]) -> bool:
    """Whether the exporter's counters of the engines have gained at least the tokens (input, output) that the client counted. `direct`
    names the one engine that was asked past the router."""
    prompts = answers = 0.0
    for engine in engines:
        if direct is not None and engine.name != direct:
            continue
        found = engine_gained(engine, before, after)
        if direct is not None or engine.role != "decode":
            prompts += found.get("prompt_tokens", 0.0)
        if direct is not None or engine.role != "prefill":
            answers += found.get("generation_tokens", 0.0)
    return prompts >= tokens[0] and answers >= tokens[1]
