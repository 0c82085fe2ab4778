"""What the mirror needs of a vLLM server's metrics page: tokens, KV bytes and the size of the KV cache.

Owns those names of vLLM (0.11 to 0.33) and the thread that asks. Knows nothing of cards.
"""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from poise.testbed.ports import LOOPBACK

# vLLM renders its page in the API server: asked no more often than a dashboard would.
PAGE_SECONDS = 2.0
PAGE_TIMEOUT_SECONDS = 1.0

# `vllm:name_total{engine="0",…} 17.0`; `engine` is the data-parallel rank.
_SAMPLE = re.compile(r"^vllm:(?P<name>[a-z_]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
_LABEL = re.compile(r'([a-z_]+)="([^"]*)"')
_WANTED = (
    "prompt_tokens_total",
    "prompt_tokens_by_source_total",
    "generation_tokens_total",
    "nixl_bytes_transferred_sum",
    "cache_config_info",
)


@dataclass(frozen=True, slots=True)
class PageCounts:
    """Counters of a page, by data-parallel rank, since the server began.

    `computed_tokens` went through the model: prompt tokens that were in no cache, and generated ones; empty when the page does
    not have both. `transferred_bytes`: KV cache that this server pulled (NIXL). `cache_tokens`: the KV cache of one rank, 0
    before it is there. `cache_element_bytes`: of a number in it, None for the model's own.
    """

    computed_tokens: Mapping[int, float] = field(default_factory=dict)
    prompt_tokens: Mapping[int, float] = field(default_factory=dict)
    transferred_bytes: Mapping[int, float] = field(default_factory=dict)
    cache_tokens: int = 0
    cache_element_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """The newest page of one server. `number` grows with each that was read."""

    number: int
    counts: PageCounts


class Pages(Protocol):
    """Where the mirror gets pages from, without waiting."""

    def want(self, ports: Collection[int]) -> None:
        """These servers' pages are wanted from now on, and no others."""

    def latest(self, port: int) -> Reading | None:
        """None when none was read yet."""


def counts_of(page: Iterable[str]) -> PageCounts:
    """The counters in the lines of a page."""
    prompt: dict[int, float] = {}
    computed: dict[int, float] = {}
    generated: dict[int, float] = {}
    transferred: dict[int, float] = {}
    cache_tokens, element = 0, None
    for line in page:
        match = _SAMPLE.match(line) if line.startswith("vllm:") else None
        if match is None or match["name"] not in _WANTED:
            continue
        labels = dict(_LABEL.findall(match["labels"] or ""))
        rank, value = int(labels["engine"]) if labels.get("engine", "").isdecimal() else 0, float(match["value"])
        if match["name"] == "prompt_tokens_total":
            _add(prompt, rank, value)
        elif match["name"] == "generation_tokens_total":
            _add(generated, rank, value)
        elif match["name"] == "nixl_bytes_transferred_sum":
            _add(transferred, rank, value)
        elif match["name"] == "prompt_tokens_by_source_total" and labels.get("source") == "local_compute":
            _add(computed, rank, value)
        elif match["name"] == "cache_config_info":
            sizes = [int(text) for text in (labels.get("num_gpu_blocks", ""), labels.get("block_size", "")) if text.isdecimal()]
            cache_tokens = sizes[0] * sizes[1] if len(sizes) == 2 else 0
            element = 1 if labels.get("cache_dtype", "").startswith("fp8") else None
    both = {rank: computed[rank] + generated[rank] for rank in computed if rank in generated}
    return PageCounts(both, prompt, transferred, cache_tokens, element)


def _add(into: dict[int, float], rank: int, value: float) -> None:
    into[rank] = into.get(rank, 0.0) + value


def read_page(port: int) -> list[str]:
    """The lines of a vLLM server's metrics page; none while it does not answer."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=PAGE_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        return answer.read().decode("utf-8", "replace").splitlines() if answer.status == 200 else []
    except (OSError, http.client.HTTPException):
        return []
    finally:
        connection.close()


class PageThread:
    """Reads the pages of the wanted servers in a thread of its own, so that one that never answers holds no card back."""

    def __init__(self) -> None:
        self._ports: tuple[int, ...] = ()
        self._readings: dict[int, Reading] = {}
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pages", daemon=True)
        self._thread.start()

    def want(self, ports: Collection[int]) -> None:
        self._ports = tuple(ports)

    def latest(self, port: int) -> Reading | None:
        return self._readings.get(port)

    def close(self) -> None:
        """Ends the thread, which may be waiting for a page: it is given as long as that may take."""
        self._leave.set()
        self._thread.join(PAGE_TIMEOUT_SECONDS + 1.0)

    def _run(self) -> None:
        number = 0
        while not self._leave.wait(PAGE_SECONDS):
            for port in self._ports:
                page = read_page(port)
                if page:
                    number += 1
                    self._readings[port] = Reading(number, counts_of(page))
