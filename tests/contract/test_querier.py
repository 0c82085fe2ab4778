"""Both queriers, the embedded one and the one over HTTP, on the same series: every question has the same answer."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from poise.history.promql.engine import InstantVector, Matrix, ScalarValue, StringValue
from poise.history.promql.errors import BadQuery, ExecutionError, QueryError
from poise.history.promql.evaluate import Semantics, Settings
from poise.history.querier.door import TRUNCATED, Answer, Querier
from poise.history.querier.embedded import EmbeddedQuerier
from poise.history.querier.prometheus import PrometheusQuerier

from tests.promql_oracle import BASE, LENGTH, prometheus, series, store

START, END = BASE / 1000 + 0.007, (BASE + LENGTH) / 1000 + 0.007
AT = START + 1200


@dataclass(frozen=True)
class Both:
    embedded: EmbeddedQuerier
    remote: PrometheusQuerier


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    stored = series()
    with prometheus(tmp_path_factory.mktemp("querier"), stored) as url:
        settings = Settings(semantics=Semantics.PROMETHEUS_2)
        embedded = EmbeddedQuerier(store(stored), clock=time.monotonic, settings=settings)
        yield Both(embedded, PrometheusQuerier(f"{url}/"))
        asyncio.run(embedded.close())


@pytest.fixture(params=["embedded", "remote"])
def querier(both: Both, request: pytest.FixtureRequest) -> Querier:
    found: Querier = getattr(both, request.param)
    return found


def instant(querier: Querier, query: str, at: float = AT) -> object:
    return asyncio.run(querier.instant(query, at)).data


def test_an_instant_vector(querier: Querier) -> None:
    found = instant(querier, "sort(limit)")
    assert isinstance(found, InstantVector)
    assert found.at == round(AT * 1000)
    assert {sample.labels for sample in found.samples} == {(("__name__", "limit"), ("job", job)) for job in ("api", "batch")}
    assert [sample.value for sample in found.samples] == sorted(sample.value for sample in found.samples)


def test_a_scalar_a_string_and_odd_numbers(querier: Querier) -> None:
    assert instant(querier, "1.5") == ScalarValue(round(AT * 1000), 1.5)
    assert instant(querier, '"text"') == StringValue(round(AT * 1000), "text")
    values = [instant(querier, text) for text in ("-1/0", "1/0", "0/0")]
    assert [one.value for one in values if isinstance(one, ScalarValue)][:2] == [-math.inf, math.inf]
    assert isinstance(values[2], ScalarValue)
    assert math.isnan(values[2].value)
    empty = instant(querier, "no_such_series")
    assert isinstance(empty, InstantVector)
    assert empty.samples == ()


def test_a_range_vector_and_a_range_query(querier: Querier) -> None:
    raw = instant(querier, 'requests_total{job="api",instance="a"}[10m]')
    assert isinstance(raw, Matrix)
    assert len(raw.series[0].times) > 20
    found = asyncio.run(querier.range("sum by (job) (rate(requests_total[2m]))", START, END, 60)).data
    assert [row.labels for row in found.series] == [(("job", "api"),), (("job", "batch"),)]
    assert (found.series[0].times[1:] - found.series[0].times[:-1]).tolist() == [60_000] * (len(found.series[0].times) - 1)


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("sum(", BadQuery),
        ("rate(depth)", BadQuery),
        ("depth * on (job) depth", ExecutionError),
        ("label_replace(depth, 'job', 'x', '', '')", ExecutionError),
    ],
)
def test_each_kind_of_error_is_the_same_on_both_sides(querier: Querier, query: str, kind: type[QueryError]) -> None:
    with pytest.raises(kind):
        instant(querier, query)


def test_wrong_ranges_are_refused(querier: Querier) -> None:
    for start, end, step in ((END, START, 60), (START, END, 0), (START, START + 1e6, 1)):
        with pytest.raises(BadQuery):
            asyncio.run(querier.range("depth", start, end, step))


def test_series_label_names_and_values(querier: Querier) -> None:
    found = asyncio.run(querier.series(['info{job="batch"}', 'limit{job=~"a.*"}'], START, END)).data
    assert found == [
        (("__name__", "info"), ("instance", "a"), ("job", "batch"), ("version", "1.3"), ("ü", 'ä\n"\\')),
        (("__name__", "limit"), ("job", "api")),
    ]
    assert asyncio.run(querier.label_names(["latency_bucket"], START, END)).data == ["__name__", "job", "le"]
    assert asyncio.run(querier.label_names([], START, END)).data == ["__name__", "instance", "job", "le", "version", "zone", "ü"]
    assert asyncio.run(querier.label_values("le", [], START, END)).data == ["+Inf", "0.1", "0.5", "1", "2.5"]
    assert asyncio.run(querier.label_values("instance", ['info{job="api"}'], START, END)).data == ["a", "b"]
    names = asyncio.run(querier.label_values("__name__", [], START, END)).data
    assert names == ["depth", "info", "latency_bucket", "limit", "odd", "ratio", "requests_total"]
    assert asyncio.run(querier.label_values("nothing", [], START, END)).data == []


def test_limits_cut_and_say_so(querier: Querier) -> None:
    cut = asyncio.run(querier.series(["depth"], START, END, limit=4))
    assert (len(cut.data), cut.warnings) == (4, (TRUNCATED,))
    assert asyncio.run(querier.label_values("le", [], START, END, limit=2)) == Answer(["+Inf", "0.1"], (TRUNCATED,))
    assert asyncio.run(querier.label_names(["latency_bucket"], START, END, limit=3)).warnings == ()


def test_selectors_that_are_none_are_refused(querier: Querier) -> None:
    for match in ("rate(depth[1m])", "{", '{job=~".*"}'):
        with pytest.raises(BadQuery):
            asyncio.run(querier.series([match], START, END))
    with pytest.raises(BadQuery):
        asyncio.run(querier.series([], START, END))


def test_both_name_the_same_series(both: Both) -> None:
    for match in ("depth", '{job="api"}', '{__name__=~"r.*",instance!="b"}'):
        ours, theirs = (asyncio.run(querier.series([match], START, END)).data for querier in (both.embedded, both.remote))
        assert ours == theirs
