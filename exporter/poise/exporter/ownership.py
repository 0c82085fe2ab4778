"""Joins engines with cards: this process is that rank of that engine and sits on this card.

NVML's process lists decide; CUDA_VISIBLE_DEVICES says what an engine may use, and stands in where the driver gives no list. What is
unknown stays unknown: it gives no series, never a 0. Pure; fills `Engine.readings` through `engine_readings` and the per-card process readings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from poise.exporter import metrics as m
from poise.exporter.cuda_visible import VisibleCard, visible_cards
from poise.exporter.engine_readings import engine_readings
from poise.exporter.snapshot import Engine, EngineGpu, Gpu, ObservedEngine, Rank, Readings, Use

#: A card with this much memory held by processes of no engine is not free: somebody works there. A bare CUDA context, or a
#: monitoring agent, holds a few hundred MiB.
FOREIGN_USE_BYTES = 1024**3
#: Longest process name on a series (metric contract).
PROCESS_NAME_LIMIT = 64

_FALLBACK, _LISTED = "environment", "processes"


@dataclass(frozen=True, slots=True)
class Joined:
    """The engines with their cards, in the order given, and per card (UUID) the memory of its processes."""

    engines: tuple[Engine, ...]
    gpu_readings: Mapping[str, Readings]


@dataclass(slots=True)
class _Placement:
    """Where one engine's ranks are: card UUID → its ranks there. `loose`: cards with a process of it that is no rank."""

    ranks: dict[str, list[Rank]] = field(default_factory=dict)
    loose: set[str] = field(default_factory=set)


def join(gpus: Sequence[Gpu], engines: Sequence[ObservedEngine], title_of: Callable[[int], str]) -> Joined:
    """Joins a node's cards and engines. `title_of` names a process: its vLLM title, else its program."""
    placements = [_placement(gpus, engine) for engine in engines]
    visible = [visible_cards(gpus, engine.config) if engine.process_up else None for engine in engines]
    world = [local_world_size(engine) for engine in engines]
    sources = [
        _source(gpus, engine, cards, size, placement)
        for engine, cards, size, placement in zip(engines, visible, world, placements, strict=True)
    ]
    holders = _holders(engines, placements, visible, world)
    foreign = _foreign_memory(gpus, engines)
    joined = []
    for number, engine in enumerate(engines):
        cards = _cards(gpus, visible[number], placements[number], number, holders, foreign)
        used = frozenset(placements[number].ranks) if sources[number] == _LISTED else None
        result = Engine(engine, cards, used, world[number], sources[number])
        sees = visible[number]
        joined.append(replace(result, readings=engine_readings(result, len(sees) if sees is not None else None)))
    return Joined(tuple(joined), {gpu.uuid: _process_readings(gpu, engines, title_of) for gpu in gpus if gpu.processes is not None})


def local_world_size(engine: ObservedEngine) -> int | None:
    """How many ranks of the engine belong on this node; None when that is unknown (URL only, Ray places them as it likes)."""
    config = engine.config
    if not engine.process_up or config.distributed_executor_backend == "ray":
        return None
    group = config.tensor_parallel_size * config.pipeline_parallel_size
    if config.nnodes > 1:
        return config.world_size // config.nnodes if config.world_size % config.nnodes == 0 else None
    local = config.data_parallel_size_local
    return group * (config.data_parallel_size if local is None else local)


# --------------------------------------------------------------------------------------------------------------- placement
def _placement(gpus: Sequence[Gpu], engine: ObservedEngine) -> _Placement:
    """Each rank on the card where it holds most memory: while it starts, a worker may hold small contexts on others too."""
    placement = _Placement()
    by_pid = {rank.pid: rank for rank in engine.ranks}
    best: dict[int, tuple[int, int, str]] = {}
    for gpu in gpus:
        for process in gpu.processes or ():
            if process.pid in by_pid:
                candidate = (process.used_bytes if process.used_bytes is not None else -1, -gpu.index, gpu.uuid)
                best[process.pid] = max(best.get(process.pid, candidate), candidate)
            elif process.pid in engine.pids:
                placement.loose.add(gpu.uuid)
    for rank in engine.ranks:
        if rank.pid in best:
            placement.ranks.setdefault(best[rank.pid][2], []).append(rank)
    if not engine.ranks:
        # No titles to tell ranks by: whatever process of the engine holds a card owns it.
        placement.ranks.update({uuid: [] for uuid in placement.loose})
    return placement


def _source(
    gpus: Sequence[Gpu], engine: ObservedEngine, visible: Sequence[VisibleCard] | None, world: int | None, placement: _Placement
) -> str:
    """Where the engine's cards are known from, and the fallback: ranks put on its visible cards in order."""
    if not engine.process_up:
        return ""
    up = [gpu for gpu in gpus if gpu.up]
    if up and all(gpu.processes is not None for gpu in up):
        return _LISTED
    if not up or visible is None or world is None:
        return ""
    if not placement.ranks:
        ranks: list[Rank | None] = [*engine.ranks]
        ranks += [None] * (world - len(ranks))
        for card, rank in zip(visible, ranks, strict=False):
            placement.ranks[card.gpu.uuid] = [rank] if rank is not None else []
    return _FALLBACK


def _holders(
    engines: Sequence[ObservedEngine],
    placements: Sequence[_Placement],
    visible: Sequence[Sequence[VisibleCard] | None],
    world: Sequence[int | None],
) -> Mapping[str, set[int]]:
    """Card UUID → numbers of the engines that have it: a rank there, or still on their way to a card that they were told to use."""
    holders: dict[str, set[int]] = {}
    for number, engine in enumerate(engines):
        placement = placements[number]
        for uuid in placement.ranks:
            holders.setdefault(uuid, set()).add(number)
        cards = visible[number]
        placed = len(placement.ranks)
        if engine.config.cuda_visible_devices is not None and cards is not None and placed < (world[number] or 0):
            for card in cards:
                holders.setdefault(card.gpu.uuid, set()).add(number)
    return holders


def _cards(
    gpus: Sequence[Gpu],
    visible: Sequence[VisibleCard] | None,
    placement: _Placement,
    number: int,
    holders: Mapping[str, set[int]],
    foreign: Mapping[str, float],
) -> tuple[EngineGpu, ...] | None:
    """The cards that an engine can see, its own in rank order first; with an unreadable environment at least those that it holds."""
    cards = list(visible) if visible is not None else []
    seen = {card.gpu.uuid for card in cards}
    cards += [VisibleCard(gpu, None) for gpu in gpus if gpu.uuid in placement.ranks and gpu.uuid not in seen]
    if visible is None and not cards:
        return None
    own: list[tuple[tuple[int, int, int, int], EngineGpu]] = []
    others: list[EngineGpu] = []
    for card in cards:
        gpu = card.gpu
        if gpu.uuid in placement.ranks:
            ranks = placement.ranks[gpu.uuid]
            rank = min(ranks, key=_order) if ranks else None
            place = _order(rank)[:3] if rank is not None else (0, 0, 0)
            own.append(((*place, gpu.index), EngineGpu(gpu.index, gpu.uuid, card.cuda_index, Use.OWN, rank)))
        elif holders.get(gpu.uuid, set()) - {number} or foreign.get(gpu.uuid, 0.0) >= FOREIGN_USE_BYTES:
            others.append(EngineGpu(gpu.index, gpu.uuid, card.cuda_index, Use.OTHER))
        elif gpu.up:
            # A lost card whose owner is not known is nobody's to blame: it is left out, not called free.
            others.append(EngineGpu(gpu.index, gpu.uuid, card.cuda_index, Use.FREE))
    return (*(card for _, card in sorted(own, key=lambda item: item[0])), *others)


def _order(rank: Rank) -> tuple[int, int, int, int]:
    return (rank.dp_rank or 0, rank.pp_rank or 0, rank.tp_rank or 0, rank.pid)


# --------------------------------------------------------------------------------------------------------------- processes
def _owners(engines: Sequence[ObservedEngine]) -> Mapping[int, tuple[ObservedEngine, Rank | None]]:
    owners: dict[int, tuple[ObservedEngine, Rank | None]] = {}
    for engine in engines:
        owners.update(dict.fromkeys(engine.pids, (engine, None)))
        owners.update({rank.pid: (engine, rank) for rank in engine.ranks})
    return owners


def _foreign_memory(gpus: Sequence[Gpu], engines: Sequence[ObservedEngine]) -> Mapping[str, float]:
    """Card UUID → bytes held by processes of no engine; a card is left out when its list or one of the sizes is unknown."""
    owners = _owners(engines)
    held: dict[str, float] = {}
    for gpu in gpus:
        if gpu.processes is None:
            continue
        sizes = [process.used_bytes for process in gpu.processes if process.pid not in owners]
        if all(size is not None for size in sizes):
            held[gpu.uuid] = float(sum(size for size in sizes if size is not None))
    return held


def _process_readings(gpu: Gpu, engines: Sequence[ObservedEngine], title_of: Callable[[int], str]) -> Readings:
    owners = _owners(engines)
    memory: dict[tuple[str, ...], float] = {}
    for process in gpu.processes or ():
        if process.used_bytes is None:
            continue
        engine, rank = owners.get(process.pid, (None, None))
        name = rank.title if rank is not None else title_of(process.pid)
        labels = (
            str(process.pid),
            name[:PROCESS_NAME_LIMIT],
            engine.identity.engine if engine is not None else "",
            rank_label(rank) if rank is not None else "",
        )
        memory[labels] = float(process.used_bytes)
    readings: dict[m.Metric, Mapping[tuple[str, ...], float]] = {}
    if memory:
        readings[m.GPU_PROCESS_MEMORY] = memory
    foreign = _foreign_memory([gpu], engines).get(gpu.uuid)
    if foreign is not None:
        readings[m.GPU_FOREIGN_MEMORY] = {(): foreign}
    return readings


def rank_label(rank: Rank) -> str:
    """A rank in vLLM's words: "TP1", "DP0_PP1_TP3"; "0" for the only one."""
    parts = (("DP", rank.dp_rank), ("PP", rank.pp_rank), ("TP", rank.tp_rank))
    return "_".join(f"{name}{number}" for name, number in parts if number is not None) or "0"
