"""Joins engines with cards: this process is that rank of that engine and sits on this card.

NVML's process lists decide; CUDA_VISIBLE_DEVICES says what an engine may use, and stands in where the driver gives no list. What is
unknown stays unknown: it gives no series, never a 0. Pure; fills `Engine.readings` through `engine_readings` and the per-card process readings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from poise.exporter import metrics as m
from poise.exporter.cuda_visible import VisibleCard, visible_cards
from poise.exporter.engine_readings import engine_readings
from poise.exporter.metrics import Metric
from poise.exporter.snapshot import Engine, EngineGpu, Gpu, ObservedEngine, Rank, Readings, Use

#: A card with this much memory held by processes of no engine is not free: somebody works there. A bare CUDA context, or a
#: monitoring agent, holds a few hundred MiB.
FOREIGN_USE_BYTES = 1024**3
#: Longest process name on a series (metric contract).
PROCESS_NAME_LIMIT = 64


class Source(StrEnum):
    """How it is known which cards an engine has; the values of `Engine.source`."""

    PROCESSES = "processes"
    ENVIRONMENT = "environment"
    UNKNOWN = ""


@dataclass(frozen=True, slots=True)
class Joined:
    """The engines with their cards, in the order given, and per card (UUID) the memory of its processes."""

    engines: tuple[Engine, ...]
    gpu_readings: Mapping[str, Readings]


def join(gpus: Sequence[Gpu], engines: Sequence[ObservedEngine], title_of: Callable[[int], str]) -> Joined:
    """Joins a node's cards and engines. `title_of` names a process: its vLLM title, else its program."""
    owners = _owners(engines)
    foreign = _foreign_memory(gpus, owners)
    views = [_view(gpus, engine) for engine in engines]
    holders = _holders(views)
    joined = []
    for view in views:
        cards = _cards(gpus, view, holders, foreign)
        used = frozenset(view.ranks) if view.source is Source.PROCESSES else None
        engine = Engine(view.engine, cards, used, view.world, str(view.source))
        sees = len(view.visible) if view.visible is not None else None
        joined.append(replace(engine, readings=engine_readings(engine, sees)))
    listed = [gpu for gpu in gpus if gpu.processes is not None]
    return Joined(tuple(joined), {gpu.uuid: _process_readings(gpu, owners, foreign.get(gpu.uuid), title_of) for gpu in listed})


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
@dataclass(slots=True)
class _View:
    """One engine on this node while it is joined. `ranks`: card UUID → its ranks there (none known by number: an empty list)."""

    engine: ObservedEngine
    visible: tuple[VisibleCard, ...] | None
    world: int | None
    source: Source
    ranks: dict[str, list[Rank]] = field(default_factory=dict)


def _view(gpus: Sequence[Gpu], engine: ObservedEngine) -> _View:
    visible = visible_cards(gpus, engine.config) if engine.process_up else None
    view = _View(engine, visible, local_world_size(engine), Source.UNKNOWN)
    up = [gpu for gpu in gpus if gpu.up]
    if not engine.process_up or not up:
        return view
    _place_by_processes(gpus, view)
    if all(gpu.processes is not None for gpu in up):
        view.source = Source.PROCESSES
    elif visible is not None and view.world is not None:
        view.source = Source.ENVIRONMENT
    _place_the_rest(view)
    return view


def _place_by_processes(gpus: Sequence[Gpu], view: _View) -> None:
    """Each rank on the card where it holds most memory: while it starts, a worker may hold small contexts on others too."""
    by_pid = {rank.pid: rank for rank in view.engine.ranks}
    best: dict[int, tuple[int, int, str]] = {}
    loose: list[str] = []
    for gpu in gpus:
        for process in gpu.processes or ():
            if process.pid in by_pid:
                candidate = (process.used_bytes if process.used_bytes is not None else -1, -gpu.index, gpu.uuid)
                best[process.pid] = max(best.get(process.pid, candidate), candidate)
            elif process.pid in view.engine.pids:
                loose.append(gpu.uuid)
    for rank in view.engine.ranks:
        if rank.pid in best:
            view.ranks.setdefault(best[rank.pid][2], []).append(rank)
    if not by_pid:
        # No titles to tell ranks by: whatever process of the engine is on a card has it.
        view.ranks.update({uuid: [] for uuid in loose})


def _place_the_rest(view: _View) -> None:
    """Ranks that no process list shows: on visible cards without a list, in CUDA's order.

    In full where the driver gives no lists. Where a card is lost or hangs, only if the engine has answered, so that its ranks have their cards,
    and there are as many such cards as ranks without one, so that it can be no other.
    """
    if view.visible is None or view.world is None:
        return
    placed = {rank.pid for ranks in view.ranks.values() for rank in ranks}
    waiting: list[Rank | None] = [rank for rank in view.engine.ranks if rank.pid not in placed]
    silent = [card.gpu.uuid for card in view.visible if card.gpu.processes is None and card.gpu.uuid not in view.ranks]
    if view.source is Source.ENVIRONMENT:
        waiting += [None] * (view.world - len(view.ranks) - len(waiting))
    elif view.engine.last_page_at is None or len(waiting) != len(silent):
        return
    for uuid, rank in zip(silent, waiting, strict=False):
        view.ranks[uuid] = [rank] if rank is not None else []


def _holders(views: Sequence[_View]) -> Mapping[str, list[_View]]:
    """Card UUID → the engines that have it: with a rank there, or on their way to a card that they were told to use."""
    holders: dict[str, list[_View]] = {}
    for view in views:
        cards = set(view.ranks)
        if view.engine.config.told_cards and view.visible is not None and len(cards) < (view.world or 0):
            cards |= {card.gpu.uuid for card in view.visible}
        for uuid in cards:
            holders.setdefault(uuid, []).append(view)
    return holders


def _cards(
    gpus: Sequence[Gpu], view: _View, holders: Mapping[str, Sequence[_View]], foreign: Mapping[str, float]
) -> tuple[EngineGpu, ...] | None:
    """The cards that an engine can see, its own in rank order first; with an unreadable environment at least those that it holds."""
    cards = list(view.visible or ())
    seen = {card.gpu.uuid for card in cards}
    cards += [VisibleCard(gpu, None) for gpu in gpus if gpu.uuid in view.ranks and gpu.uuid not in seen]
    if view.visible is None and not cards:
        return None
    own: list[tuple[tuple[int, ...], EngineGpu]] = []
    others: list[EngineGpu] = []
    for card in cards:
        gpu = card.gpu
        if gpu.uuid in view.ranks:
            # Two ranks on one card are shown as the lower one: a card stands once, or rules could not join on it.
            rank = min(view.ranks[gpu.uuid], key=_order, default=None)
            place = _order(rank)[:3] if rank is not None else (0, 0, 0)
            own.append(((*place, gpu.index), EngineGpu(gpu.index, gpu.uuid, card.cuda_index, Use.OWN, rank)))
        elif any(holder is not view for holder in holders.get(gpu.uuid, ())) or in_foreign_use(gpu, foreign.get(gpu.uuid)):
            others.append(EngineGpu(gpu.index, gpu.uuid, card.cuda_index, Use.OTHER))
        elif gpu.up:
            # A card that is lost and whose owner is not known is left out: it is not free to use.
            others.append(EngineGpu(gpu.index, gpu.uuid, card.cuda_index, Use.FREE))
    return (*(card for _, card in sorted(own, key=lambda item: item[0])), *others)


def _order(rank: Rank) -> tuple[int, int, int, int]:
    return (rank.dp_rank or 0, rank.pp_rank or 0, rank.tp_rank or 0, rank.pid)


# --------------------------------------------------------------------------------------------------------------- processes
_Owners = Mapping[int, tuple[ObservedEngine, Rank | None]]


def _owners(engines: Sequence[ObservedEngine]) -> _Owners:
    """pid → its engine, and its rank if it is one."""
    owners: dict[int, tuple[ObservedEngine, Rank | None]] = {}
    for engine in engines:
        owners.update(dict.fromkeys(engine.pids, (engine, None)))
        owners.update({rank.pid: (engine, rank) for rank in engine.ranks})
    return owners


def _foreign_memory(gpus: Sequence[Gpu], owners: _Owners) -> Mapping[str, float]:
    """Card UUID → bytes held by processes of no engine; a card is left out when its list is unknown or lacks some, or one of the sizes is."""
    held: dict[str, float] = {}
    for gpu in gpus:
        sizes = [process.used_bytes for process in gpu.processes or () if process.pid not in owners]
        if gpu.processes is not None and gpu.processes_complete and None not in sizes:
            held[gpu.uuid] = float(sum(size for size in sizes if size is not None))
    return held


def in_foreign_use(gpu: Gpu, held: float | None) -> bool:
    """Whether somebody unknown works on the card. `held`: bytes of processes of no engine, None where that is not known; then by the memory
    in use that no listed process accounts for.
    """
    if held is None:
        held = (gpu.value(m.GPU_MEMORY_USED) or 0.0) - sum(process.used_bytes or 0 for process in gpu.processes or ())
    return held is not None and held >= FOREIGN_USE_BYTES


def _process_readings(gpu: Gpu, owners: _Owners, foreign: float | None, title_of: Callable[[int], str]) -> Readings:
    memory: dict[tuple[str, ...], float] = {}
    for process in gpu.processes or ():
        if process.used_bytes is None:
            continue
        engine, rank = owners.get(process.pid, (None, None))
        name = (rank.title if rank is not None else title_of(process.pid))[:PROCESS_NAME_LIMIT]
        place = rank_label(rank) if rank is not None else ""
        memory[(str(process.pid), name, engine.identity.engine if engine is not None else "", place)] = float(process.used_bytes)
    readings: dict[Metric, Mapping[tuple[str, ...], float]] = {}
    if memory:
        readings[m.GPU_PROCESS_MEMORY] = memory
    if foreign is not None:
        readings[m.GPU_FOREIGN_MEMORY] = {(): foreign}
    return readings


def rank_label(rank: Rank) -> str:
    """A rank in vLLM's words: "TP1", "DP0_PP1_TP3"; "0" for the only one."""
    parts = (("DP", rank.dp_rank), ("PP", rank.pp_rank), ("TP", rank.tp_rank))
    return "_".join(f"{name}{number}" for name, number in parts if number is not None) or "0"
