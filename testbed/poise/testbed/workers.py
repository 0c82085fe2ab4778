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
# What strtol reads, not all that Python calls a digit.
_ORDINAL = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker process. `local_rank` counts the CUDA devices of the server: pipeline rank × tensor size + tensor rank."""

    identity: ProcessIdentity
    title: str
    local_rank: int

    @property
    def pid(self) -> int:
        return self.identity.pid


def local_rank_of(title: str, tensor_parallel_size: int) -> int | None:
    """The rank in a worker's title; None for other processes, and for workers whose rank is not set yet."""
    match = _WORKER.match(title)
    if match is None:
        return None
    ranks = {name: int(number) for name, number in _RANK.findall(match["ranks"])}
    if tensor_parallel_size > 1 and "TP" not in ranks:
        return None
    return ranks.get("PP", 0) * tensor_parallel_size + ranks.get("TP", 0)


def workers_of(server: int, tensor_parallel_size: int, stats: Iterable[ProcessStat], proc: Path = PROC) -> list[Worker]:
    """The living workers below the process `server` (`vllm serve`), by rank."""
    found = []
    for stat in processes.descendants(server, stats):
        arguments = processes.command_line(stat.pid, proc) if stat.lives else []
        title = " ".join(arguments).strip()
        rank = local_rank_of(title, tensor_parallel_size)
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
