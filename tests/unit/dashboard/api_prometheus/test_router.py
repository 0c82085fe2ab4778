"""The routes without a Prometheus beside them: rules, alerts, targets, limits, and what each error becomes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from poise.dashboard.api_prometheus import writing
from poise.dashboard.api_prometheus.parameters import EARLIEST, FORM_LIMIT, LATEST
from poise.dashboard.api_prometheus.router import create_router
from poise.dashboard.api_prometheus.sources import ActiveAlert, AlertingRule, NoTargets, Rule, RuleGroup
from poise.history.promql.engine import InstantVector, Matrix, Result, Sample, Samples
from poise.history.promql.errors import BadQuery, ExecutionError, QueryError, QueryTimeout, Unavailable
from poise.history.promql.labels import Labels
from poise.history.querier.door import TRUNCATED, Answer
from poise.history.scrape import Scrape
from poise.history.scraping import TargetStatus
from poise.history.targets import parse_target
from poise.history.text_format import Metadata
from starlette.testclient import TestClient

UP = InstantVector(1_500, (Sample((("__name__", "up"), ("job", "a")), 1.0), Sample((("__name__", "up"), ("job", "ü")), 0.0)))


class Scripted:
    """A querier that gives what it was told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.result: Result = UP
        self.error: QueryError | None = None
        self.asked: list[tuple[object, ...]] = []

    async def instant(self, query: str, at: float, *, timeout: float | None = None) -> Answer[Result]:
        self._ask(query, at, timeout)
        return Answer(self.result, ("half of it",))

    async def range(self, query: str, start: float, end: float, step: float, *, timeout: float | None = None) -> Answer[Matrix]:
        self._ask(query, start, end, step, timeout)
        assert isinstance(self.result, Matrix)
        return Answer(self.result)

    async def series(self, matches: Sequence[str], start: float, end: float, *, limit: int = 0) -> Answer[list[Labels]]:
        self._ask(list(matches), start, end, limit)
        return Answer([UP.samples[0].labels])

    async def label_names(self, matches: Sequence[str], start: float, end: float, *, limit: int = 0) -> Answer[list[str]]:
        self._ask(list(matches), start, end, limit)
        return Answer(["job"])

    async def label_values(self, name: str, matches: Sequence[str], start: float, end: float, *, limit: int = 0) -> Answer[list[str]]:
        self._ask(name, list(matches), start, end, limit)
        return Answer(["a"], (TRUNCATED,))

    async def metadata(self, metric: str = "", *, limit: int = 0) -> Answer[Mapping[str, tuple[Metadata, ...]]]:
        self._ask(metric, limit)
        return Answer({"up": (Metadata("gauge", "Up."), Metadata("gauge", "Other."))})

    async def close(self) -> None:
        """Nothing is open."""

    def _ask(self, *words: object) -> None:
        self.asked.append(words)
        if self.error is not None:
            raise self.error


RULE = Rule("EngineDown", "up == 0", {"severity": "critical"}, "ok", "", 0.001, 1.5)
ALERT = ActiveAlert({"alertname": "EngineDown"}, {"summary": "Down"}, "firing", 1_700_000_000.25, 0.0, 1_700_000_060.0)
GROUPS = (
    RuleGroup(
        "engine", "engine.yml", 15.0, (AlertingRule(RULE, "firing", 60.0, 300.0, {"summary": "Down"}, (ALERT,)),), last_evaluation=1.5
    ),
    RuleGroup(
        "recording",
        "recording.yml",
        30.0,
        (replace(RULE, name="poise:x", labels={}, health="err", last_error="boom", last_evaluation=None),),
    ),
)
TARGET = TargetStatus(parse_target("n1=http://n1:9747"), Scrape(1.5, 0.25, error="refused"))


class Rules:
    def groups(self) -> Sequence[RuleGroup]:
        return GROUPS


@pytest.fixture
def querier() -> Scripted:
    return Scripted()


@pytest.fixture
def client(querier: Scripted) -> TestClient:
    app = FastAPI()
    app.include_router(create_router(querier, now=lambda: 99.5, rules=Rules(), targets=NoTargets((TARGET,))))
    return TestClient(app)


def data(client: TestClient, path: str) -> Any:
    answer = client.get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.text
    assert answer.json()["status"] == "success"
    return answer.json()["data"]


def test_a_query_has_now_for_its_time_and_warnings_are_passed_on(client: TestClient, querier: Scripted) -> None:
    answer = client.get("/api/v1/query", params={"query": "up", "limit": "1", "stats": "all"})
    assert answer.text == (
        '{"status":"success","data":{"resultType":"vector","result":[{"metric":{"__name__":"up","job":"a"},"value":[1.500,"1"]}]},'
        f'"warnings":["half of it","{TRUNCATED}"]}}'
    )
    assert answer.headers["cache-control"] == "no-store"
    assert querier.asked == [("up", 99.5, None)]


def test_a_form_comes_before_the_url(client: TestClient, querier: Scripted) -> None:
    client.post("/api/v1/query?query=old&time=5&timeout=2s", data={"query": 'up{a="ü&="}'})
    assert querier.asked == [('up{a="ü&="}', 5.0, 2.0)]
    client.post("/api/v1/query?query=only", content=b"{}", headers={"Content-Type": "application/json"})
    assert querier.asked[1][0] == "only"


def test_a_range_query_is_written_as_a_matrix(client: TestClient, querier: Scripted) -> None:
    times = np.arange(6_000, dtype=np.int64) * 1_000
    querier.result = Matrix((Samples((("a", "1"),), times, times / 1e3), Samples((("a", "2"),), times[:1], times[:1] / 1e3)))
    found = data(client, "query_range?query=up&start=0&end=100&step=1m")
    assert [len(row["values"]) for row in found["result"]] == [6_000, 1]
    assert found["result"][0]["values"][7] == [7, "7"]
    assert querier.asked == [("up", 0.0, 100.0, 60.0, None)]
    assert len(data(client, "query_range?query=up&start=0&end=100&step=1m&limit=1")["result"]) == 1


def test_a_result_that_no_browser_could_show_is_refused(client: TestClient, querier: Scripted) -> None:
    times = np.zeros(2_000_001, dtype=np.int64)
    querier.result = Matrix((Samples((), times, times / 1.0),))
    answer = client.get("/api/v1/query_range", params={"query": "up", "start": "0", "end": "1", "step": "1"})
    assert (answer.status_code, answer.json()["errorType"]) == (422, "execution")


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (BadQuery("no"), 400, "bad_data"),
        (ExecutionError("no"), 422, "execution"),
        (QueryTimeout("no"), 503, "timeout"),
        (Unavailable("no"), 503, "unavailable"),
        (QueryError("no"), 500, "internal"),
    ],
)
def test_each_kind_of_error_has_its_status(client: TestClient, querier: Scripted, error: QueryError, status: int, kind: str) -> None:
    querier.error = error
    answer = client.get("/api/v1/query", params={"query": "up"})
    assert (answer.status_code, answer.json()) == (status, {"status": "error", "errorType": kind, "error": "no"})


def test_what_costs_too_much_to_read_is_refused(client: TestClient) -> None:
    large = client.post("/api/v1/query", data={"query": "x" * FORM_LIMIT})
    assert (large.status_code, large.json()["error"]) == (400, f"the form is larger than {FORM_LIMIT} bytes")
    many = client.get("/api/v1/series?" + "&".join(["match[]=a"] * 1_001))
    assert (many.status_code, many.json()["error"]) == (400, "more than 1000 parameters")
    assert client.get("/api/v1/query?query=up&lookback_delta=1m").status_code == 400


def test_series_and_labels_without_times_mean_everything(client: TestClient, querier: Scripted) -> None:
    assert data(client, "series?match[]=up&match[]=x&limit=3") == [{"__name__": "up", "job": "a"}]
    assert data(client, "labels?start=5") == ["job"]
    assert data(client, "label/job/values?match[]=up") == ["a"]
    assert querier.asked == [(["up", "x"], EARLIEST, LATEST, 3), ([], 5.0, LATEST, 0), ("job", ["up"], EARLIEST, LATEST, 0)]
    assert client.get("/api/v1/label/a.b/values").status_code == 400
    assert client.post("/api/v1/label/job/values").status_code == 404


def test_metadata_and_its_limits(client: TestClient, querier: Scripted) -> None:
    assert data(client, "metadata?metric=up&limit=2&limit_per_metric=1") == {"up": [{"type": "gauge", "help": "Up.", "unit": ""}]}
    assert querier.asked == [("up", 2)]
    assert client.get("/api/v1/metadata?limit=-1").json()["error"] == "limit must be non-negative"


@pytest.mark.parametrize(("path", "function"), [("rules", "group"), ("alerts", "alert")])
def test_the_json_of_many_alerts_is_not_made_where_everything_else_waits(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, path: str, function: str
) -> None:
    made, inside = getattr(writing, function), []

    def noted(*words: object, **named: object) -> object:
        with contextlib.suppress(RuntimeError):
            inside.append(asyncio.get_running_loop())
        return made(*words, **named)

    monkeypatch.setattr(writing, function, noted)
    assert data(client, path)
    assert inside == []


def test_rules_alerts_and_their_filters(client: TestClient) -> None:
    groups = data(client, "rules")["groups"]
    assert [(group["name"], group["file"], group["interval"]) for group in groups] == [
        ("engine", "engine.yml", 15.0),
        ("recording", "recording.yml", 30.0),
    ]
    assert groups[0]["rules"][0] == {
        "state": "firing",
        "name": "EngineDown",
        "query": "up == 0",
        "duration": 60.0,
        "keepFiringFor": 300.0,
        "labels": {"severity": "critical"},
        "annotations": {"summary": "Down"},
        "alerts": [
            {
                "labels": {"alertname": "EngineDown"},
                "annotations": {"summary": "Down"},
                "state": "firing",
                "activeAt": "2023-11-14T22:13:20.25Z",
                "keepFiringSince": "2023-11-14T22:14:20Z",
                "value": "0e+00",
            }
        ],
        "health": "ok",
        "evaluationTime": 0.001,
        "lastEvaluation": "1970-01-01T00:00:01.5Z",
        "type": "alerting",
    }
    assert groups[1]["rules"][0]["lastError"] == "boom"
    assert groups[1]["rules"][0]["lastEvaluation"] == "0001-01-01T00:00:00Z"
    assert data(client, "alerts")["alerts"] == groups[0]["rules"][0]["alerts"]
    for query, names in (
        ("type=record", ["recording"]),
        ("type=alert", ["engine"]),
        ("rule_name[]=poise:x", ["recording"]),
        ("rule_group[]=engine", ["engine"]),
        ("file[]=none.yml", []),
    ):
        assert [group["name"] for group in data(client, f"rules?{query}")["groups"]] == names
    assert "alerts" not in data(client, "rules?exclude_alerts=true")["groups"][0]["rules"][0]


def test_targets_and_who_answers(client: TestClient) -> None:
    (found,) = data(client, "targets")["activeTargets"]
    assert found["labels"] == {"instance": "n1", "job": "poise"}
    assert (found["health"], found["lastError"], found["scrapeInterval"], found["scrapeTimeout"]) == ("down", "refused", "5s", "4s")
    assert found["lastScrape"] == "1970-01-01T00:00:01.5Z"
    assert data(client, "targets?state=dropped") == {"activeTargets": [], "droppedTargets": []}
    assert data(client, "targets?scrapePool=other")["activeTargets"] == []
    built = data(client, "status/buildinfo")
    assert built["application"] == "Poise"
    assert built["version"].startswith("2.")


def test_what_is_not_served_is_told_as_json(client: TestClient) -> None:
    answer = client.get("/api/v1/admin/tsdb/snapshot")
    assert (answer.status_code, answer.json()["errorType"]) == (404, "not_found")
