"""Reads a parsed page of vLLM into the contract's words, whatever version wrote it.

What each version calls things is data, in engines/families.py. Nothing is invented: a family that is not on the page gives no series. What
this version should give and does not, and what it gives unreliably, is named in `missing`. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from poise.exporter import metrics as m
from poise.exporter.engines import families
from poise.exporter.engines.families import Row, Version
from poise.exporter.engines.families import parse_version as parse_version
from poise.exporter.engines.families import wanted as wanted
from poise.exporter.engines.page import Labels, PageError, Samples
from poise.exporter.metrics import Kind, Metric
from poise.exporter.snapshot import EnginePage, Histogram, Work

#: Longest label value that is taken over from a page.
LABEL_LIMIT = 256
#: Most samples that one page may become; a data-parallel rank of vLLM 0.32 gives about 300, of which 250 are buckets.
SAMPLES_LIMIT = 20_000
#: Most pairs of model and data-parallel rank on one page; real ones have one model and some tens of ranks.
RANKS_LIMIT = 256
#: Most values of a family's own label on one rank; vLLM has at most six (finished_reason). A family with more is left out: it is no vLLM's, and
#: the page of the whole node would be of its series.
VALUES_LIMIT = 64
#: Most buckets of a histogram; vLLM's longest, request_prompt_tokens of a model with a context of 10 million tokens, has 24.
BUCKETS_LIMIT = 256
#: A bound as Prometheus' clients write it; Python's float() would take more ("1_0", " 1", other scripts' digits).
_BOUND = re.compile(r"\+Inf|-?[0-9.]{1,24}(e[+-]?[0-9]{1,3})?", re.ASCII)

#: Labels of cache_config_info that are kept; the others change with every version and may hold anything.
CACHE_CONFIG_LABELS = (
    "block_size",
    "cache_dtype",
    "gpu_memory_utilization",
    "num_gpu_blocks",
    "kv_cache_size_tokens",
    "enable_prefix_caching",
    "mamba_block_size",
)

_Key = tuple[str, str]  # model, data-parallel rank


@dataclass(slots=True)
class _Rank:
    """What is gathered for one (model, data-parallel rank)."""

    readings: dict[Metric, dict[tuple[str, ...], float]] = field(default_factory=dict)
    histograms: dict[Metric, dict[tuple[str, ...], Histogram]] = field(default_factory=dict)


@dataclass(slots=True)
class _Reading:
    """One page while it is read. `configs`: the cache configurations of each data-parallel rank, one for each replica behind the page."""

    samples: Samples
    default_rank: str
    configs: Mapping[str, Sequence[Mapping[str, str]]]
    ranks: dict[_Key, _Rank] = field(default_factory=dict)

    def key_of(self, labels: Labels) -> _Key:
        return labels.get("model_name", "")[:LABEL_LIMIT], labels.get("engine", self.default_rank)[:LABEL_LIMIT]

    def rank(self, key: _Key) -> _Rank:
        """The rank of this key; raises PageError for one too many."""
        found = self.ranks.get(key)
        if found is None:
            if len(self.ranks) >= RANKS_LIMIT:
                raise PageError(f"the page has more than {RANKS_LIMIT} models and data-parallel ranks")
            found = self.ranks[key] = _Rank()
        return found

    def block_size(self, dp_rank: str) -> float | None:
        """Tokens of a KV cache block of this rank; ranks of one server do not differ in it. None when the page does not tell."""
        configs = self.configs.get(dp_rank) or next(iter(self.configs.values()), ())
        sizes = {config.get("block_size") for config in configs}
        size = sizes.pop() if len(sizes) == 1 else None
        return float(size) if size is not None and _whole(size) else None


def read_page(samples: Samples, version: str, scraped_at: float, duration: float) -> EnginePage:
    """A parsed page in the contract's words. `version` as the engine told it, "" if it did not.

    Raises:
        PageError: the page has none of vLLM's families, or would give more than is sensible.
    """
    native = any(name.startswith("vllm:") for name in samples)
    samples = _canonical(samples)
    if not any(name.startswith("vllm:") for name in samples):
        raise PageError("the page has none of vLLM's series")
    release = parse_version(version)
    default_rank = _default_rank(samples)
    reading = _Reading(samples, default_rank, _cache_configs(samples, default_rank))
    missing: dict[str, None] = {}  # in order, each once
    for rows in _GROUPS:
        row, present = _choose(rows, samples, release)
        expected = release is not None and any(candidate.expected and candidate.holds(release) for candidate in rows)
        if (row is not None and not _fill(row, reading)) or (row is None and (present or expected)):
            missing[rows[0].metric.name] = None
    _put_capacities(reading)
    if not any(m.ENGINE_KV_CACHE_CAPACITY in rank.readings for rank in reading.ranks.values()):
        missing[m.ENGINE_KV_CACHE_CAPACITY.name] = None
    for item in families.UNUSABLE:
        if item.family in samples:
            missing.update({metric.name: None for metric in item.metrics})
    if native and _several_servers(samples, release):
        missing.update({metric.name: None for metric in families.UNRELIABLE_WITH_SEVERAL_SERVERS})
    if sum(_samples(rank) for rank in reading.ranks.values()) > SAMPLES_LIMIT:
        raise PageError(f"the page would give more than {SAMPLES_LIMIT} samples")
    ordered = sorted(reading.ranks.items(), key=_rank_order)
    work = tuple(Work(model, dp_rank, rank.readings, rank.histograms) for (model, dp_rank), rank in ordered)
    first = next((config for configs in reading.configs.values() for config in configs), {})
    return EnginePage(scraped_at, duration, version[:LABEL_LIMIT], work, _http_requests(samples), tuple(missing), first)


def _canonical(samples: Samples) -> Samples:
    """The samples under vLLM's own names. Where a name stands in several spellings, its own wins: they are copies, not parts."""
    found: dict[str, list[tuple[Labels, float]]] = {}
    for name, series in samples.items():
        own = families.CANONICAL.get(name, name)
        if own == name or own not in samples:
            found.setdefault(own, series)
    return found


def _several_servers(samples: Samples, release: Version | None) -> bool:
    """Whether the page is summed over several API server processes.

    Two others have no series of their process: the V0 engine, which has no label `engine`, and vLLM's Rust front end, which has no cache
    configuration.
    """
    new = release is None or release >= families.SEVERAL_SERVERS_SINCE
    v1 = any("engine" in labels for labels, _ in samples.get("vllm:num_requests_running", ()))
    return new and v1 and families.PROCESS_START not in samples and families.CACHE_CONFIG in samples


def _samples(rank: _Rank) -> int:
    plain = sum(len(series) for series in rank.readings.values())
    return plain + sum(len(histogram.buckets) + 2 for series in rank.histograms.values() for histogram in series.values())


def _grouped(rows: Iterable[Row]) -> tuple[tuple[Row, ...], ...]:
    """Rows that feed the same series, newest first."""
    groups: dict[tuple[Metric, tuple[str, ...]], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.metric, row.fixed), []).append(row)
    return tuple(tuple(group) for group in groups.values())


_GROUPS = _grouped(families.ROWS)


def _choose(rows: Iterable[Row], samples: Samples, release: Version | None) -> tuple[Row | None, bool]:
    """The row to read by, and whether any family of the rows is on the page at all.

    A row of this version comes before others (vendors backport families). One whose meaning the version decides is for its own versions, and
    for pages without a family that means the same in all.
    """
    present = [row for row in rows if any(name in samples for name in row.sample_names)]
    usable = [row for row in present if not row.unless or row.unless not in samples]
    holding = [row for row in usable if release is not None and row.holds(release)]
    plain = [row for row in usable if not row.needs_version]
    ordered = [*(row for row in holding if not row.needs_version), *plain, *holding]
    return next(iter(ordered), None), bool(present)


def _default_rank(samples: Samples) -> str:
    """The data-parallel rank for series that name none: the lowest on the page (a rank of its own would look like another engine core)."""
    found = {labels.get("engine", "0") for labels, _ in samples.get("vllm:num_requests_running", ())}
    return min(found, key=_dp_order, default="0")


def _dp_order(dp_rank: str) -> tuple[int, str]:
    return (int(dp_rank) if dp_rank.isdecimal() and len(dp_rank) < 10 else 2**31, dp_rank)


def _rank_order(item: tuple[_Key, _Rank]) -> tuple[str, tuple[int, str]]:
    (model, dp_rank), _ = item
    return model, _dp_order(dp_rank)


def _own_labels(row: Row, labels: Labels) -> tuple[str, ...] | None:
    """The values of the metric's own labels, or None for a series that is not taken."""
    if row.only is not None and labels.get(row.only[0]) != row.only[1]:
        return None
    if row.fixed:
        return row.fixed
    values = tuple(labels.get(name, "")[:LABEL_LIMIT] for name in row.labels)
    return None if row.values and values[0] not in row.values else values


def _fill(row: Row, reading: _Reading) -> bool:
    """Puts a family's series to their ranks; False when any of them could not be used, or not for certain."""
    if row.metric.kind is Kind.HISTOGRAM:
        return _fill_histogram(row, reading)
    whole = True
    for labels, scraped in reading.samples.get(row.family, ()):
        own = _own_labels(row, labels)
        if own is None:
            continue
        key = reading.key_of(labels)
        scale = reading.block_size(key[1]) if row.in_blocks else 1.0
        value = scraped * scale if scale is not None else math.nan
        if not math.isfinite(value) or (row.metric.kind is Kind.COUNTER and value < 0):
            whole = False
            continue
        readings = reading.rank(key).readings.setdefault(row.metric, {})
        before = readings.get(own)
        if before is None and len(readings) >= VALUES_LIMIT:
            return _leave_out(row.metric, reading.ranks)
        if before is None:
            readings[own] = value
        elif row.highest:
            # Several processes (label pid, before 0.11.1) or replicas gave their own, some of them long ago: which one holds is not known.
            readings[own] = max(before, value)
            whole = False
        elif math.isfinite(before + value):
            readings[own] = before + value
        else:
            return _leave_out(row.metric, reading.ranks)
    return whole


def _leave_out(metric: Metric, ranks: Mapping[_Key, _Rank]) -> bool:
    """Takes a family off all ranks again: a part of its values would be taken for the whole. False, for it could not be used."""
    for rank in ranks.values():
        rank.readings.pop(metric, None)
    return False


def _fill_histogram(row: Row, reading: _Reading) -> bool:
    buckets: dict[_Key, dict[str, float]] = {}
    sums: dict[_Key, float] = {}
    counts: dict[_Key, float] = {}
    for labels, value in reading.samples.get(f"{row.family}_bucket", ()):
        bounds = buckets.setdefault(reading.key_of(labels), {})
        bounds[labels.get("le", "")] = bounds.get(labels.get("le", ""), 0.0) + value
    for totals, suffix in ((sums, "_sum"), (counts, "_count")):
        for labels, value in reading.samples.get(row.family + suffix, ()):
            key = reading.key_of(labels)
            totals[key] = totals.get(key, 0.0) + value
    whole = True
    for key in sorted({*buckets, *sums, *counts}):
        histogram = _histogram(buckets.get(key, {}), sums.get(key), counts.get(key))
        if histogram is None:
            whole = False
        else:
            reading.rank(key).histograms.setdefault(row.metric, {})[row.fixed] = histogram
    return whole


def _histogram(bounds: Mapping[str, float], total: float | None, count: float | None) -> Histogram | None:
    """A whole histogram, bounds as scraped, or None when it is not whole: without +Inf, sum or count, or falling."""
    if total is None or count is None or not math.isfinite(total) or len(bounds) > BUCKETS_LIMIT:
        return None
    if not all(_BOUND.fullmatch(bound) for bound in bounds):
        return None
    try:
        ordered = sorted(bounds.items(), key=lambda item: float(item[0]))
        edges = [float(bound) for bound, _ in ordered]
    except ValueError:
        return None
    values = [value for _, value in ordered]
    if not ordered or ordered[-1][0] != "+Inf" or not math.isfinite(count) or values[-1] != count or values[0] < 0:
        return None
    if not all(low < high for low, high in pairwise(edges)) or not all(low <= high for low, high in pairwise(values)):
        return None
    return Histogram(tuple(ordered), total, count)


def _cache_configs(samples: Samples, default_rank: str) -> Mapping[str, Sequence[Mapping[str, str]]]:
    """The allow-listed cache configurations of each data-parallel rank; Ray has one for each replica on its page."""
    found: dict[tuple[str, ...], Mapping[str, str]] = {}
    for labels, _ in samples.get(families.CACHE_CONFIG, ()):
        key = (labels.get("engine", default_rank)[:LABEL_LIMIT], *(labels.get(name, "") for name in families.REPLICA_LABELS))
        if len(found) < RANKS_LIMIT or key in found:
            found[key] = {name: labels[name][:LABEL_LIMIT] for name in CACHE_CONFIG_LABELS if labels.get(name, "None") != "None"}
    by_rank: dict[str, list[Mapping[str, str]]] = {}
    for (dp_rank, *_replica), config in found.items():
        by_rank.setdefault(dp_rank, []).append(config)
    return by_rank


def _put_capacities(reading: _Reading) -> None:
    """Puts each rank's KV capacity, over its replicas, to its readings; a part of it would be taken for the whole."""
    for (_, dp_rank), rank in reading.ranks.items():
        capacities = [_capacity(config) for config in reading.configs.get(dp_rank, ())]
        told = [capacity for capacity in capacities if capacity is not None]
        if told and len(told) == len(capacities):
            rank.readings[m.ENGINE_KV_CACHE_CAPACITY] = {(): sum(told)}


def _capacity(config: Mapping[str, str]) -> float | None:
    """Tokens that the KV cache holds: told since 0.24, else blocks × block size.

    Not for a hybrid model, which has a block size for its state layers, too (vllm/model_executor/models/config.py): blocks are of both kinds
    then, and the product is too high (vllm#42206).
    """
    if _whole(config.get("kv_cache_size_tokens")):
        return float(config["kv_cache_size_tokens"])
    if "mamba_block_size" not in config and _whole(config.get("num_gpu_blocks")) and _whole(config.get("block_size")):
        return float(config["num_gpu_blocks"]) * float(config["block_size"])
    return None


def _whole(text: str | None) -> bool:
    return text is not None and text.isascii() and text.isdecimal() and len(text) < 16


def _http_requests(samples: Samples) -> Mapping[str, float]:
    """HTTP answers by class, over handlers and methods (prometheus-fastapi-instrumentator; vLLM leaves /metrics and /health out)."""
    totals: dict[str, float] = {}
    for labels, value in samples.get(families.HTTP_REQUESTS, ()):
        status = labels.get("status", "")
        if re.fullmatch(r"[1-5](xx|[0-9][0-9])", status) and math.isfinite(value) and value >= 0:
            group = f"{status[0]}xx"
            totals[group] = totals.get(group, 0.0) + value
    return {group: total for group, total in totals.items() if math.isfinite(total)}
