"""What recorded pages of routers say: engines, roles, health, counts."""

from __future__ import annotations

import contextlib
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from poise.exporter import metrics as m
from poise.exporter.engines.page import PageError, PageParser, Samples
from poise.exporter.metrics import Metric
from poise.exporter.routers import pages
from poise.exporter.routers.command_line import BACKENDS_LIMIT
from poise.exporter.snapshot import Role, RouterBackend

from tests.recorded import CAPTURES, INFO

P, D = "http://127.0.0.1:18100", "http://127.0.0.1:18200"


def samples(page: str | bytes) -> Samples:
    return PageParser(pages.wanted).parse(page if isinstance(page, bytes) else page.encode())


def recorded(name: str) -> Samples:
    return samples((CAPTURES / f"{name}.prom").read_bytes())


def sums(counts: pages.Counts) -> dict[tuple[Metric, Role], float]:
    return {key: sum(series.values()) for key, series in counts.items()}


@pytest.mark.parametrize(
    ("name", "backends"),
    [
        ("pd-router-workers", (RouterBackend(P, Role.PREFILL, True), RouterBackend(D, Role.DECODE, True))),
        ("fault-decode-killed-router-workers", (RouterBackend(D, Role.DECODE, False), RouterBackend(P, Role.PREFILL, True))),
        (
            "together-router-workers",
            (RouterBackend("http://127.0.0.1:28200", Role.MIXED, True), RouterBackend("http://127.0.0.1:28201", Role.MIXED, True)),
        ),
    ],
)
def test_recorded_lists_of_workers(name: str, backends: tuple[RouterBackend, ...]) -> None:
    assert pages.read_workers((INFO / f"{name}.json").read_bytes()) == backends


def workers(*items: object) -> bytes:
    return json.dumps({"workers": list(items)}).encode()


def test_ranks_of_one_engine_are_healthy_when_all_are() -> None:
    found = pages.read_workers(
        workers(
            {"url": "http://a:8000@0", "worker_type": "regular", "is_healthy": True},
            {"url": "http://a:8000@1", "worker_type": "regular", "is_healthy": False},
        )
    )
    assert found == (RouterBackend("http://a:8000", Role.MIXED, False),)


def test_what_a_list_does_not_tell_is_unknown() -> None:
    assert pages.read_workers(
        workers({"url": "http://a:8000"}, {"url": 7}, "x", {"url": "http://b:1", "worker_type": ["p"], "is_healthy": 1})
    ) == (
        RouterBackend("http://a:8000", Role.UNKNOWN, None),
        RouterBackend("http://b:1", Role.UNKNOWN, None),
    )


def test_a_list_of_workers_is_limited() -> None:
    many = workers(*({"url": f"http://n{number}:1"} for number in range(BACKENDS_LIMIT + 100)))
    assert len(pages.read_workers(many)) == BACKENDS_LIMIT


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"workers": 3}', b"OK", b"[" * 100_000, b'{"workers": ' + b"[" * 100_000, b"\xff"])
def test_what_is_no_list_of_workers_is_refused(body: bytes) -> None:
    with pytest.raises(PageError):
        pages.read_workers(body)


@settings(max_examples=50)
@given(st.binary(max_size=200))
def test_no_answer_breaks_the_reader(body: bytes) -> None:
    with contextlib.suppress(PageError):
        pages.read_workers(body)


@pytest.mark.parametrize(
    ("name", "requests", "errors"),
    [
        ("pd-router-during07", (449, 449), (0, 0)),
        ("hybrid-router-after", (256, 256), (0, 0)),
        ("fault-decode-killed-router-after", (744, 588), (0, 156)),
        ("fault-prefill-killed-router-after", (779, 623), (165, 156)),
    ],
)
def test_recorded_pages_with_prefill_and_decode_apart(name: str, requests: tuple[int, int], errors: tuple[int, int]) -> None:
    page = recorded(name)
    assert pages.tells_disaggregated(page)
    assert sums(pages.read_vllm_router(page, disaggregated=True)) == {
        (m.ROUTER_REQUESTS, Role.PREFILL): requests[0],
        (m.ROUTER_REQUESTS, Role.DECODE): requests[1],
        (m.ROUTER_ERRORS, Role.PREFILL): errors[0],
        (m.ROUTER_ERRORS, Role.DECODE): errors[1],
    }


def test_the_recorded_page_of_a_router_before_whole_engines() -> None:
    """Six requests were answered and three failed, one of them because both engines were known to be gone, after five tries."""
    page = recorded("together-router-after")
    assert not pages.tells_disaggregated(page)
    assert sums(pages.read_vllm_router(page, disaggregated=False)) == {(m.ROUTER_REQUESTS, Role.MIXED): 6, (m.ROUTER_ERRORS, Role.MIXED): 3}


def test_a_router_that_has_done_nothing_has_counted_nothing() -> None:
    empty = samples("# TYPE vllm_router_worker_health gauge\n")
    assert set(sums(pages.read_vllm_router(empty, disaggregated=True)).values()) == {0}
    assert set(sums(pages.read_vllm_router(empty, disaggregated=False)).values()) == {0}


@pytest.mark.parametrize("disaggregated", [True, False])
def test_requests_counted_under_other_names_are_not_taken_for_none(disaggregated: bool) -> None:
    page = samples('vllm_router_pd_requests_total{route="/v1"} 3\nvllm_router_processed_requests_total{worker="w"} 3\n')
    with pytest.raises(PageError, match="names that Poise does not know"):
        pages.read_vllm_router(page, disaggregated=disaggregated)


def test_counts_that_cannot_be_are_left_out() -> None:
    page = samples(
        'vllm_router_requests_total{route="a"} NaN\nvllm_router_requests_total{route="b"} -1\nvllm_router_requests_total{route="c"} 2\n'
    )
    assert sums(pages.read_vllm_router(page, disaggregated=False))[m.ROUTER_REQUESTS, Role.MIXED] == 2


#: Written after production-stack's source (services/metrics_service, routers/metrics_router.py); no page of it was recorded.
PRODUCTION_STACK = """\
router_cpu_usage_percent 3.0
vllm:num_requests_running{server="http://p:8100"} 1.0
vllm:healthy_pods_total{server="http://p:8100"} 1.0
vllm:healthy_pods_total{server="http://d:8200"} 0.0
vllm:num_incoming_requests_total{model="m"} 20.0
"""
BY_ENGINE = """\
vllm:request_latency_seconds_count{server="http://p:8100",model="m",status="success"} 11.0
vllm:request_latency_seconds_count{server="http://d:8200",model="m",status="success"} 7.0
vllm:request_latency_seconds_count{server="http://d:8200",model="m",status="error"} 2.0
vllm:request_errors_total{server="http://d:8200",model="m",error_type="ClientError"} 2.0
"""
TOLD = (RouterBackend("http://p:8100", Role.PREFILL), RouterBackend("http://d:8200", Role.DECODE))


def test_production_stack_with_prefill_and_decode_apart() -> None:
    page = samples(PRODUCTION_STACK + BY_ENGINE)
    assert pages.is_production_stack(page)
    read = pages.read_production_stack(page, TOLD, Role.UNKNOWN)
    assert read.backends == (RouterBackend("http://p:8100", Role.PREFILL, True), RouterBackend("http://d:8200", Role.DECODE, False))
    assert sums(read.counts) == {
        (m.ROUTER_REQUESTS, Role.PREFILL): 11,
        (m.ROUTER_REQUESTS, Role.DECODE): 9,
        (m.ROUTER_ERRORS, Role.PREFILL): 0,
        (m.ROUTER_ERRORS, Role.DECODE): 2,
    }


def test_production_stack_before_whole_engines_counts_what_comes_in() -> None:
    read = pages.read_production_stack(samples(PRODUCTION_STACK), (), Role.MIXED)
    assert {backend.role for backend in read.backends} == {Role.MIXED}
    assert sums(read.counts) == {(m.ROUTER_REQUESTS, Role.MIXED): 20, (m.ROUTER_ERRORS, Role.MIXED): 0}


def test_an_old_production_stack_with_prefill_and_decode_apart_does_not_tell_who_answered() -> None:
    assert pages.read_production_stack(samples(PRODUCTION_STACK), TOLD, Role.UNKNOWN).counts == {}


def test_production_stack_that_lists_no_engine_has_those_of_its_command_line() -> None:
    assert pages.read_production_stack(samples("router_cpu_usage_percent 3.0\n"), TOLD, Role.UNKNOWN).backends == TOLD


_NAMES = sorted(name for name in (pages._WANTED | {"vllm:other"}))
_VALUES = st.one_of(st.floats(), st.integers(-5, 10**12))
_LABELS = st.dictionaries(st.sampled_from(["server", "worker", "route", "error_type", "model"]), st.text(max_size=12), max_size=3)


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(_NAMES), st.lists(st.tuples(_LABELS, _VALUES), max_size=4)), st.booleans())
def test_whatever_a_page_says_counts_are_counts(page: Samples, disaggregated: bool) -> None:
    read: list[pages.Counts] = [pages.read_production_stack(page, TOLD, Role.UNKNOWN).counts]
    with contextlib.suppress(PageError):
        read.append(pages.read_vllm_router(page, disaggregated=disaggregated))
    assert all(math.isfinite(value) and value >= 0 for counts in read for series in counts.values() for value in series.values())
