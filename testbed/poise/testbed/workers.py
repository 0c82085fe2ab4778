"""The processes of a vLLM server that compute, and the rank of each: from /proc alone.

Owns vLLM's process titles (set by setproctitle, vLLM 0.11 to 0.32) and CUDA's reading of CUDA_VISIBLE_DEVICES. Knows nothing
of simulated cards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from poise.testbed import processes
from poise.testbed.processes import PROC, ProcessIdentity, ProcessStat

# `VLLM::Worker_DP0_PP1_TP0_EP0`: each part only when that size is above 1. `VLLM::Worker` before the rank is known.
_WORKER = re.compile(r"^[^:\s]+::Worker(?P<ranks>(?:_[A-Z]+\d+)*)$")
_RANK = re.compile(r"_([A-Z]+)(\d+)")
# Each data-parallel rank has an engine core of its own, whose number its workers need not have in their titles.
_CORE = re.compile(r"^[^:\s]+::EngineCore_DP(?P<rank>\d+)$")
# What strtol reads, not all that Python calls a digit.
_ORDINAL = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker process. `local_rank` counts the CUDA devices of the server: (data-parallel rank × pipeline size + pipeline
    rank) × tensor size + tensor rank."""

    identity: ProcessIdentity
    title: str
    local_rank: int

    @property
    def pid(self) -> int:
        return self.identity.pid


def local_rank_of(title: str, tensor_parallel_size: int, pipeline_parallel_size: int = 1, data_rank: int = 0) -> int | None:
    """The rank in a worker's title; None for other processes, and for workers whose rank is not set yet. `data_rank` is that of
    its engine core, for titles without."""
    match = _WORKER.match(title)
    if match is None:
        return None
    ranks = {name: int(number) for name, number in _RANK.findall(match["ranks"])}
    if (tensor_parallel_size > 1 and "TP" not in ranks) or (pipeline_parallel_size > 1 and "PP" not in ranks):
        return None
    stage = ranks.get("DP", data_rank) * pipeline_parallel_size + ranks.get("PP", 0)
    return stage * tensor_parallel_size + ranks.get("TP", 0)


def rank_along(dimension: str, title: str) -> int | None:
    """The rank that a worker's title names along one dimension ("TP", "PP"); None where it names none: that size is 1."""
    match = _WORKER.match(title)
    return None if match is None else next((int(number) for name, number in _RANK.findall(match["ranks"]) if name == dimension), None)


def workers_of(
    server: int, tensor_parallel_size: int, stats: Iterable[ProcessStat], proc: Path = PROC, pipeline_parallel_size: int = 1
) -> list[Worker]:
    """The living workers below the process `server` (`vllm serve`), by rank."""
    found = []
    data_ranks: dict[int, int] = {}
    for stat in processes.descendants(server, stats):
        arguments = processes.command_line(stat.pid, proc) if stat.lives else []
        title = " ".join(arguments).strip()
        core = _CORE.match(title)
        data_ranks[stat.pid] = int(core["rank"]) if core else data_ranks.get(stat.parent, 0)
        rank = local_rank_of(title, tensor_parallel_size, pipeline_parallel_size, data_ranks[stat.pid])
        if rank is not None:
            found.append(Worker(ProcessIdentity(stat.pid, stat.start_ticks), title, rank))
    return sorted(found, key=lambda worker: (worker.local_rank, worker.pid))


def visible_devices(value: str | None, uuids: Sequence[str]) -> list[int]:
    """The indexes of the cards that CUDA would show, in CUDA's order, for a CUDA_VISIBLE_DEVICES and the UUIDs of all cards.

    As in NVIDIA's CUDA programming guide: unset shows all, an entry is an ordinal or a unique prefix of a UUID, and the list
    ends at the first entry that names no card; a card named twice makes CUDA see none.
    """
    if value is None:
        return list(range(len(uuids)))
    found: list[int] = []
    for entry in (part.strip() for part in value.split(",")):
        if _ORDINAL.fullmatch(entry):
            matches = [int(entry)] if int(entry) < len(uuids) else []
        else:
            matches = [index for index, uuid in enumerate(uuids) if entry.startswith("GPU-") and uuid.startswith(entry)]
        if len(matches) != 1:
            break
        if matches[0] in found:
            return []
        found.append(matches[0])
    return found


def cards_of(workers: Iterable[Worker], visible: Sequence[int]) -> dict[int, Worker]:
    """Card index → worker, as CUDA places it: local rank n sits on the nth visible card. A rank beyond them has no card."""
    return {visible[worker.local_rank]: worker for worker in workers if worker.local_rank < len(visible)}
