"""Whatever a server answers: its page is read into bounded, finite, whole figures, or refused in words that do not quote it. Nothing crashes.

tests/captures/hostile keeps what was thought of and what fuzzing found; Hypothesis goes on from there.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from poise.exporter import metrics as m
from poise.exporter.engines import dialects, families
from poise.exporter.engines.page import Labels, PageError, PageParser
from poise.exporter.metrics import ALL, Kind
from poise.exporter.snapshot import EnginePage

from tests.recorded import CAPTURES

HOSTILE = sorted((CAPTURES / "hostile").glob("*.prom"))
NAMES = {metric.name for metric in ALL}

#: What becomes of each page: refused with these words, or read, without these series.
OUTCOMES: dict[str, str | set[str]] = {
    "a-block-size-that-is-no-number": {m.ENGINE_PREFIX_QUERIES.name, m.ENGINE_KV_CACHE_CAPACITY.name},
    "a-histogram-where-a-counter-stands": {m.ENGINE_ITERATION_TOKENS.name},
    "a-model-name-of-eight-thousand-characters": set(),
    "a-null-byte": set(),
    "a-page-of-comments": "the page has none of vLLM's series",
    "a-router-of-vllm": "the page has none of vLLM's series",
    "a-web-page-that-speaks-of-vllm": "line 1 is no sample",
    "an-exemplar-without-braces": "line 2 is no sample",
    "blocks-times-a-huge-block-size": {m.ENGINE_PREFIX_QUERIES.name},
    "both-engines-at-once": {metric.name for item in families.UNUSABLE for metric in item.metrics},
    "bounds-eight-thousand-long": {m.ENGINE_TTFT.name},
    "bounds-in-digits-of-another-script": {m.ENGINE_TTFT.name},
    "bounds-that-are-no-number": {m.ENGINE_TTFT.name},
    "bounds-twice-in-two-spellings": {m.ENGINE_TTFT.name},
    "bounds-with-underscores": {m.ENGINE_TTFT.name},
    "buckets-that-fall": {m.ENGINE_TTFT.name},
    "buckets-that-sum-to-infinity": {m.ENGINE_TTFT.name},
    "bytes-that-are-no-text": "the page is not UTF-8 text",
    "counters-below-zero": {m.ENGINE_PROMPT_TOKENS.name},
    "counters-that-sum-to-infinity": {m.ENGINE_PROMPT_TOKENS.name},
    "cut-behind-a-line": "the page is cut off",
    "cut-in-the-middle-of-a-line": "the page is cut off",
    "infinity-spelled-otherwise": {m.ENGINE_TTFT.name},
    "json-instead": "line 1 is no sample",
    "more-models-than-there-are": "the page has more than 256 models and data-parallel ranks",
    "more-reasons-than-there-are": {m.ENGINE_REQUESTS_FINISHED.name},
    "names-with-control-characters": set(),
    "ranks-that-are-no-numbers": set(),
    "reasons-with-markup": set(),
    "samples-behind-the-end": set(),
    "sixteen-bit-text": "the page is cut off",
    "sixty-thousand-blanks-before-a-hash": "line 2 is no sample",
    "sixty-thousand-digits": {m.ENGINE_REQUESTS_RUNNING.name},
    "utf8-names-in-quotes": "line 2 is no sample",
    "values-that-are-no-numbers": {
        m.ENGINE_REQUESTS_RUNNING.name,
        m.ENGINE_KV_CACHE_USAGE.name,
        m.ENGINE_REQUESTS_WAITING.name,
        m.ENGINE_PROMPT_TOKENS.name,
    },
}


def read(page: bytes, version: str = "0.8.5") -> EnginePage:
    return dialects.read_page(PageParser(dialects.wanted).parse(page), version, 100.0, 0.5)


def check(page: EnginePage) -> None:
    """What holds of every page that was read."""
    assert len(page.work) <= dialects.RANKS_LIMIT
    assert set(page.missing) <= NAMES
    assert len(page.missing) == len(set(page.missing))
    assert set(page.cache_config) <= set(dialects.CACHE_CONFIG_LABELS)
    assert all(math.isfinite(value) and value >= 0 for value in page.http_requests.values())
    count = 0
    for work in page.work:
        texts = [work.model, work.dp_rank]
        for metric, series in work.readings.items():
            assert all(math.isfinite(value) for value in series.values())
            assert metric.kind is not Kind.COUNTER or all(value >= 0 for value in series.values())
            assert len(series) <= dialects.VALUES_LIMIT
            texts += [text for labels in series for text in labels]
            count += len(series)
        for histograms in work.histograms.values():
            for histogram in histograms.values():
                counts = [value for _, value in histogram.buckets]
                edges = [float(bound) for bound, _ in histogram.buckets]
                assert counts == sorted(counts)
                assert edges == sorted(set(edges))
                assert histogram.buckets[-1] == ("+Inf", histogram.count)
                assert math.isfinite(histogram.sum)
                texts += [bound for bound, _ in histogram.buckets]
                count += len(histogram.buckets) + 2
        assert all(len(text) <= dialects.LABEL_LIMIT for text in texts)
    assert count <= dialects.SAMPLES_LIMIT


def refusal(page: bytes, version: str) -> str:
    """Why a page was refused; "" for one that was read, of which everything holds then."""
    try:
        check(read(page, version))
    except PageError as error:
        return str(error)
    return ""


def test_every_page_of_the_corpus_has_its_outcome() -> None:
    assert {path.stem for path in HOSTILE} == set(OUTCOMES)


@pytest.mark.parametrize("path", HOSTILE, ids=lambda path: path.stem)
def test_a_hostile_page_is_refused_in_words_or_read_without_what_is_wrong(path: Path) -> None:
    outcome = OUTCOMES[path.stem]
    data = path.read_bytes()
    if isinstance(outcome, str):
        with pytest.raises(PageError, match=f"^{re.escape(outcome)}$"):
            read(data)
        return
    page = read(data)
    check(page)
    assert outcome <= set(page.missing)
    given = {metric.name for work in page.work for metric in (*work.readings, *work.histograms)}
    assert not given & outcome


@given(st.sampled_from(HOSTILE), st.text(max_size=12))
@settings(max_examples=40)
def test_no_version_makes_a_hostile_page_worse(path: Path, version: str) -> None:
    refusal(path.read_bytes(), version)


# ---------------------------------------------------------------------------------------------------------------- generated
FAMILY = st.sampled_from(sorted({*families.CANONICAL, "vllm:nothing", "x"}))
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=6) | st.sampled_from(["0", "1", "m", "stop", "CPU_to_GPU", "16", "None"])
VALUE = st.sampled_from(["0", "1", "-1", "NaN", "+Inf", "-Inf", "1.7e308", "-1.7e308", "5e-324", "1e400", "007", "2.5"])
LABELS = ("engine", "model_name", "le", "source", "reason", "stage", "finished_reason", "sleep_state", "transfer_type", "pid", "ReplicaId")
LE = st.sampled_from(["0.1", "1", "1.0", "+Inf", "inf", "NaN", "-1", "1e3", "١", "1_0"]) | TEXT


@st.composite
def series(draw: st.DrawFn) -> str:
    names = draw(
        st.lists(st.sampled_from([*LABELS, "block_size", "num_gpu_blocks", "kv_cache_size_tokens", "status"]), max_size=5, unique=True)
    )
    values = {name: draw(LE if name == "le" else TEXT) for name in names}
    labels = ",".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
    return f"{draw(FAMILY)}{{{labels}}} {draw(VALUE)}\n"


VERSIONS = st.sampled_from(["", "0.6.0", "0.7.3", "0.8.5", "0.9.0", "0.10.2", "0.16.0", "0.24.0", "0.33.0", "9.9.9", "dev"])


@given(st.lists(series(), max_size=25), VERSIONS)
@settings(max_examples=60, deadline=None)
@example(["vllm:prompt_tokens_total{} 1.7e308\n", 'vllm:prompt_tokens_total{pid="2"} 1.7e308\n'], "0.33.0")
@example(["vllm:kv_cache_usage_perc{} 1\n", 'vllm:kv_cache_usage_perc{pid="2"} -1.7e308\n'], "")
def test_series_put_together_at_random_are_read_within_bounds(lines: list[str], version: str) -> None:
    assert len(refusal("".join(lines).encode(), version)) < 120


REAL = (CAPTURES / "generations" / "0.8.5-v1.prom").read_bytes()


@given(st.lists(st.tuples(st.integers(0, len(REAL)), st.integers(0, 40), st.binary(max_size=12)), min_size=1, max_size=6), VERSIONS)
@settings(max_examples=40, deadline=None)
def test_bytes_cut_out_of_and_put_into_a_real_page_cost_at_most_the_page(cuts: list[tuple[int, int, bytes]], version: str) -> None:
    page = REAL
    for place, length, put in cuts:
        page = page[:place] + put + page[place + length :]
    assert len(refusal(page, version)) < 120


# ------------------------------------------------------------------------------------------------------------------- bounds
class Counted(Mapping[str, str]):
    """Labels that count how often they are looked at."""

    looks = 0

    def __init__(self, labels: Labels) -> None:
        self._labels = labels

    def __getitem__(self, name: str) -> str:
        type(self).looks += 1
        return self._labels[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._labels)

    def __len__(self) -> int:
        return len(self._labels)


@pytest.mark.parametrize("family", ["vllm:cache_config_info", "vllm:request_success_total", "vllm:time_to_first_token_seconds_bucket"])
def test_the_work_of_reading_grows_with_the_page_and_no_faster(family: str) -> None:
    def looks(number: int) -> int:
        Counted.looks = 0
        many = [(Counted({"engine": str(index), "le": str(index), "finished_reason": str(index % 3)}), 1.0) for index in range(number)]
        running = [(Counted({"engine": str(index % 200)}), 1.0) for index in range(number)]
        with contextlib.suppress(PageError):  # too many ranks: refused on the way
            dialects.read_page({family: many, "vllm:num_requests_running": running}, "0.33.0", 1.0, 1.0)
        return Counted.looks

    assert looks(4_000) <= 5 * looks(1_000)


def test_a_page_of_more_samples_than_a_node_may_have_is_refused() -> None:
    page = b"".join(
        b'vllm:request_success_total{engine="%d",finished_reason="%d"} 1\nvllm:admission_rejections_total{engine="%d",reason="%d"} 1\n'
        % (index % 250, index // 250, index % 250, index // 250)
        for index in range(dialects.SAMPLES_LIMIT // 2 + 1)
    )
    assert refusal(page, "0.33.0") == "the page would give more than 20000 samples"
