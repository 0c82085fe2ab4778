"""Reads what a vLLM server wrote at its start: sizes, ranks that came, NCCL's transports, and known errors.

Pure: takes lines, returns numbers and words of its own; nothing of the text itself is kept, for a start-up log holds the whole command line.
Lines by version: vLLM 0.6 to 0.33 (engine/llm_engine.py, v1/engine/core.py, distributed/parallel_state.py, custom_all_reduce.py), NCCL 2.18 to
2.27 with NCCL_DEBUG=INFO.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

#: Longer lines are cut; the configuration that an engine writes in one line has 3 KB.
LINE_LIMIT = 64 * 1024

#: A server begins: what stood before is another start's.
_BEGIN = re.compile(r"vLLM API server version|non-default args:")
_CONFIGURATION = re.compile(r"Initializing an? (?:V1 )?LLM engine \(v([\w.+]{1,40})\) with config")
_SIZE = re.compile(r"\b(tensor|pipeline|data|prefill_context)_parallel_size['\"]?\s*[=:]\s*(\d{1,5})\b")
_WORLD = re.compile(r"\brank (\d{1,5}) in world size (\d{1,5}) is assigned as")
_DISTRIBUTED = re.compile(r"\bworld_size=(\d{1,5}) rank=(\d{1,5}) local_rank=")
_WAITING = re.compile(r"Waiting for (?:(\d{1,5}) local, )?(\d{1,5}) remote core engine|Waiting for creating a placement group")
_READY = re.compile(r"Application startup complete|Starting vLLM (?:API )?server|Uvicorn running on")
_NCCL = re.compile(r"vLLM is using nccl==(\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)|NCCL version (\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)\+cuda")
_CHANNEL = re.compile(r"NCCL INFO Channel .{1,80} via (P2P|SHM|NET/IB|NET/Socket)")
_P2P_OFF = re.compile(r"P2P is disabled between connected GPUs (\d{1,3}) and (\d{1,3})")
_HEADS = re.compile(r"attention heads \((\d{1,6})\) must be divisible by tensor parallel size \((\d{1,5})\)")
_MEMORY = re.compile(r"CUDA out of memory|No available memory for the cache blocks|Free memory on device .{1,120} is less than desired")

#: Why vLLM's own all-reduce is off, by a part of its line → in our words. Without it NCCL does the work, which is slower for small sums.
_ALL_REDUCE = (
    ("unsupported world size", "the number of ranks"),
    ("more than two PCIe-only GPUs", "more than two cards that only PCIe joins"),
    ("lacks GPU P2P capability", "cards that do not reach each other's memory (P2P)"),
)


@dataclass(slots=True)
class StartupLog:
    """What a log shows of its last start. `worlds` and `ranks` as the ranks announced them, `transports` with the number of channels."""

    version: str = ""
    sizes: dict[str, int] = field(default_factory=dict)  # tensor, pipeline, prefill_context, data
    worlds: set[int] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)
    transports: dict[str, int] = field(default_factory=dict)
    nccl: str = ""
    p2p_off: tuple[int, int] | None = None
    all_reduce_off: str = ""
    waiting: bool = False
    ready: bool = False
    heads: tuple[int, int] | None = None  # heads that do not divide, and by what
    out_of_memory: bool = False

    def size(self, dimension: str) -> int:
        """A parallel size; one that no line tells is 1, as vLLM's default is."""
        return self.sizes.get(dimension, 1)

    @property
    def said_anything(self) -> bool:
        """Whether any line was vLLM's."""
        return bool(self.version or self.sizes or self.worlds or self.heads or self.ready)


def parse(lines: Iterable[str]) -> StartupLog:
    """The last start that a log shows. Never raises for what a line holds."""
    log = StartupLog()
    for line in lines:
        text = line[:LINE_LIMIT]
        if _BEGIN.search(text):
            log = StartupLog()
        _read(text, log)
    return log


def _read(text: str, log: StartupLog) -> None:
    configuration = _CONFIGURATION.search(text)
    if configuration is not None:
        log.version = configuration[1]
    if configuration is not None or _BEGIN.search(text) is not None:
        for dimension, size in _SIZE.findall(text):
            log.sizes[dimension] = int(size)
    if (match := _WORLD.search(text)) is not None:
        log.ranks.add(int(match[1]))
        log.worlds.add(int(match[2]))
    elif (match := _DISTRIBUTED.search(text)) is not None:
        log.worlds.add(int(match[1]))
        log.ranks.add(int(match[2]))
    elif (match := _CHANNEL.search(text)) is not None:
        log.transports[match[1]] = log.transports.get(match[1], 0) + 1
    elif (match := _P2P_OFF.search(text)) is not None:
        log.p2p_off = (int(match[1]), int(match[2]))
    elif (match := _NCCL.search(text)) is not None:
        log.nccl = match[1] or match[2]
    elif (match := _HEADS.search(text)) is not None:
        log.heads = (int(match[1]), int(match[2]))
    elif _MEMORY.search(text) is not None:
        log.out_of_memory = True
    elif "Custom allreduce is disabled" in text:
        log.all_reduce_off = next((ours for theirs, ours in _ALL_REDUCE if theirs in text), log.all_reduce_off)
    log.waiting = log.waiting or _WAITING.search(text) is not None
    log.ready = log.ready or _READY.search(text) is not None
