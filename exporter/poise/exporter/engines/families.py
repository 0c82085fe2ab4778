"""What vLLM calls things, version by version: one table from the families of its page to the metric contract.

A row says which family of which versions feeds which metric, so absorbing another version is another row. Data only: engines/dialects.py
reads a page by it, and docs/dialects.md is generated from it. Source of names, versions and units: vLLM's metric definitions 0.6 to 0.33
(vllm/engine/metrics.py of the V0 engine, vllm/v1/metrics/loggers.py, and each KV connector's statistics); the pages that these made when
executed are in tests/captures/generations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from poise.exporter import metrics as m
from poise.exporter.metrics import Kind, Metric

Version = tuple[int, ...]

#: The oldest version whose pages are understood.
OLDEST: Version = (0, 6)
#: The newest version whose definitions were read. Newer ones are read by the newest rows.
NEWEST: Version = (0, 33)


@dataclass(frozen=True, slots=True)
class Row:
    """A family that feeds a metric in versions `since` ≤ v < `until`.

    `labels` are scraped labels that give the metric's own, in order; `fixed` gives them where the family's name implies them. `values` limits
    the first label. `only` is a scraped label and the one value with which a series counts. `expected`: the family is on the page of every
    engine of these versions, so its absence is worth telling. `highest`: of several series that fall together the highest counts instead of
    their sum. `in_blocks`: the family counts KV cache blocks, the metric tokens. `needs_version`: in other versions the same family means
    something else, so it is used where the version is known only. `unless` is a family whose presence says that this one is another engine's
    (see `UNUSABLE`). `note` is what a reader of the figure has to know.
    """

    metric: Metric
    family: str
    labels: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    values: frozenset[str] = frozenset()
    only: tuple[str, str] | None = None
    since: Version = OLDEST
    until: Version | None = None
    expected: bool = True
    highest: bool = False
    in_blocks: bool = False
    needs_version: bool = False
    unless: str = ""
    note: str = ""

    def holds(self, version: Version) -> bool:
        """Whether the row is about this version."""
        return self.since <= version and (self.until is None or version < self.until)

    @property
    def sample_names(self) -> tuple[str, ...]:
        """The names of its samples on vLLM's page."""
        if self.metric.kind is Kind.HISTOGRAM:
            return (f"{self.family}_bucket", f"{self.family}_sum", f"{self.family}_count")
        return (self.family,)


@dataclass(frozen=True, slots=True)
class Unusable:
    """A family from which nothing right can be had: while it is on the page, `metrics` are missing, and `why` says what is wrong with it."""

    family: str
    metrics: tuple[Metric, ...]
    why: str


_NIXL = ("NixlConnector",)
_MOONCAKE = ("MooncakeConnector",)
_V0_HIT_RATE = "vllm:gpu_prefix_cache_hit_rate"
_V0_SPEC_DECODE = "vllm:spec_decode_num_emitted_tokens_total"

_RECOUNTED = "before 0.11.1 a preempted request is counted again when it resumes (vllm#25780)"
_STEP = "one sample per streamed output, which has several tokens with speculative decoding"

#: Newest name of a metric first: where a version is unknown, the first family that is there is taken.
ROWS: tuple[Row, ...] = (
    # counters
    Row(
        m.ENGINE_PROMPT_TOKENS,
        "vllm:prompt_tokens_total",
        note="all prompt tokens, cached and transferred ones included: no measure of work",
    ),
    Row(
        m.ENGINE_PROMPT_TOKENS_BY_SOURCE,
        "vllm:prompt_tokens_by_source_total",
        labels=("source",),
        since=(0, 16),
        note="before 0.21 a decode engine counts one `local_compute` token per transferred request",
    ),
    Row(m.ENGINE_GENERATION_TOKENS, "vllm:generation_tokens_total"),
    Row(
        m.ENGINE_REQUESTS_FINISHED,
        "vllm:request_success_total",
        labels=("finished_reason",),
        note="`abort` stays 0 in many versions, 0.32 among them (vllm#31503); `error` since 0.13, `repetition` since 0.18",
    ),
    Row(m.ENGINE_PREEMPTIONS, "vllm:num_preemptions_total", note="V1 since 0.8.0"),
    Row(m.ENGINE_PREFIX_QUERIES, "vllm:prefix_cache_queries_total", since=(0, 9, 2), note=_RECOUNTED),
    Row(m.ENGINE_PREFIX_QUERIES, "vllm:gpu_prefix_cache_queries_total", since=(0, 9), until=(0, 12), needs_version=True),
    Row(m.ENGINE_PREFIX_QUERIES, "vllm:gpu_prefix_cache_queries_total", since=(0, 7, 3), until=(0, 9), in_blocks=True, needs_version=True),
    Row(m.ENGINE_PREFIX_HITS, "vllm:prefix_cache_hits_total", since=(0, 9, 2), note=_RECOUNTED),
    Row(m.ENGINE_PREFIX_HITS, "vllm:gpu_prefix_cache_hits_total", since=(0, 9), until=(0, 12), needs_version=True),
    Row(m.ENGINE_PREFIX_HITS, "vllm:gpu_prefix_cache_hits_total", since=(0, 7, 3), until=(0, 9), in_blocks=True, needs_version=True),
    Row(m.ENGINE_EXTERNAL_QUERIES, "vllm:external_prefix_cache_queries_total", since=(0, 11, 1)),
    Row(m.ENGINE_EXTERNAL_HITS, "vllm:external_prefix_cache_hits_total", since=(0, 11, 1)),
    Row(m.ENGINE_ADMISSION_REJECTIONS, "vllm:admission_rejections_total", labels=("reason",), since=(0, 32)),
    Row(
        m.ENGINE_KV_TRANSFER_FAILURES,
        "vllm:nixl_num_failed_transfers_total",
        fixed=_NIXL,
        since=(0, 11, 1),
        expected=False,
        note="since 0.31 with handshakes and notifications, before that transfers alone",
    ),
    Row(m.ENGINE_KV_TRANSFER_FAILURES, "vllm:mooncake_num_failed_transfers_total", fixed=_MOONCAKE, since=(0, 33), expected=False),
    Row(
        m.ENGINE_KV_TRANSFER_EXPIRED,
        "vllm:nixl_num_kv_expired_reqs_total",
        fixed=_NIXL,
        since=(0, 16),
        expected=False,
        note="counted on the prefill engine",
    ),
    Row(m.ENGINE_KV_TRANSFER_EXPIRED, "vllm:mooncake_num_kv_expired_reqs_total", fixed=_MOONCAKE, since=(0, 33), expected=False),
    Row(
        m.ENGINE_KV_TRANSFER_LATE,
        "vllm:nixl_num_notifications_after_expiry_total",
        fixed=_NIXL,
        since=(0, 32),
        expected=False,
        note="one per remote rank; older versions only log it",
    ),
    Row(m.ENGINE_KV_OFFLOAD_LOAD, "vllm:kv_offload_load_bytes_total", since=(0, 24), expected=False),
    Row(
        m.ENGINE_KV_OFFLOAD_LOAD,
        "vllm:kv_offload_total_bytes_total",
        only=("transfer_type", "CPU_to_GPU"),
        since=(0, 16),
        until=(0, 24),
        expected=False,
        note="a copy of the newer family since 0.24, so never added to it",
    ),
    Row(m.ENGINE_KV_OFFLOAD_STORE, "vllm:kv_offload_store_bytes_total", since=(0, 24), expected=False),
    Row(
        m.ENGINE_KV_OFFLOAD_STORE,
        "vllm:kv_offload_total_bytes_total",
        only=("transfer_type", "GPU_to_CPU"),
        since=(0, 16),
        until=(0, 24),
        expected=False,
    ),
    Row(m.ENGINE_SPEC_DRAFTS, "vllm:spec_decode_num_drafts_total", since=(0, 8, 3), expected=False, unless=_V0_SPEC_DECODE),
    Row(m.ENGINE_SPEC_DRAFT_TOKENS, "vllm:spec_decode_num_draft_tokens_total", since=(0, 8, 3), expected=False, unless=_V0_SPEC_DECODE),
    Row(m.ENGINE_SPEC_ACCEPTED, "vllm:spec_decode_num_accepted_tokens_total", since=(0, 8, 3), expected=False, unless=_V0_SPEC_DECODE),
    Row(
        m.ENGINE_CORRUPTED_REQUESTS,
        "vllm:corrupted_requests_total",
        since=(0, 11, 1),
        expected=False,
        note="only with VLLM_COMPUTE_NANS_IN_LOGITS=1",
    ),
    # gauges
    Row(
        m.ENGINE_REQUESTS_RUNNING,
        "vllm:num_requests_running",
        note="written once per step: after a mass abort or with a stalled worker it keeps its last value (vllm#22545)",
    ),
    Row(m.ENGINE_REQUESTS_WAITING, "vllm:num_requests_waiting", note="since 0.18 with requests that are skipped for now"),
    Row(m.ENGINE_REQUESTS_WAITING_BY_REASON, "vllm:num_requests_waiting_by_reason", labels=("reason",), since=(0, 20)),
    Row(
        m.ENGINE_REQUESTS_KV_FETCH,
        "vllm:num_requests_kv_fetch_by_stage",
        labels=("stage",),
        since=(0, 32),
        expected=False,
        note="on consumers of KV only",
    ),
    Row(m.ENGINE_KV_CACHE_USAGE, "vllm:kv_cache_usage_perc", since=(0, 9, 2), highest=True),
    Row(m.ENGINE_KV_CACHE_USAGE, "vllm:gpu_cache_usage_perc", until=(0, 12), highest=True),
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
    Row(m.ENGINE_ITL, "vllm:inter_token_latency_seconds", since=(0, 10, 2), note=_STEP),
    Row(m.ENGINE_ITL, "vllm:time_per_output_token_seconds", until=(0, 15), note=_STEP),
    Row(
        m.ENGINE_TPOT,
        "vllm:request_time_per_output_token_seconds",
        since=(0, 11),
        note="a request of one output token counts as 0: all of them on a prefill engine",
    ),
    Row(m.ENGINE_E2E, "vllm:e2e_request_latency_seconds"),
    Row(m.ENGINE_QUEUE_TIME, "vllm:request_queue_time_seconds", since=(0, 6, 4), note="on a decode engine with the wait for KV"),
    Row(m.ENGINE_QUEUE_TIME, "vllm:time_in_queue_requests", since=(0, 6, 4), until=(0, 9, 1)),
    Row(m.ENGINE_PREFILL_TIME, "vllm:request_prefill_time_seconds", since=(0, 6, 4)),
    Row(m.ENGINE_DECODE_TIME, "vllm:request_decode_time_seconds", since=(0, 6, 4)),
    Row(m.ENGINE_INFERENCE_TIME, "vllm:request_inference_time_seconds", since=(0, 6, 4)),
    Row(m.ENGINE_REQUEST_PROMPT_TOKENS, "vllm:request_prompt_tokens"),
    Row(m.ENGINE_REQUEST_GENERATION_TOKENS, "vllm:request_generation_tokens"),
    Row(
        m.ENGINE_ITERATION_TOKENS,
        "vllm:iteration_tokens_total",
        since=(0, 6, 4),
        note="a histogram despite its name; cached prompt tokens count up to 0.20 and no longer in 0.24",
    ),
    Row(
        m.ENGINE_KV_TRANSFER_TIME,
        "vllm:nixl_xfer_time_seconds",
        fixed=_NIXL,
        since=(0, 11, 1),
        expected=False,
        note="on the engine that reads, one per remote tensor-parallel rank",
    ),
    Row(m.ENGINE_KV_TRANSFER_TIME, "vllm:mooncake_xfer_time_seconds", fixed=_MOONCAKE, since=(0, 33), expected=False),
    Row(m.ENGINE_KV_TRANSFER_BYTES, "vllm:nixl_bytes_transferred", fixed=_NIXL, since=(0, 11, 1), expected=False),
    Row(m.ENGINE_KV_TRANSFER_BYTES, "vllm:mooncake_bytes_transferred", fixed=_MOONCAKE, since=(0, 33), expected=False),
)

UNUSABLE: tuple[Unusable, ...] = (
    Unusable(
        _V0_HIT_RATE,
        (m.ENGINE_PREFIX_QUERIES, m.ENGINE_PREFIX_HITS),
        "the V0 engine gives a hit rate over its own window, which is no counter and cannot be summed",
    ),
    Unusable(
        _V0_SPEC_DECODE,
        (m.ENGINE_SPEC_DRAFTS, m.ENGINE_SPEC_DRAFT_TOKENS, m.ENGINE_SPEC_ACCEPTED),
        "the V0 engine adds its running totals to these counters again at every log line (vllm/engine/metrics.py, spec_decode/metrics.py, 0.6 to 0.9)",
    ),
)

#: The cache configuration: an info series whose labels change with every version.
CACHE_CONFIG = "vllm:cache_config_info"
#: Of another package (prometheus-fastapi-instrumentator), so without vLLM's prefix.
HTTP_REQUESTS = "http_requests_total"
#: prometheus_client exports it in a single process only: without it the page is summed over several API servers.
PROCESS_START = "process_start_time_seconds"
#: Labels that tell the replicas on the page of Ray's metrics agent apart (ReplicaId since vLLM 0.12).
REPLICA_LABELS = ("ReplicaId", "WorkerId")
#: Since when a page may be that of several API servers (--api-server-count).
SEVERAL_SERVERS_SINCE: Version = (0, 9, 1)
#: What vLLM itself marks as "might be incorrect" with several API servers (vllm/v1/metrics/loggers.py): each sees a part of a step's tokens.
UNRELIABLE_WITH_SEVERAL_SERVERS = (m.ENGINE_ITERATION_TOKENS,)

_NAMES = (
    {name for row in ROWS for name in row.sample_names} | {item.family for item in UNUSABLE} | {CACHE_CONFIG, HTTP_REQUESTS, PROCESS_START}
)
#: vLLM's wrappers for Ray write `_` for `:` since 0.10 (vllm/v1/metrics/ray_wrappers.py), and Ray's metrics agent puts `ray_` before each name.
_PREFIXES = ("vllm:", "vllm_", "ray_vllm:", "ray_vllm_")


def _all_names() -> Mapping[str, str]:
    names = {name: name for name in _NAMES}
    for name in _NAMES:
        if name.startswith("vllm:"):
            names.update({prefix + name.removeprefix("vllm:"): name for prefix in _PREFIXES})
    return names


#: Every name under which a sample that is read may stand → vLLM's own name for it.
CANONICAL: Mapping[str, str] = _all_names()


def wanted(name: str) -> bool:
    """Whether a sample of an engine's page is read at all."""
    return name in CANONICAL


def parse_version(text: str) -> Version | None:
    """The release of a version string ("0.11.1rc2.dev3+g1a2b" → (0, 11, 1)), or None when it tells none.

    A build without release tags calls itself 0.1.devN: that says nothing about what it exports.
    """
    match = re.match(r"v?(\d{1,4}(?:\.\d{1,4})*)", text.strip())
    if match is None:
        return None
    version = tuple(int(part) for part in match[1].split("."))
    return None if version[:2] <= (0, 1) else version
