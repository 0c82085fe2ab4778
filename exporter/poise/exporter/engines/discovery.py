"""Finds vLLM engines in a process table: the server, its children, and which of them may own a card.

Pure: takes processes, returns engines. Process trees of vLLM (measured with 0.32): ``vllm serve`` keeps its command line, its children are
``VLLM::EngineCore[_DPn]`` and ``VLLM::APIServer_n``, the workers are children of an EngineCore. On GPUs with one rank there is no worker and the
card belongs to the EngineCore; the CPU build always has a ``VLLM::Worker``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from poise.exporter.engines.argv import ServerCommand
from poise.exporter.engines.table import Process, ProcessKey
from poise.exporter.engines.titles import Kind, Title
from poise.exporter.snapshot import EngineConfig, Rank

#: Longest chain of parents that is followed; real ones have fewer than ten links.
_DEEPEST = 64
#: So many engines of one node are watched, the longest running first: 16 cards in 7 MIG instances each make 112. Any user can start processes
#: that are called vLLM, and each costs a thread and 1.2 kB of page.
MOST_ENGINES = 256
#: So many ranks of one engine are told apart; the largest nodes have 16 cards.
MOST_RANKS = 1024


@dataclass(frozen=True, slots=True)
class FoundEngine:
    """A server process with everything below it. `listeners` are the processes that may hold the API's socket."""

    key: ProcessKey
    command: ServerCommand
    config: EngineConfig
    start_time: float
    ranks: tuple[Rank, ...]
    pids: frozenset[int]
    listeners: tuple[int, ...]


def find_engines(processes: Mapping[int, Process]) -> tuple[FoundEngine, ...]:
    """The engines among `processes`, in order of their start.

    A server below another server is that server's child that has not got its title yet, not an engine of its own.
    """
    servers = [process for process in processes.values() if process.server is not None]
    if not servers:
        return ()
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.ppid, []).append(process)
    below: dict[int, list[Process]] = {server.pid: _below(server, children) for server in servers}
    inner = {process.pid for group in below.values() for process in group}
    found = [
        _engine(server, server.server, sorted([server, *below[server.pid]], key=lambda item: item.pid), processes)
        for server in servers
        if server.server is not None and server.pid not in inner
    ]
    return tuple(sorted(found, key=lambda engine: (engine.start_time, engine.key.pid)))


def _below(server: Process, children: Mapping[int, list[Process]]) -> list[Process]:
    """All processes below a server."""
    found: dict[int, Process] = {}
    waiting = [server.pid]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child.pid not in found and child.pid != server.pid:  # a table read while it changes may hold circles
                found[child.pid] = child
                waiting.append(child.pid)
    return list(found.values())


def _engine(server: Process, command: ServerCommand, members: list[Process], processes: Mapping[int, Process]) -> FoundEngine:
    titled = [(process, process.title) for process in members if process.title is not None]
    workers = [(process, title) for process, title in titled if title.kind is Kind.WORKER]
    cores = [(process, title) for process, title in titled if title.kind is Kind.ENGINE_CORE]
    config = _with_sizes_of(workers, command)
    busy = {_core_of(process, processes) for process, _ in workers}
    ranks = [_worker_rank(process, title, processes) for process, title in workers]
    if config.tensor_parallel_size * config.pipeline_parallel_size == 1:
        # With one rank and no worker, the core itself has the card; with more ranks the workers are yet to come.
        ranks += [Rank(process.pid, title.text, dp_rank=title.dp_rank) for process, title in cores if process.pid not in busy]
    api_servers = [process.pid for process, title in titled if title.kind is Kind.API_SERVER]
    return FoundEngine(
        server.key,
        command,
        config,
        server.start_time,
        tuple(sorted(ranks, key=rank_order)[:MOST_RANKS]),
        frozenset(process.pid for process in members),
        (server.pid, *api_servers),
    )


def rank_order(rank: Rank) -> tuple[int, int, int, int]:
    """Data, pipeline, tensor rank, as vLLM numbers its world."""
    return (rank.dp_rank or 0, rank.pp_rank or 0, rank.tp_rank or 0, rank.pid)


def _core_of(process: Process, processes: Mapping[int, Process]) -> int | None:
    """The EngineCore above a worker."""
    current = process.ppid
    for _ in range(_DEEPEST):
        parent = processes.get(current)
        if parent is None or parent.server is not None or parent.ppid == current:
            return None
        if parent.title is not None and parent.title.kind is Kind.ENGINE_CORE:
            return parent.pid
        current = parent.ppid
    return None


def _worker_rank(process: Process, title: Title, processes: Mapping[int, Process]) -> Rank:
    """A worker's rank; the data-parallel one is its core's where its own title has none (CPU build, one worker a core)."""
    core = processes.get(_core_of(process, processes) or 0)
    dp_rank = title.dp_rank if title.dp_rank is not None or core is None or core.title is None else core.title.dp_rank
    return Rank(process.pid, title.text, title.tp_rank, title.pp_rank, dp_rank)


def _with_sizes_of(workers: list[tuple[Process, Title]], command: ServerCommand) -> EngineConfig:
    """The configuration; sizes that a file may have set are at least what the workers' titles show."""
    config = command.config
    if not command.reads_file:
        return config

    def least(ranks: list[int | None]) -> int:
        return max((rank + 1 for rank in ranks if rank is not None), default=1)

    return replace(
        config,
        tensor_parallel_size=max(config.tensor_parallel_size, least([title.tp_rank for _, title in workers])),
        pipeline_parallel_size=max(config.pipeline_parallel_size, least([title.pp_rank for _, title in workers])),
        data_parallel_size=max(config.data_parallel_size, least([title.dp_rank for _, title in workers])),
    )
