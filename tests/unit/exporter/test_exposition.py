"""The page: every declared series in place, exactly what prometheus_client reads back, and no value that can spoil it."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.exporter import metrics as m
from poise.exporter.checks.result import CheckResult, State, Status
from poise.exporter.checks.runner import Runner
from poise.exporter.exposition import Build, Exposition, Format, library_collectors, negotiate, node_readings
from poise.exporter.metrics import Kind, Metric
from poise.exporter.nvml import registry
from poise.exporter.nvml.worker import down
from poise.exporter.snapshot import Engine, Gpu, Histogram, NodeSnapshot, Reason, Work
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from tests.full_node import page_engine, snapshot_of
from tests.simulated_cards import START, bench

GOLDEN = Path(__file__).parent / "golden" / "h20x2-tp2.prom"
#: Series that differ between machines and moments: the page is compared without them.
VOLATILE = ("process_", "python_info")
BUILD = Build("1.2.3", "3.11.0")
NOW = START + 0.25


@pytest.fixture(scope="module")
def pair() -> Iterator[NodeSnapshot]:
    """Two H20 with one tensor-parallel engine."""
    with bench("h20x2") as cards:
        yield snapshot_of(cards, [page_engine(0, "tp2-server-after.prom", 2)])


@pytest.fixture(scope="module")
def full() -> Iterator[NodeSnapshot]:
    """Eight H100 with four engines: the budget's node."""
    with bench("h100x8") as cards:
        yield snapshot_of(cards, [page_engine(number, "tp2-server-after.prom", 2) for number in range(4)])


def render(snapshot: NodeSnapshot, form: Format = Format.TEXT) -> str:
    return Exposition(BUILD).render(snapshot, Runner().observe(snapshot).results, NOW, form).decode()


Sample = tuple[str, tuple[tuple[str, str], ...], float]


def read_back(page: str) -> list[Sample]:
    return [
        (sample.name, tuple(sorted(sample.labels.items())), float(sample.value))
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    ]


def test_the_page_is_the_golden_page(pair: NodeSnapshot) -> None:
    page = Exposition(BUILD, library_collectors()).render(pair, Runner().observe(pair).results, NOW).decode()
    stable = "".join(
        f"{line}\n" for line in page.splitlines() if not line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith(VOLATILE)
    )
    if os.environ.get("POISE_UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(stable)
    assert stable == GOLDEN.read_text(), "run with POISE_UPDATE_GOLDEN=1 when the change is meant"


def test_every_series_is_declared_with_its_type_and_labels(full: NodeSnapshot) -> None:
    declared = m.by_name()
    for family in text_string_to_metric_families(render(full)):
        for sample in family.samples:
            metric = declared[sample.name]
            assert family.type == str(metric.kind)
            own = set(sample.labels) - ({"le"} if sample.name.endswith("_bucket") else set())
            assert own == set(metric.label_names), sample.name


def test_every_reading_of_the_snapshot_is_on_the_page_once(full: NodeSnapshot) -> None:
    samples = read_back(render(full))
    assert len({sample[:2] for sample in samples}) == len(samples), "no series stands there twice"
    found = {sample[:2]: sample[2] for sample in samples}
    for gpu in full.gpus:
        for metric, values in gpu.readings.items():
            for labels, value in values.items():
                names = dict(zip(metric.label_names, (str(gpu.index), gpu.uuid, *labels), strict=True))
                assert found[metric.name, tuple(sorted(names.items()))] == pytest.approx(value, rel=1e-12)


def test_the_page_stays_within_its_budget(full: NodeSnapshot) -> None:
    """8 cards × 18 links and 4 engines: at most 4,000 series (the contract)."""
    assert 1500 < len(read_back(render(full))) <= 4000


def test_histograms_are_exactly_as_scraped(pair: NodeSnapshot) -> None:
    page = pair.engines[0].observed.page
    assert page is not None
    histogram = next(iter(page.work[0].histograms[m.ENGINE_TTFT].values()))
    text = render(pair)
    for bound, count in histogram.buckets:
        lines = [
            line
            for line in text.splitlines()
            if line.startswith("poise_engine_time_to_first_token_seconds_bucket") and f'le="{bound}"' in line
        ]
        assert [float(line.rpartition(" ")[2]) for line in lines] == [count]
    assert "_created" not in text


def test_order_is_stable(full: NodeSnapshot) -> None:
    assert render(full) == render(full)
    names = [line.split()[2] for line in render(full).splitlines() if line.startswith("# TYPE")]
    order = [metric.name for metric in m.ALL]
    assert names == sorted(names, key=order.index)


def test_openmetrics_is_read_by_the_strict_parser_with_the_same_samples(full: NodeSnapshot) -> None:
    page = render(full, Format.OPENMETRICS)
    samples = [
        (sample.name, tuple(sorted(sample.labels.items())), float(sample.value))
        for family in openmetrics_families(page)
        for sample in family.samples
    ]
    assert sorted(samples) == sorted(read_back(render(full)))


def test_the_library_adds_its_own_series(pair: NodeSnapshot) -> None:
    for form in Format:
        page = Exposition(BUILD, library_collectors()).render(pair, (), NOW, form).decode()
        assert "\nprocess_resident_memory_bytes " in page
        assert "\nprocess_cpu_seconds_total " in page
        assert "\npython_info{" in page


def test_a_check_is_a_state_set(pair: NodeSnapshot) -> None:
    sets: dict[tuple[str, str, str], list[float]] = {}
    for name, labels, value in read_back(render(pair)):
        if name == "poise_check_status":
            found = dict(labels)
            assert found["status"] in ("pass", "fail", "unknown")
            sets.setdefault((found["check"], found["engine"], found["uuid"]), []).append(value)
    assert sets
    assert all(sorted(values) == [0, 0, 1] for values in sets.values())


def test_of_several_results_with_one_series_the_worst_shows(pair: NodeSnapshot) -> None:
    said = [
        CheckResult("pd_roles", "", status, State.OK, "", deployment=str(status)) for status in (Status.UNKNOWN, Status.FAIL, Status.PASS)
    ]
    states = node_readings(pair, said, Build("1", "3"), 0.0)[m.CHECK_STATUS]
    assert {labels[1] for labels, value in states.items() if value} == {"fail"}


def test_a_card_that_is_down_has_its_identity_and_nothing_else() -> None:
    gpu = Gpu(0, "GPU-1", up=False, down_reason=Reason.GPU_LOST, sampled_at=START)
    page = render(NodeSnapshot("node", START, gpus=(gpu,), gpus_expected=2))
    lines = [line for line in page.splitlines() if "GPU-1" in line and "check" not in line]
    assert {line.partition("{")[0] for line in lines} == {"poise_gpu_info", "poise_gpu_up", "poise_gpu_last_sample_timestamp_seconds"}
    assert "\npoise_node_gpus_visible 0\n" in page
    assert "\npoise_node_gpus_expected 2\n" in page
    assert 'simulated="false"' in page


def test_a_card_that_is_down_says_why_for_each_series_and_has_fewer_than_before(pair: NodeSnapshot) -> None:
    uuid = pair.gpus[0].uuid
    lost = dataclasses.replace(pair, gpus=(down(pair.gpus[0], Reason.GPU_LOST, registry.ALL), pair.gpus[1]), gpu_process_readings={})
    before, after = ([line for line in render(node).splitlines() if f'uuid="{uuid}"' in line] for node in (pair, lost))
    line = f'poise_gpu_unsupported_info{{gpu="0",uuid="{uuid}",metric="%s",reason="%s"}} 1'
    assert line % ("poise_gpu_power_watts", "gpu_lost") in after
    assert line % ("poise_gpu_fan_ratio", "not_supported") in after
    assert len(after) < len(before)


def test_a_quote_in_a_help_text_is_escaped_in_openmetrics_only(pair: NodeSnapshot) -> None:
    assert '"' in m.NODE_INFO.help
    for form, word in ((Format.TEXT, 'simulated="true"'), (Format.OPENMETRICS, r"simulated=\"true\"")):
        (line,) = [line for line in render(pair, form).splitlines() if line.startswith("# HELP poise_node_info ")]
        assert word in line


def test_absence_has_its_reason(pair: NodeSnapshot) -> None:
    line = f'poise_gpu_unsupported_info{{gpu="0",uuid="{pair.gpus[0].uuid}",metric="poise_gpu_fan_ratio",reason="not_supported"}} 1'
    assert line in render(pair).splitlines()


def test_the_age_of_the_snapshot_grows_with_the_scrape() -> None:
    snapshot = NodeSnapshot("node", START)
    assert "\npoise_snapshot_age_seconds 7.5\n" in Exposition(BUILD).render(snapshot, (), START + 7.5).decode()
    assert "\npoise_snapshot_age_seconds 0\n" in Exposition(BUILD).render(snapshot, (), START - 5).decode()


# ------------------------------------------------------------------------------------------------------------ bad values
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1", None, object()])
def test_a_bad_value_costs_its_own_series_only_and_is_logged_once(value: object, caplog: pytest.LogCaptureFixture) -> None:
    gpu = Gpu(0, "GPU-1", readings={m.GPU_CLOCK: {("sm",): value, ("memory",): 5.0}, m.GPU_POWER: {(): value}})  # type: ignore[dict-item]  # that is the point
    exposition = Exposition(BUILD)
    snapshot = NodeSnapshot("node", START, gpus=(gpu,))
    with caplog.at_level(logging.WARNING):
        page = exposition.render(snapshot, (), NOW).decode()
        assert exposition.render(snapshot, (), NOW).decode() == page
    assert 'poise_gpu_clock_hertz{gpu="0",uuid="GPU-1",clock="memory"} 5\n' in page
    assert 'clock="sm"' not in page
    assert "poise_gpu_power_watts" not in page
    assert "nan" not in page.lower().replace("nanosecond", "")
    assert len([record for record in caplog.records if "poise_gpu_clock_hertz" in record.getMessage()]) == 1


def test_wrong_labels_cost_their_own_series_only() -> None:
    gpu = Gpu(0, "GPU-1", readings={m.GPU_CLOCK: {("sm", "more"): 1.0, (): 2.0, ("memory",): 5.0}})
    page = Exposition(BUILD).render(NodeSnapshot("node", START, gpus=(gpu,)), (), NOW).decode()
    assert [line for line in page.splitlines() if line.startswith("poise_gpu_clock_hertz")] == [
        'poise_gpu_clock_hertz{gpu="0",uuid="GPU-1",clock="memory"} 5'
    ]


def test_a_broken_histogram_is_left_out_whole(pair: NodeSnapshot) -> None:
    engine = pair.engines[0]
    page = engine.observed.page
    assert page is not None
    broken = Histogram((("0.1", 1.0), ("+Inf", math.nan)), 1.0, 1.0)
    work = dataclasses.replace(page.work[0], histograms={m.ENGINE_TTFT: {(): broken}})
    text = render(_with_work(pair, engine, (work,)))
    assert "poise_engine_time_to_first_token_seconds" not in text


def _with_work(snapshot: NodeSnapshot, engine: Engine, work: tuple[Work, ...]) -> NodeSnapshot:
    page = engine.observed.page
    assert page is not None
    observed = dataclasses.replace(engine.observed, page=dataclasses.replace(page, work=work))
    return dataclasses.replace(snapshot, engines=(dataclasses.replace(engine, observed=observed),))


@given(st.text(), st.floats() | st.integers())
def test_any_label_and_number_is_read_back(text: str, value: float) -> None:
    """Whatever another process may put into a name: quotes, line feeds, backslashes, half characters."""
    gpu = Gpu(0, "GPU-1", readings={m.GPU_CLOCK: {(text,): value}})
    page = Exposition(BUILD).render(NodeSnapshot("node", START, gpus=(gpu,)), (), NOW).decode()
    found = [sample for sample in read_back(page) if sample[0] == "poise_gpu_clock_hertz"]
    if not math.isfinite(value):
        assert found == []
    else:
        ((_, labels, number),) = found
        assert dict(labels)["clock"] == text.encode("utf-8", "replace").decode()
        assert number == float(value)


NUMBERS = st.floats() | st.integers() | st.none() | st.text(max_size=3)


@given(st.dictionaries(st.sampled_from(m.ALL), st.dictionaries(st.lists(st.text(max_size=4), max_size=4).map(tuple), NUMBERS, max_size=3)))
def test_no_readings_break_the_page(readings: dict[Metric, dict[tuple[str, ...], float]]) -> None:
    gpu = Gpu(0, "GPU-1", readings=readings)
    list(text_string_to_metric_families(Exposition(BUILD).render(NodeSnapshot("node", START, gpus=(gpu,)), (), NOW).decode()))


# ------------------------------------------------------------------------------------------------------------ negotiation
@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", Format.TEXT),
        ("*/*", Format.TEXT),
        ("text/html", Format.TEXT),
        ("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", Format.OPENMETRICS),
        ("application/openmetrics-text; version=0.0.1; charset=utf-8", Format.OPENMETRICS),
        ("text/plain;version=0.0.4;q=0.9,application/openmetrics-text;version=1.0.0;q=0.5", Format.TEXT),
        ("application/openmetrics-text;version=x", Format.TEXT),
        ("application/openmetrics-text;version=2.0.0,text/plain;q=0.2", Format.TEXT),
        ("application/openmetrics-text;q=0", Format.TEXT),
        ("application/openmetrics-text;q=high", Format.TEXT),
        ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited", Format.TEXT),
        (";;;,,,q=", Format.TEXT),
    ],
)
def test_text_unless_openmetrics_is_asked_for_properly(accept: str, form: Format) -> None:
    assert negotiate(accept) is form


@given(st.text())
def test_no_accept_header_breaks_the_negotiation(accept: str) -> None:
    assert negotiate(accept) in Format


def test_counters_have_their_suffix_and_gauges_do_not() -> None:
    for metric in m.ALL:
        assert metric.name.endswith("_total") is (metric.kind is Kind.COUNTER), metric.name
