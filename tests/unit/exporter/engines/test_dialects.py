"""vLLM's pages in the contract's words: sums equal the page, histograms whole, versions, what is missing."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from poise.exporter import metrics as m
from poise.exporter.engines import dialects, families
from poise.exporter.engines.page import PageError, PageParser
from poise.exporter.metrics import ALL, Kind, Metric, Owner
from poise.exporter.snapshot import EnginePage
from prometheus_client.parser import text_string_to_metric_families

from tests.recorded import CAPTURES

PAGES = [path for path in sorted(CAPTURES.glob("*.prom")) if b"vllm:" in path.read_bytes()]


def read(page: str | bytes, version: str = "0.32.0") -> EnginePage:
    data = page.encode() if isinstance(page, str) else page
    return dialects.read_page(PageParser(dialects.wanted).parse(data), version, 100.0, 0.5)


def capture(name: str) -> bytes:
    return (CAPTURES / f"{name}.prom").read_bytes()


def scraped(page: bytes) -> list[tuple[str, dict[str, str], float]]:
    return [(s.name, dict(s.labels), s.value) for f in text_string_to_metric_families(page.decode()) for s in f.samples]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_sum_of_every_series_equals_the_page(path: Path) -> None:
    data = path.read_bytes()
    page, samples = read(data), scraped(data)
    checked = 0
    for row in (row for row in families.ROWS if row.holds((0, 32))):
        names = set(row.sample_names)
        mine = [(name, labels, value) for name, labels, value in samples if name in names]
        if row.values:
            mine = [item for item in mine if item[1][row.labels[0]] in row.values]
        if row.metric.kind is Kind.HISTOGRAM:
            histograms = [work.histograms[row.metric][row.fixed] for work in page.work if row.fixed in work.histograms.get(row.metric, {})]
            ours = sum(h.sum + h.count + sum(count for _, count in h.buckets) for h in histograms)
        else:
            readings = [work.readings.get(row.metric, {}) for work in page.work]
            ours = sum(value for reading in readings for own, value in reading.items() if not row.fixed or own == row.fixed)
        assert ours == pytest.approx(sum(value for _, _, value in mine), rel=1e-12)
        checked += bool(mine)
    assert checked > 25
    statuses = {
        f"{code}xx": sum(v for n, labels, v in samples if n == "http_requests_total" and labels["status"] == f"{code}xx")
        for code in range(1, 6)
    }
    assert page.http_requests == {code: value for code, value in statuses.items() if value}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_bounds_are_exactly_as_scraped(path: Path) -> None:
    data = path.read_bytes()
    text = re.findall(r'^vllm:time_to_first_token_seconds_bucket\{engine="0",le="([^"]+)"', data.decode(), re.MULTILINE)
    work = read(data).work[0]
    assert [bound for bound, _ in work.histograms[m.ENGINE_TTFT][()].buckets] == text
    assert text[-1] == "+Inf"


def test_a_recorded_server_misses_nothing() -> None:
    for name in ("single-server-after", "tp2-server-after", "pd-decode-after", "dp2api1-server-after"):
        assert read(capture(name)).missing == ()


def test_several_api_servers_make_iteration_tokens_unreliable() -> None:
    for name in ("api2-server-after", "dp2-server-after"):
        assert read(capture(name)).missing == ("poise_engine_iteration_tokens",)


def test_data_parallel_ranks_are_apart() -> None:
    page = read(capture("dp2-server-after"))
    assert [(work.model, work.dp_rank) for work in page.work] == [("tiny", "0"), ("tiny", "1")]
    assert [work.value(m.ENGINE_PROMPT_TOKENS) for work in page.work] == [11261, 9428]
    assert [work.value(m.ENGINE_KV_CACHE_CAPACITY) for work in page.work] == [65536, 65536]


def test_decode_shows_transfers_by_connector() -> None:
    work = read(capture("pd-decode-after")).work[0]
    assert work.value(m.ENGINE_KV_TRANSFER_FAILURES, "NixlConnector") == 0
    assert work.histograms[m.ENGINE_KV_TRANSFER_TIME][("NixlConnector",)].count == 544
    assert work.histograms[m.ENGINE_KV_TRANSFER_BYTES][("NixlConnector",)].sum == 249561088
    assert work.readings[m.ENGINE_REQUESTS_KV_FETCH] == {("waiting_to_start",): 0, ("in_progress",): 0, ("completed_waiting",): 0}


def test_cache_configuration_is_kept_by_allow_list() -> None:
    page = read(capture("tp2-server-after"))
    assert page.cache_config["block_size"] == "128"
    assert page.cache_config["gpu_memory_utilization"] == "0.92"
    assert set(page.cache_config) <= set(dialects.CACHE_CONFIG_LABELS)
    assert page.work[0].value(m.ENGINE_KV_CACHE_CAPACITY) == 131072


BASE = 'vllm:num_requests_running{engine="0",model_name="m"} 1.0\n'


def test_capacity_of_older_versions_is_blocks_times_block_size() -> None:
    page = read(BASE + 'vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="100"} 1\n', "0.11.0")
    assert page.work[0].value(m.ENGINE_KV_CACHE_CAPACITY) == 1600


def test_blocks_of_a_hybrid_model_are_no_capacity() -> None:
    blocks = 'block_size="16",engine="0",mamba_block_size="2048",num_gpu_blocks="100"'
    page = read(BASE + f"vllm:cache_config_info{{{blocks}}} 1\n", "0.16.0")
    assert page.work[0].value(m.ENGINE_KV_CACHE_CAPACITY) is None
    assert "poise_engine_kv_cache_capacity_tokens" in page.missing
    told = read(BASE + f'vllm:cache_config_info{{{blocks},kv_cache_size_tokens="900"}} 1\n')
    assert told.work[0].value(m.ENGINE_KV_CACHE_CAPACITY) == 900


@pytest.mark.parametrize(
    "labels", ['block_size="None",num_gpu_blocks="100"', 'kv_cache_size_tokens="-5"', 'kv_cache_size_tokens="1e99"', 'num_gpu_blocks="9"']
)
def test_a_capacity_that_is_not_told_is_missing(labels: str) -> None:
    page = read(BASE + f'vllm:cache_config_info{{engine="0",{labels}}} 1\n')
    assert page.work[0].value(m.ENGINE_KV_CACHE_CAPACITY) is None
    assert "poise_engine_kv_cache_capacity_tokens" in page.missing


@pytest.mark.parametrize(
    ("version", "missing"),
    [("0.11.0", False), ("0.15.1", False), ("0.16.0", True), ("0.32.0", True), ("0.99.0", True), ("", False), ("0.1.dev1+gabc", False)],
)
def test_what_is_missing_depends_on_the_version(version: str, missing: bool) -> None:
    assert ("poise_engine_prompt_tokens_by_source_total" in read(BASE, version).missing) is missing


def test_optional_families_are_never_missing() -> None:
    missing = read(BASE).missing
    assert "poise_engine_spec_decode_drafts_total" not in missing
    assert "poise_engine_kv_transfer_failures_total" not in missing
    assert "poise_engine_requests_kv_fetch" not in missing
    assert "poise_engine_prompt_tokens_total" in missing


def test_a_series_without_data_parallel_label_is_of_the_lowest_rank() -> None:
    page = read('vllm:num_requests_running{engine="2",model_name="m"} 1.0\nvllm:admission_rejections_total{model_name="m",reason="r"} 3\n')
    assert [(work.dp_rank, work.value(m.ENGINE_ADMISSION_REJECTIONS, "r")) for work in page.work] == [("2", 3.0)]
    without = read('vllm:num_requests_running{model_name="m"} 1.0\n')
    assert [work.dp_rank for work in without.work] == ["0"]


def test_series_that_fall_together_are_added_and_shares_are_not() -> None:
    page = read(
        "".join(
            f'vllm:num_requests_running{{engine="0",model_name="m",pid="{pid}"}} 2.0\n'
            f'vllm:kv_cache_usage_perc{{engine="0",model_name="m",pid="{pid}"}} {usage}\n'
            for pid, usage in ((1, 0.25), (2, 0.75))
        )
    )
    assert page.work[0].value(m.ENGINE_REQUESTS_RUNNING) == 4.0
    assert page.work[0].value(m.ENGINE_KV_CACHE_USAGE) == 0.75


def test_ranks_are_in_order_of_their_numbers() -> None:
    page = read("".join(f'vllm:num_requests_running{{engine="{rank}",model_name="m"}} 1\n' for rank in (10, 2, 0)))
    assert [work.dp_rank for work in page.work] == ["0", "2", "10"]


HISTOGRAM = 'vllm:time_to_first_token_seconds_{part}{{engine="0",model_name="m"{le}}} {value}\n'


def histogram(buckets: dict[str, float], total: float | None, count: float | None) -> str:
    text = "".join(HISTOGRAM.format(part="bucket", le=f',le="{bound}"', value=value) for bound, value in buckets.items())
    text += HISTOGRAM.format(part="sum", le="", value=total) if total is not None else ""
    return text + (HISTOGRAM.format(part="count", le="", value=count) if count is not None else "")


@pytest.mark.parametrize(
    ("buckets", "total", "count"),
    [
        ({"0.1": 1, "1.0": 2}, 0.5, 2),
        ({"0.1": 1, "+Inf": 2}, None, 2),
        ({"0.1": 1, "+Inf": 2}, 0.5, None),
        ({"0.1": 3, "+Inf": 2}, 0.5, 2),
        ({"0.1": 1, "+Inf": 2}, 0.5, 3),
        ({"0.1": 1, "+Inf": 2}, float("nan"), 2),
        ({"x": 1, "+Inf": 2}, 0.5, 2),
        ({"0.1": -1, "+Inf": 2}, 0.5, 2),
        ({}, 0.5, 2),
    ],
)
def test_a_histogram_that_is_not_whole_is_left_out_and_named(buckets: dict[str, float], total: float | None, count: float | None) -> None:
    page = read(BASE + histogram(buckets, total, count))
    assert m.ENGINE_TTFT not in page.work[0].histograms
    assert "poise_engine_time_to_first_token_seconds" in page.missing


def test_values_that_are_no_numbers_are_left_out_and_named() -> None:
    page = read(
        BASE + 'vllm:prompt_tokens_total{engine="0",model_name="m"} NaN\nvllm:kv_cache_usage_perc{engine="0",model_name="m"} +Inf\n'
    )
    assert page.work[0].value(m.ENGINE_PROMPT_TOKENS) is None
    assert page.work[0].value(m.ENGINE_KV_CACHE_USAGE) is None
    assert {"poise_engine_prompt_tokens_total", "poise_engine_kv_cache_usage_ratio"} <= set(page.missing)


def test_long_labels_are_cut() -> None:
    page = read(f'vllm:num_requests_running{{engine="0",model_name="{"m" * 5000}"}} 1\n')
    assert len(page.work[0].model) == dialects.LABEL_LIMIT


@pytest.mark.parametrize("page", ["", "go_goroutines 5\n", "http_requests_total 1\n"])
def test_a_page_of_something_else_is_refused(page: str) -> None:
    with pytest.raises(PageError, match="none of vLLM's series"):
        read(page)


def test_a_page_that_would_give_too_many_series_is_refused() -> None:
    models = "".join(f'vllm:num_requests_running{{engine="0",model_name="m{number}"}} 1\n' for number in range(dialects.RANKS_LIMIT + 1))
    with pytest.raises(PageError, match="more than 256 models"):
        read(models)
    reasons = "".join(
        f'vllm:request_success_total{{engine="{rank}",finished_reason="r{number}"}} 1\nvllm:num_requests_waiting_by_reason{{engine="{rank}",reason="r{number}"}} 1\n'
        for rank in range(dialects.RANKS_LIMIT)
        for number in range(dialects.VALUES_LIMIT)
    )
    with pytest.raises(PageError, match="more than 20000 samples"):
        read(reasons)


def test_a_family_that_makes_up_label_values_is_left_out_and_named() -> None:
    page = read(
        BASE
        + "".join(
            f'vllm:request_success_total{{engine="0",finished_reason="r{number}"}} 1\n' for number in range(dialects.VALUES_LIMIT + 1)
        )
        + "".join(f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="{number}"}} 1\n' for number in range(dialects.BUCKETS_LIMIT))
        + 'vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 1\n'
        + 'vllm:time_to_first_token_seconds_sum{engine="0"} 1\nvllm:time_to_first_token_seconds_count{engine="0"} 1\n'
    )
    assert {m.ENGINE_REQUESTS_FINISHED.name, m.ENGINE_TTFT.name} <= set(page.missing)
    assert not any(m.ENGINE_REQUESTS_FINISHED in work.readings or m.ENGINE_TTFT in work.histograms for work in page.work)
    assert any(m.ENGINE_REQUESTS_RUNNING in work.readings for work in page.work)


def test_statuses_that_are_not_grouped_are() -> None:
    page = read(
        BASE
        + 'http_requests_total{status="200"} 2\nhttp_requests_total{status="404"} 1\nhttp_requests_total{status="4xx"} 1\nhttp_requests_total{status="x"} 9\nhttp_requests_total{status="5xx"} -5\n'
    )
    assert page.http_requests == {"2xx": 2, "4xx": 2}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.32.0", (0, 32, 0)),
        ("v0.11.1", (0, 11, 1)),
        ("0.11.1rc2.dev3+g1a2b", (0, 11, 1)),
        ("0.33", (0, 33)),
        ("0.1.dev12+gabc", None),
        ("dev", None),
        ("", None),
    ],
)
def test_versions(text: str, version: tuple[int, ...] | None) -> None:
    assert dialects.parse_version(text) == version


@given(st.text(max_size=30))
def test_no_version_breaks_the_reader(text: str) -> None:
    dialects.parse_version(text)


def test_every_work_level_series_has_a_row_with_its_labels() -> None:
    fed: dict[Metric, int] = {}
    for row in families.ROWS:
        assert len(row.fixed or row.labels) == len(row.metric.labels), row
        fed[row.metric] = fed.get(row.metric, 0) + 1
    assert {metric for metric in ALL if metric.owner is Owner.WORK} - {m.ENGINE_KV_CACHE_CAPACITY} == set(fed)


LINES = capture("tp2-server-after").splitlines(keepends=True)
VALUES = st.sampled_from([b"0", b"1", b"-1", b"NaN", b"+Inf", b"-Inf", b"1e300", b"7.5"])


@given(st.lists(st.tuples(st.integers(0, len(LINES) - 1), st.sampled_from(["drop", "twice", "value"]), VALUES), max_size=40))
@settings(max_examples=30)
def test_a_damaged_page_gives_whole_histograms_and_finite_values_or_none(changes: list[tuple[int, str, bytes]]) -> None:
    lines = list(LINES)
    for number, what, value in changes:
        if what == "drop":
            lines[number] = b""
        elif what == "twice":
            lines[number] *= 2
        elif lines[number] and not lines[number].startswith(b"#"):
            lines[number] = lines[number].rpartition(b" ")[0] + b" " + value + b"\n"
    page = read(b"".join(lines))
    for work in page.work:
        assert all(math.isfinite(value) for series in work.readings.values() for value in series.values())
        for series in work.histograms.values():
            for found in series.values():
                counts = [count for _, count in found.buckets]
                assert counts == sorted(counts)
                assert (found.buckets[-1][0], counts[-1]) == ("+Inf", found.count)
