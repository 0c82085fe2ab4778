"""What the exporter saw of a deployment: one page read into a few figures, and the difference of two pages.

Owns which series of the contract go into a run. Pure: pages in, figures out; the exporter is asked in watch.py. A figure that the
exporter does not give is None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from poise.exporter.engines.page import Labels, PageParser, Samples

_CARD_GAUGES = {
    "busy_seconds": "poise_gpu_busy_seconds_total",
    "sampled": "poise_gpu_last_sample_timestamp_seconds",
    "energy_joules": "poise_gpu_energy_joules_total",
    "memory_used_bytes": "poise_gpu_memory_used_bytes",
    "nvlink_tx_bytes": "poise_gpu_nvlink_total_tx_bytes_total",
    "nvlink_rx_bytes": "poise_gpu_nvlink_total_rx_bytes_total",
}
_COUNTERS = {
    "prompt_tokens": "poise_engine_prompt_tokens_total",
    "generation_tokens": "poise_engine_generation_tokens_total",
    "requests_finished": "poise_engine_requests_finished_total",
    "preemptions": "poise_engine_preemptions_total",
    "prefix_cache_queries_tokens": "poise_engine_prefix_cache_queries_tokens_total",
    "prefix_cache_hits_tokens": "poise_engine_prefix_cache_hits_tokens_total",
    "kv_transfers": "poise_engine_kv_transfer_seconds_count",
    "kv_transfer_seconds": "poise_engine_kv_transfer_seconds_sum",
    "kv_transfer_bytes": "poise_engine_kv_transfer_bytes_sum",
    "kv_transfer_failures": "poise_engine_kv_transfer_failures_total",
    "kv_transfers_expired": "poise_engine_kv_transfer_expired_total",
}
_BY_SOURCE = "poise_engine_prompt_tokens_by_source_total"
_INFOS = ("poise_node_info", "poise_gpu_info", "poise_engine_gpu_info", "poise_engine_info")
WANTED = frozenset({*_CARD_GAUGES.values(), *_COUNTERS.values(), _BY_SOURCE, *_INFOS})


@dataclass(frozen=True, slots=True)
class Card:
    """One card on one page. `figures` by the names of _CARD_GAUGES; `sampled` is the Unix time up to which the counters reach."""

    gpu: int
    uuid: str
    name: str
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Place:
    """A card that an engine sees: `use` is own, free or other, the ranks are "" where the engine has none."""

    uuid: str
    use: str
    tp_rank: str
    pp_rank: str
    dp_rank: str


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine on one page. `counters` by the names of _COUNTERS, summed over models and ranks, and prompt_tokens_<source>."""

    version: str
    places: tuple[Place, ...]
    counters: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class NodePage:
    """What a page says: cards by UUID, engines by the port that ends their name."""

    driver: str
    simulated: bool
    cards: Mapping[str, Card]
    engines: Mapping[int, Engine]


def read_page(data: bytes) -> NodePage:
    """Raises PageError (poise.exporter.engines.page) when it is no page."""
    samples = PageParser(WANTED.__contains__).parse(data)
    node = next((labels for labels, _ in samples.get("poise_node_info", ())), {})
    return NodePage(node.get("driver", ""), node.get("simulated") == "true", _cards(samples), _engines(samples))


def _cards(samples: Samples) -> dict[str, Card]:
    figures: dict[str, dict[str, float]] = {}
    for name, series in _CARD_GAUGES.items():
        for labels, value in _finite(samples.get(series, ())):
            figures.setdefault(labels["uuid"], {})[name] = value
    return {
        labels["uuid"]: Card(int(labels["gpu"]), labels["uuid"], labels.get("name", ""), figures.get(labels["uuid"], {}))
        for labels, _ in samples.get("poise_gpu_info", ())
    }


def _engines(samples: Samples) -> dict[int, Engine]:
    places: dict[int, list[Place]] = {}
    counters: dict[int, dict[str, float]] = {}
    versions: dict[int, str] = {}
    for labels, _ in samples.get("poise_engine_info", ()):
        versions[_port(labels)] = labels.get("version", "")
    for labels, _ in samples.get("poise_engine_gpu_info", ()):
        place = Place(labels["uuid"], labels["use"], labels["tp_rank"], labels["pp_rank"], labels["dp_rank"])
        places.setdefault(_port(labels), []).append(place)
    for name, series in _COUNTERS.items():
        for labels, value in _finite(samples.get(series, ())):
            sums = counters.setdefault(_port(labels), {})
            sums[name] = sums.get(name, 0.0) + value
    for labels, value in _finite(samples.get(_BY_SOURCE, ())):
        sums = counters.setdefault(_port(labels), {})
        name = f"prompt_tokens_{labels['source']}"
        sums[name] = sums.get(name, 0.0) + value
    ports = {*places, *counters, *versions} - {0}
    return {port: Engine(versions.get(port, ""), tuple(places.get(port, ())), counters.get(port, {})) for port in ports}


def _finite(samples: Iterable[tuple[Labels, float]]) -> Iterator[tuple[Labels, float]]:
    """Without NaN and infinity: a figure that is none is not there."""
    return ((labels, value) for labels, value in samples if math.isfinite(value))


def _port(labels: Labels) -> int:
    """The port in an engine's name `<node>:<port>`; 0 for an engine that was given another name."""
    last = labels.get("engine", "").rpartition(":")[2]
    return int(last) if last.isdecimal() else 0


def gained(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float | None:
    """What a counter gained; None when one page lacks it, or it went back (a restart)."""
    if name not in before or name not in after or after[name] < before[name]:
        return None
    return after[name] - before[name]
