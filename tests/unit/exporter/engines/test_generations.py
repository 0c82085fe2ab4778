"""Pages that vLLM's own metric classes of fourteen versions wrote, all after the same work: the same series of ours with the same sums.

The pages and how they came about: tests/captures/README.md. What a version cannot give is absent; what it should give and does not, or gives
unreliably, is in `missing`.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import pytest
from poise.exporter import metrics as m
from poise.exporter.engines import dialects
from poise.exporter.engines.page import PageParser
from poise.exporter.metrics import Metric
from poise.exporter.snapshot import EnginePage

from tests.recorded import CAPTURES

GENERATIONS = CAPTURES / "generations"
NIXL = "NixlConnector"

#: What the work of one data-parallel rank comes to (scripts/vllm_pages.py: WORK, twice). Gauges say the last value.
SUMS: dict[Metric, dict[tuple[str, ...], float]] = {
    m.ENGINE_PROMPT_TOKENS: {(): 1400},
    m.ENGINE_PROMPT_TOKENS_BY_SOURCE: {("local_compute",): 640, ("local_cache_hit",): 560, ("external_kv_transfer",): 200},
    m.ENGINE_GENERATION_TOKENS: {(): 180},
    m.ENGINE_REQUESTS_FINISHED: {("stop",): 4, ("length",): 2},
    m.ENGINE_PREEMPTIONS: {(): 4},
    m.ENGINE_PREFIX_QUERIES: {(): 1280},
    m.ENGINE_PREFIX_HITS: {(): 640},
    m.ENGINE_EXTERNAL_QUERIES: {(): 200},
    m.ENGINE_EXTERNAL_HITS: {(): 120},
    m.ENGINE_KV_TRANSFER_EXPIRED: {(NIXL,): 2},
    m.ENGINE_KV_TRANSFER_LATE: {(NIXL,): 2},
    m.ENGINE_KV_OFFLOAD_LOAD: {(): 6_000_000},
    m.ENGINE_KV_OFFLOAD_STORE: {(): 14_000_000},
    m.ENGINE_SPEC_DRAFTS: {(): 20},
    m.ENGINE_SPEC_DRAFT_TOKENS: {(): 60},
    m.ENGINE_SPEC_ACCEPTED: {(): 36},
}
GAUGES: dict[Metric, dict[tuple[str, ...], float]] = {
    m.ENGINE_REQUESTS_RUNNING: {(): 3},
    m.ENGINE_REQUESTS_WAITING: {(): 3},
    m.ENGINE_REQUESTS_WAITING_BY_REASON: {("capacity",): 2, ("deferred",): 1},
    m.ENGINE_KV_CACHE_CAPACITY: {(): 16_000},
}
#: The highest counts, however many write it.
SHARES: dict[Metric, dict[tuple[str, ...], float]] = {
    m.ENGINE_KV_CACHE_USAGE: {(): 0.25},
    m.ENGINE_SLEEPING: {("weights_offloaded",): 0, ("discard_all",): 0},
}
#: (count, sum); the samples of iteration tokens are apart, for what they count has changed.
HISTOGRAMS: dict[Metric, tuple[float, float]] = {
    m.ENGINE_TTFT: (6, 6.66),
    m.ENGINE_ITL: (8, 0.96),
    m.ENGINE_TPOT: (6, 0.3),
    m.ENGINE_E2E: (6, 12.0),
    m.ENGINE_QUEUE_TIME: (6, 0.75),
    m.ENGINE_PREFILL_TIME: (6, 2.25),
    m.ENGINE_DECODE_TIME: (6, 9.0),
    m.ENGINE_INFERENCE_TIME: (6, 11.25),
    m.ENGINE_REQUEST_PROMPT_TOKENS: (6, 1200),
    m.ENGINE_REQUEST_GENERATION_TOKENS: (6, 180),
    m.ENGINE_KV_TRANSFER_TIME: (4, 0.18),
    m.ENGINE_KV_TRANSFER_BYTES: (4, 393_216),
}

V0_6_0 = {
    m.ENGINE_PROMPT_TOKENS,
    m.ENGINE_GENERATION_TOKENS,
    m.ENGINE_REQUESTS_FINISHED,
    m.ENGINE_PREEMPTIONS,
    m.ENGINE_REQUESTS_RUNNING,
    m.ENGINE_REQUESTS_WAITING,
    m.ENGINE_KV_CACHE_USAGE,
    m.ENGINE_KV_CACHE_CAPACITY,
    m.ENGINE_TTFT,
    m.ENGINE_ITL,
    m.ENGINE_E2E,
    m.ENGINE_REQUEST_PROMPT_TOKENS,
    m.ENGINE_REQUEST_GENERATION_TOKENS,
}
V0 = V0_6_0 | {
    m.ENGINE_QUEUE_TIME,
    m.ENGINE_PREFILL_TIME,
    m.ENGINE_DECODE_TIME,
    m.ENGINE_INFERENCE_TIME,
    m.ENGINE_ITERATION_TOKENS,
}
PREFIX = {m.ENGINE_PREFIX_QUERIES, m.ENGINE_PREFIX_HITS}
SPEC = {m.ENGINE_SPEC_DRAFTS, m.ENGINE_SPEC_DRAFT_TOKENS, m.ENGINE_SPEC_ACCEPTED}
V1 = V0 | PREFIX
V1_11_1 = V1 | {m.ENGINE_TPOT, m.ENGINE_EXTERNAL_QUERIES, m.ENGINE_EXTERNAL_HITS, m.ENGINE_SLEEPING}
NIXL_11 = {m.ENGINE_KV_TRANSFER_FAILURES, m.ENGINE_KV_TRANSFER_TIME, m.ENGINE_KV_TRANSFER_BYTES}
OFFLOAD = {m.ENGINE_KV_OFFLOAD_LOAD, m.ENGINE_KV_OFFLOAD_STORE}
V1_16 = V1_11_1 | {m.ENGINE_PROMPT_TOKENS_BY_SOURCE}
V1_20 = V1_16 | {m.ENGINE_REQUESTS_WAITING_BY_REASON}
#: Counters that come with the stubbed engine's configuration, or have no work in it.
ASIDE = {m.ENGINE_CORRUPTED_REQUESTS, m.ENGINE_ADMISSION_REJECTIONS, m.ENGINE_REQUESTS_KV_FETCH}


@dataclass(frozen=True, slots=True)
class Generation:
    """A page: what it gives, what it misses, how many processes did the work, and what a step's tokens are."""

    page: str
    gives: set[Metric]
    missing: set[Metric]
    ranks: tuple[str, ...] = ("0",)
    servers: int = 1
    replicas: int = 1
    step_tokens: int = 1580
    transfer_failures: int = 2
    version: str | None = None


ALL_GENERATIONS = [
    Generation("0.6.0-v0", V0_6_0, PREFIX),
    Generation("0.6.6-v0", V0, PREFIX, step_tokens=820),
    Generation("0.7.3-v0", V0, PREFIX, step_tokens=820),
    Generation(
        "0.7.3-v1",
        V0 - {m.ENGINE_PREEMPTIONS, m.ENGINE_KV_CACHE_CAPACITY},
        # It counts blocks and does not tell how large they are.
        PREFIX | {m.ENGINE_PREEMPTIONS, m.ENGINE_KV_CACHE_CAPACITY},
    ),
    Generation("0.8.2-v1", V1, set()),
    Generation("0.8.5-v0", V0, PREFIX, step_tokens=820),
    Generation("0.8.5-v1", V1 | SPEC, set()),
    Generation("0.9.0-v1", V1 | SPEC, set()),
    Generation("0.9.2-v0", V0, PREFIX, step_tokens=820),
    Generation("0.9.2-v1", V1, set()),
    Generation("0.10.2-v1-dp2", V1, set(), ranks=("0", "1")),
    Generation("0.11.0-v1-api2", V1 | {m.ENGINE_TPOT}, {m.ENGINE_KV_CACHE_USAGE, m.ENGINE_ITERATION_TOKENS}, servers=2),
    Generation("0.11.1-v1-pd", V1_11_1 | NIXL_11, set()),
    Generation("0.16.0-v1-pd", V1_16 | NIXL_11 | OFFLOAD | SPEC | {m.ENGINE_KV_TRANSFER_EXPIRED}, set()),
    Generation("0.20.0-v1-api2", V1_20, {m.ENGINE_ITERATION_TOKENS}, servers=2),
    Generation("0.24.0-v1-dp2", V1_20 | NIXL_11 | OFFLOAD | {m.ENGINE_KV_TRANSFER_EXPIRED}, set(), ranks=("0", "1"), step_tokens=820),
    Generation(
        "0.33.0-v1",
        V1_20 | NIXL_11 | OFFLOAD | SPEC | {m.ENGINE_KV_TRANSFER_EXPIRED, m.ENGINE_KV_TRANSFER_LATE},
        set(),
        step_tokens=820,
        transfer_failures=6,  # since 0.31 with handshakes and notifications
    ),
    # Ray's agent tells no version, and two replicas are behind its page.
    Generation("0.33.0-ray", V1_20, {m.ENGINE_KV_CACHE_USAGE, m.ENGINE_SLEEPING}, replicas=2, step_tokens=820, version=""),
    Generation(
        "0.33.0-rust",
        (V1_20 | SPEC) - {m.ENGINE_SLEEPING, m.ENGINE_KV_CACHE_CAPACITY},
        {m.ENGINE_SLEEPING, m.ENGINE_KV_CACHE_CAPACITY, m.ENGINE_ADMISSION_REJECTIONS},
        step_tokens=820,
    ),
]
IDS = [generation.page for generation in ALL_GENERATIONS]


def content(page: str) -> bytes:
    return (GENERATIONS / f"{page}.prom").read_bytes()


def read(page: bytes, version: str) -> EnginePage:
    return dialects.read_page(PageParser(dialects.wanted).parse(page), version, 100.0, 0.5)


def read_generation(generation: Generation) -> EnginePage:
    version = generation.page.partition("-")[0] if generation.version is None else generation.version
    return read(content(generation.page), version)


def given(page: EnginePage) -> set[Metric]:
    return {metric for work in page.work for metric in (*work.readings, *work.histograms)} - ASIDE


def test_every_generation_on_disk_is_in_the_table() -> None:
    assert {path.stem for path in GENERATIONS.glob("*.prom")} == set(IDS)


@pytest.mark.parametrize("generation", ALL_GENERATIONS, ids=IDS)
def test_a_generation_gives_these_series_and_names_the_ones_it_misses(generation: Generation) -> None:
    page = read_generation(generation)
    assert {metric.name for metric in given(page)} == {metric.name for metric in generation.gives}
    assert set(page.missing) == {metric.name for metric in generation.missing}
    assert [(work.model, work.dp_rank) for work in page.work] == [("tiny", rank) for rank in generation.ranks]


@pytest.mark.parametrize("generation", ALL_GENERATIONS, ids=IDS)
def test_the_same_work_has_the_same_sums_in_every_generation(generation: Generation) -> None:
    times = generation.servers * generation.replicas
    for work in read_generation(generation).work:
        for metric, expected in SUMS.items():
            if metric in generation.gives:
                found = {labels: value for labels, value in work.readings[metric].items() if value}
                assert found == {labels: value * times for labels, value in expected.items()}, metric.name
        if m.ENGINE_KV_TRANSFER_FAILURES in generation.gives:
            assert work.value(m.ENGINE_KV_TRANSFER_FAILURES, NIXL) == generation.transfer_failures
        for metric, expected in GAUGES.items():
            if metric in generation.gives:
                found = dict(work.readings[metric])
                assert found == {labels: value * generation.replicas for labels, value in expected.items()}, metric.name
        for metric, expected in SHARES.items():
            if metric in generation.gives:
                assert dict(work.readings[metric]) == expected, metric.name
        for metric, (count, total) in HISTOGRAMS.items():
            if metric in generation.gives:
                (histogram,) = work.histograms[metric].values()
                assert (histogram.count, histogram.sum) == pytest.approx((count * times, total * times)), metric.name
                assert histogram.buckets[-1] == ("+Inf", count * times)
        if m.ENGINE_ITERATION_TOKENS in generation.gives:
            steps = work.histograms[m.ENGINE_ITERATION_TOKENS][()]
            assert (steps.count, steps.sum) == (2 * times, generation.step_tokens * times)


@pytest.mark.parametrize("generation", [item for item in ALL_GENERATIONS if item.replicas == 1], ids=lambda item: item.page)
def test_http_answers_are_counted_in_every_generation(generation: Generation) -> None:
    assert read_generation(generation).http_requests == {"2xx": 6 * generation.servers, "4xx": generation.servers}


@pytest.mark.parametrize("page", ["0.8.5-v1", "0.9.0-v1"])
def test_prefix_counters_whose_unit_the_version_decides_are_missing_without_it(page: str) -> None:
    without = read(content(page), "")
    assert not PREFIX & given(without)
    assert {metric.name for metric in PREFIX} <= set(without.missing)


def test_blocks_without_a_block_size_are_missing() -> None:
    page = read(content("0.8.5-v1").replace(b'block_size="16"', b'block_size="None"'), "0.8.5")
    assert not PREFIX & given(page)
    assert {metric.name for metric in PREFIX} <= set(page.missing)


def test_both_names_of_one_family_are_counted_once() -> None:
    # 0.10.2 has the old and the new name of the prefix cache counters, of the KV usage and of the time between tokens.
    data = content("0.10.2-v1-dp2")
    for old, new in ((b"gpu_prefix_cache_hits_total", b"prefix_cache_hits_total"), (b"time_per_output_token_seconds", b"inter_token_lat")):
        assert b"\nvllm:" + old in data
        assert b"\nvllm:" + new in data


def test_a_deprecated_copy_serves_until_the_newer_family_has_a_value() -> None:
    # From 0.24 on the copy is there from the start, the newer family with its first transfer.
    lines = [line for line in content("0.33.0-v1").splitlines(keepends=True) if not line.startswith(b"vllm:kv_offload_load_bytes")]
    page = read(b"".join(lines), "0.33.0")
    assert page.work[0].value(m.ENGINE_KV_OFFLOAD_LOAD) == 6_000_000
    assert page.work[0].value(m.ENGINE_KV_OFFLOAD_STORE) == 14_000_000


def test_speculative_decoding_of_the_v0_engine_is_not_taken_over() -> None:
    page = read(
        content("0.8.5-v0")
        + b'vllm:spec_decode_num_draft_tokens_total{model_name="tiny"} 900.0\n'
        + b'vllm:spec_decode_num_accepted_tokens_total{model_name="tiny"} 400.0\n'
        + b'vllm:spec_decode_num_emitted_tokens_total{model_name="tiny"} 700.0\n',
        "0.8.5",
    )
    assert not SPEC & given(page)
    assert {metric.name for metric in SPEC} <= set(page.missing)


def test_the_older_name_of_the_queue_time_serves_where_the_newer_is_absent() -> None:
    lines = [line for line in content("0.6.6-v0").splitlines(keepends=True) if not line.startswith(b"vllm:request_queue_time")]
    assert read(b"".join(lines), "0.6.4").work[0].histograms[m.ENGINE_QUEUE_TIME][()].sum == 0.75


@pytest.mark.parametrize("prefix", [b"vllm_", b"ray_vllm_", b"ray_vllm:"])
def test_names_are_read_in_every_spelling_of_ray(prefix: bytes) -> None:
    page = read(content("0.9.2-v1").replace(b"\nvllm:", b"\n" + prefix), "0.9.2")
    plain = read(content("0.9.2-v1"), "0.9.2")
    assert page == plain


def test_copies_of_a_page_in_two_spellings_are_not_added() -> None:
    data = content("0.9.2-v1")
    copies = b"".join(b"ray_vllm_" + line for line in data.split(b"\nvllm:")[1:] for line in [line.partition(b"\n")[0] + b"\n"])
    assert read(data + copies, "0.9.2") == read(data, "0.9.2")


def test_a_vendors_build_that_has_a_newer_family_is_read_by_it() -> None:
    page = read(content("0.9.2-v1"), "0.8.5+vendor")
    assert page.work[0].value(m.ENGINE_PREFIX_QUERIES) == 1280  # by the newer name, in tokens


def test_the_pages_stay_small_in_the_tree() -> None:
    pages = list(Path(CAPTURES).rglob("*.prom"))
    assert sum(path.stat().st_size for path in pages) < 3_000_000
    assert all(len(gzip.compress(path.read_bytes())) < 20_000 for path in pages)
