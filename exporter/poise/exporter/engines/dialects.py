"""What vLLM calls things, version by version: one table from scraped names to the metric contract.

A row says which family of which versions feeds which metric, so absorbing another version is another row. Nothing is invented: a family
that is not on the page gives no series, and is named in `missing` when its version should have it. Pure. Source of names and versions:
the scan of vLLM's metric definitions 0.6 to 0.33 (vllm/v1/metrics/loggers.py, prometheus.py, and each KV connector's stats).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from poise.exporter import metrics as m
from poise.exporter.engines.page import Labels, PageError, Samples
from poise.exporter.metrics import Kind, Metric
from poise.exporter.snapshot import EnginePage, Histogram, Work

Version = tuple[int, ...]

#: The oldest version whose pages are fully understood.
OLDEST: Version = (0, 11)
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


@dataclass(frozen=True, slots=True)
class Row:
    """A family that feeds a metric in versions `since` ≤ v < `until`.

    `labels` are scraped labels that give the metric's own, in order; `fixed` gives them where the family's name implies them. `values` limits
    the first label. `expected`: the family is on the page of every engine of these versions, so its absence is worth telling. `highest`: of several
    series that fall together the highest counts instead of their sum.
    """

    metric: Metric
    family: str
    labels: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    values: frozenset[str] = frozenset()
    since: Version = OLDEST
    until: Version | None = None
    expected: bool = True
    highest: bool = False

    def holds(self, version: Version) -> bool:
        """Whether the row is about this version."""
        return self.since <= version and (self.until is None or version < self.until)

    @property
    def sample_names(self) -> tuple[str, ...]:
        """The names of its samples on vLLM's page."""
        if self.metric.kind is Kind.HISTOGRAM:
            return (f"{self.family}_bucket", f"{self.family}_sum", f"{self.family}_count")
        return (self.family,)


_NIXL = ("NixlConnector",)
_MOONCAKE = ("MooncakeConnector",)

#: Newest name of a metric first: where a version is unknown, the first family that is there is taken.
ROWS: tuple[Row, ...] = (
    # counters
    Row(m.ENGINE_PROMPT_TOKENS, "vllm:prompt_tokens_total"),
    Row(m.ENGINE_PROMPT_TOKENS_BY_SOURCE, "vllm:prompt_tokens_by_source_total", labels=("source",), since=(0, 16)),
    Row(m.ENGINE_GENERATION_TOKENS, "vllm:generation_tokens_total"),
    Row(m.ENGINE_REQUESTS_FINISHED, "vllm:request_success_total", labels=("finished_reason",)),
    Row(m.ENGINE_PREEMPTIONS, "vllm:num_preemptions_total"),
    Row(m.ENGINE_PREFIX_QUERIES, "vllm:prefix_cache_queries_total"),
    Row(m.ENGINE_PREFIX_HITS, "vllm:prefix_cache_hits_total"),
    Row(m.ENGINE_EXTERNAL_QUERIES, "vllm:external_prefix_cache_queries_total", since=(0, 11, 1)),
    Row(m.ENGINE_EXTERNAL_HITS, "vllm:external_prefix_cache_hits_total", since=(0, 11, 1)),
    Row(m.ENGINE_ADMISSION_REJECTIONS, "vllm:admission_rejections_total", labels=("reason",), since=(0, 32)),
    Row(m.ENGINE_KV_TRANSFER_FAILURES, "vllm:nixl_num_failed_transfers_total", fixed=_NIXL, since=(0, 11, 1), expected=False),
    Row(m.ENGINE_KV_TRANSFER_FAILURES, "vllm:mooncake_num_failed_transfers_total", fixed=_MOONCAKE, since=(0, 33), expected=False),
    Row(m.ENGINE_KV_TRANSFER_EXPIRED, "vllm:nixl_num_kv_expired_reqs_total", fixed=_NIXL, since=(0, 16), expected=False),
    Row(m.ENGINE_KV_TRANSFER_EXPIRED, "vllm:mooncake_num_kv_expired_reqs_total", fixed=_MOONCAKE, since=(0, 33), expected=False),
    Row(m.ENGINE_KV_TRANSFER_LATE, "vllm:nixl_num_notifications_after_expiry_total", fixed=_NIXL, since=(0, 32), expected=False),
    Row(m.ENGINE_SPEC_DRAFTS, "vllm:spec_decode_num_drafts_total", expected=False),
    Row(m.ENGINE_SPEC_DRAFT_TOKENS, "vllm:spec_decode_num_draft_tokens_total", expected=False),
    Row(m.ENGINE_SPEC_ACCEPTED, "vllm:spec_decode_num_accepted_tokens_total", expected=False),
    # Counts only with VLLM_COMPUTE_NANS_IN_LOGITS=1.
    Row(m.ENGINE_CORRUPTED_REQUESTS, "vllm:corrupted_requests_total", since=(0, 11, 1), expected=False),
    # gauges
    Row(m.ENGINE_REQUESTS_RUNNING, "vllm:num_requests_running"),
    Row(m.ENGINE_REQUESTS_WAITING, "vllm:num_requests_waiting"),
    Row(m.ENGINE_REQUESTS_WAITING_BY_REASON, "vllm:num_requests_waiting_by_reason", labels=("reason",), since=(0, 20)),
    # On consumers only.
    Row(m.ENGINE_REQUESTS_KV_FETCH, "vllm:num_requests_kv_fetch_by_stage", labels=("stage",), since=(0, 32), expected=False),
    # 0.11.0 with several API servers has one series for each process (label pid): an idle one says 0.
    Row(m.ENGINE_KV_CACHE_USAGE, "vllm:kv_cache_usage_perc", highest=True),
    Row(
        m.ENGINE_SLEEPING,
        "vllm:engine_sleep_state",
        labels=("sleep_state",),
        values=frozenset({"weights_offloaded", "discard_all"}),
        since=(0, 11, 1),
        highest=True,
    ),
    # histograms
    Row(m.ENGINE_TTFT, "vllm:time_to_first_token_seconds"),
    Row(m.ENGINE_ITL, "vllm:inter_token_latency_seconds"),
    Row(m.ENGINE_TPOT, "vllm:request_time_per_output_token_seconds"),
    Row(m.ENGINE_E2E, "vllm:e2e_request_latency_seconds"),
    Row(m.ENGINE_QUEUE_TIME, "vllm:request_queue_time_seconds"),
    Row(m.ENGINE_PREFILL_TIME, "vllm:request_prefill_time_seconds"),
    Row(m.ENGINE_DECODE_TIME, "vllm:request_decode_time_seconds"),
    Row(m.ENGINE_INFERENCE_TIME, "vllm:request_inference_time_seconds"),
    Row(m.ENGINE_REQUEST_PROMPT_TOKENS, "vllm:request_prompt_tokens"),
    Row(m.ENGINE_REQUEST_GENERATION_TOKENS, "vllm:request_generation_tokens"),
    Row(m.ENGINE_ITERATION_TOKENS, "vllm:iteration_tokens_total"),  # a histogram despite its name
    Row(m.ENGINE_KV_TRANSFER_TIME, "vllm:nixl_xfer_time_seconds", fixed=_NIXL, since=(0, 11, 1), expected=False),
    Row(m.ENGINE_KV_TRANSFER_TIME, "vllm:mooncake_xfer_time_seconds", fixed=_MOONCAKE, since=(0, 33), expected=False),
    Row(m.ENGINE_KV_TRANSFER_BYTES, "vllm:nixl_bytes_transferred", fixed=_NIXL, since=(0, 11, 1), expected=False),
    Row(m.ENGINE_KV_TRANSFER_BYTES, "vllm:mooncake_bytes_transferred", fixed=_MOONCAKE, since=(0, 33), expected=False),
)

_CACHE_CONFIG = "vllm:cache_config_info"
_HTTP_REQUESTS = "http_requests_total"
#: prometheus_client exports it in a single process only: without it the page is summed over several API servers.
_PROCESS_START = "process_start_time_seconds"
#: Labels of cache_config_info that are kept; the others change with every version and may hold anything.
CACHE_CONFIG_LABELS = (
    "block_size",
    "cache_dtype",
    "gpu_memory_utilization",
    "num_gpu_blocks",
    "kv_cache_size_tokens",
    "enable_prefix_caching",
)
#: Families that vLLM itself marks as "might be incorrect" with several API servers (entrypoints/cli/serve.py).
_UNRELIABLE_WITH_SEVERAL_SERVERS = (m.ENGINE_ITERATION_TOKENS,)

_WANTED = frozenset(name for row in ROWS for name in row.sample_names) | {_CACHE_CONFIG, _HTTP_REQUESTS, _PROCESS_START}


def wanted(name: str) -> bool:
    """Whether a sample of vLLM's page is read at all."""
    return name in _WANTED


def parse_version(text: str) -> Version | None:
    """The release of a version string ("0.11.1rc2.dev3+g1a2b" → (0, 11, 1)), or None when it tells none.

    A build without release tags calls itself 0.1.devN: that says nothing about what it exports.
    """
    match = re.match(r"v?(\d{1,4}(?:\.\d{1,4})*)", text.strip())
    if match is None:
        return None
    version = tuple(int(part) for part in match[1].split("."))
    return None if version[:2] <= (0, 1) else version


@dataclass(slots=True)
class _Rank:
    """What is gathered for one (model, data-parallel rank)."""

    readings: dict[Metric, dict[tuple[str, ...], float]] = field(default_factory=dict)
    histograms: dict[Metric, dict[tuple[str, ...], Histogram]] = field(default_factory=dict)


def read_page(samples: Samples, version: str, scraped_at: float, duration: float) -> EnginePage:
    """A parsed page in the contract's words. `version` as the engine told it, "" if it did not.

    Raises:
        PageError: the page has none of vLLM's families.
    """
    if not any(name.startswith("vllm:") for name in samples):
        raise PageError("the page has none of vLLM's series")
    release = parse_version(version)
    ranks: dict[tuple[str, str], _Rank] = {}
    default_rank = _default_rank(samples)
    missing: list[str] = []
    for rows in _groups():
        row = _choose(rows, samples, release)
        if row is not None and not _fill(row, samples, ranks, default_rank):
            missing.append(row.metric.name)
        elif row is None and release is not None and any(candidate.expected and candidate.holds(release) for candidate in rows):
            missing.append(rows[0].metric.name)
    cache_config = _cache_config(samples, ranks)
    if not any(m.ENGINE_KV_CACHE_CAPACITY in rank.readings for rank in ranks.values()):
        missing.append(m.ENGINE_KV_CACHE_CAPACITY.name)
    if _PROCESS_START not in samples:
        missing.extend(metric.name for metric in _UNRELIABLE_WITH_SEVERAL_SERVERS if metric.name not in missing)
    if len(ranks) > RANKS_LIMIT:
        raise PageError(f"the page has more than {RANKS_LIMIT} models and data-parallel ranks")
    if sum(_samples(rank) for rank in ranks.values()) > SAMPLES_LIMIT:
        raise PageError(f"the page would give more than {SAMPLES_LIMIT} samples")
    work = tuple(Work(model, dp_rank, rank.readings, rank.histograms) for (model, dp_rank), rank in sorted(ranks.items(), key=_rank_order))
    return EnginePage(scraped_at, duration, version[:LABEL_LIMIT], work, _http_requests(samples), tuple(missing), cache_config)


def _samples(rank: _Rank) -> int:
    plain = sum(len(series) for series in rank.readings.values())
    return plain + sum(len(histogram.buckets) + 2 for series in rank.histograms.values() for histogram in series.values())


def _groups() -> Iterable[tuple[Row, ...]]:
    """Rows that feed the same series, newest first."""
    groups: dict[tuple[Metric, tuple[str, ...]], list[Row]] = {}
    for row in ROWS:
        groups.setdefault((row.metric, row.fixed), []).append(row)
    return (tuple(rows) for rows in groups.values())


def _choose(rows: Iterable[Row], samples: Samples, release: Version | None) -> Row | None:
    """The row whose family is on the page; one of this version before others (vendors backport families)."""
    present = [row for row in rows if any(name in samples for name in row.sample_names)]
    return next((row for row in present if release is not None and row.holds(release)), present[0] if present else None)


def _default_rank(samples: Samples) -> str:
    """The data-parallel rank for series that name none: the lowest on the page (a rank of its own would look like another engine core)."""
    found = {labels.get("engine", "0") for labels, _ in samples.get("vllm:num_requests_running", ())}
    return min(found, key=_dp_order, default="0")


def _dp_order(dp_rank: str) -> tuple[int, str]:
    return (int(dp_rank) if dp_rank.isdecimal() and len(dp_rank) < 10 else 2**31, dp_rank)


def _rank_order(item: tuple[tuple[str, str], _Rank]) -> tuple[str, tuple[int, str]]:
    (model, dp_rank), _ = item
    return model, _dp_order(dp_rank)


def _of(labels: Labels, ranks: dict[tuple[str, str], _Rank], default_rank: str) -> _Rank:
    key = (labels.get("model_name", "")[:LABEL_LIMIT], labels.get("engine", default_rank)[:LABEL_LIMIT])
    return ranks.setdefault(key, _Rank())


def _own_labels(row: Row, labels: Labels) -> tuple[str, ...] | None:
    """The values of the metric's own labels, or None for a series that is not taken."""
    if row.fixed:
        return row.fixed
    values = tuple(labels.get(name, "")[:LABEL_LIMIT] for name in row.labels)
    return None if row.values and values[0] not in row.values else values


def _fill(row: Row, samples: Samples, ranks: dict[tuple[str, str], _Rank], default_rank: str) -> bool:
    """Puts a family's series to their ranks; False when any of them could not be used."""
    if row.metric.kind is Kind.HISTOGRAM:
        return _fill_histogram(row, samples, ranks, default_rank)
    whole = True
    for labels, value in samples.get(row.family, ()):
        own = _own_labels(row, labels)
        if own is None:
            continue
        if not math.isfinite(value) or (row.metric.kind is Kind.COUNTER and value < 0):
            whole = False
            continue
        readings = _of(labels, ranks, default_rank).readings.setdefault(row.metric, {})
        before = readings.get(own)
        if before is None and len(readings) >= VALUES_LIMIT:
            return _leave_out(row.metric, ranks)
        readings[own] = value if before is None else max(before, value) if row.highest else before + value
    return whole


def _leave_out(metric: Metric, ranks: Mapping[tuple[str, str], _Rank]) -> bool:
    """Takes a family off all ranks again: a part of its values would be taken for the whole. False, for it could not be used."""
    for rank in ranks.values():
        rank.readings.pop(metric, None)
    return False


def _fill_histogram(row: Row, samples: Samples, ranks: dict[tuple[str, str], _Rank], default_rank: str) -> bool:
    buckets: dict[tuple[str, str], dict[str, float]] = {}
    sums: dict[tuple[str, str], float] = {}
    counts: dict[tuple[str, str], float] = {}

    def key_of(labels: Labels) -> tuple[str, str]:
        return labels.get("model_name", "")[:LABEL_LIMIT], labels.get("engine", default_rank)[:LABEL_LIMIT]

    for labels, value in samples.get(f"{row.family}_bucket", ()):
        bounds = buckets.setdefault(key_of(labels), {})
        bounds[labels.get("le", "")] = bounds.get(labels.get("le", ""), 0.0) + value
    for totals, suffix in ((sums, "_sum"), (counts, "_count")):
        for labels, value in samples.get(row.family + suffix, ()):
            totals[key_of(labels)] = totals.get(key_of(labels), 0.0) + value
    whole = True
    for key in sorted({*buckets, *sums, *counts}):
        histogram = _histogram(buckets.get(key, {}), sums.get(key), counts.get(key))
        if histogram is None:
            whole = False
        else:
            ranks.setdefault(key, _Rank()).histograms.setdefault(row.metric, {})[row.fixed] = histogram
    return whole


def _histogram(bounds: Mapping[str, float], total: float | None, count: float | None) -> Histogram | None:
    """A whole histogram, bounds as scraped, or None when it is not whole: without +Inf, sum or count, or falling."""
    if total is None or count is None or not math.isfinite(total) or len(bounds) > BUCKETS_LIMIT:
        return None
    try:
        ordered = sorted(bounds.items(), key=lambda item: float(item[0]))
        highest = float(ordered[-1][0])
    except (ValueError, IndexError):
        return None
    values = [value for _, value in ordered]
    rises = all(low <= high for low, high in pairwise(values))
    if highest != math.inf or not rises or values[0] < 0 or values[-1] != count or not math.isfinite(count):
        return None
    return Histogram(tuple(ordered), total, count)


def _cache_config(samples: Samples, ranks: Mapping[tuple[str, str], _Rank]) -> Mapping[str, str]:
    """The allow-listed cache configuration of the first rank; each rank's KV capacity is put to its readings."""
    first: dict[str, str] = {}
    for labels, _ in samples.get(_CACHE_CONFIG, ()):
        dp_rank = labels.get("engine", _default_rank(samples))
        kept = {name: labels[name][:LABEL_LIMIT] for name in CACHE_CONFIG_LABELS if labels.get(name, "None") != "None"}
        first = first or kept
        capacity = _capacity(kept)
        if capacity is not None:
            for (_, rank_label), rank in ranks.items():
                if rank_label == dp_rank:
                    rank.readings[m.ENGINE_KV_CACHE_CAPACITY] = {(): capacity}
    return first


def _capacity(config: Mapping[str, str]) -> float | None:
    """Tokens that the KV cache holds: told since 0.24, else blocks × block size (too high for hybrid models, vllm#42206)."""
    if _whole(config.get("kv_cache_size_tokens")):
        return float(config["kv_cache_size_tokens"])
    if _whole(config.get("num_gpu_blocks")) and _whole(config.get("block_size")):
        return float(config["num_gpu_blocks"]) * float(config["block_size"])
    return None


def _whole(text: str | None) -> bool:
    return text is not None and text.isdecimal() and len(text) < 16


def _http_requests(samples: Samples) -> Mapping[str, float]:
    """HTTP answers by class, over handlers and methods (prometheus-fastapi-instrumentator; vLLM leaves /metrics and /health out)."""
    totals: dict[str, float] = {}
    for labels, value in samples.get(_HTTP_REQUESTS, ()):
        status = labels.get("status", "")
        if re.fullmatch(r"[1-5](xx|\d\d)", status) and math.isfinite(value) and value >= 0:
            group = f"{status[0]}xx"
            totals[group] = totals.get(group, 0.0) + value
    return totals
