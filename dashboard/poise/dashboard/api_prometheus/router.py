"""The routes of Prometheus' HTTP API, version 1, as far as Grafana and promtool need them. Reads only.

GET, POST /api/v1/query            GET, POST /api/v1/series                  GET /api/v1/metadata
GET, POST /api/v1/query_range      GET, POST /api/v1/labels                  GET /api/v1/rules  /api/v1/alerts  /api/v1/targets
                                   GET /api/v1/label/NAME/values             GET /api/v1/status/buildinfo

Owns paths, status codes and limits. What series are is the querier's, what an answer looks like is writing.py's. `stats` is taken and gives
none. Compression is the application's middleware.
"""

from __future__ import annotations

import asyncio
import platform
import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import Response
from poise.dashboard.api_prometheus import writing
from poise.dashboard.api_prometheus.parameters import EARLIEST, LATEST, Parameters, parameters
from poise.dashboard.api_prometheus.sources import AlertingRule, NoRules, NoTargets, RuleGroup, RulesSource, TargetsSource
from poise.exporter.version import installed_version
from poise.history.promql.engine import Result
from poise.history.promql.errors import BadQuery, ExecutionError, QueryError, QueryTimeout, Unavailable
from poise.history.querier.door import TRUNCATED, Answer, Querier

#: The Prometheus whose API this is, for clients that ask what they may use: our tests compare with it. Grafana reads it.
SPOKEN_VERSION = "2.42.0"
#: Values of one answer, of 20 bytes each as JSON; 11,000 points of 180 series.
MOST_VALUES = 2_000_000
#: From so many values on an answer is written in a thread, because that takes longer than the event loop may stand still.
_WRITTEN_IN_THREAD = 5_000
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
#: Kind of error → Prometheus' errorType and HTTP status (web/api/v1/api.go, respondError).
_STATUS: dict[type[QueryError], tuple[str, int]] = {
    BadQuery: ("bad_data", 400),
    ExecutionError: ("execution", 422),
    QueryTimeout: ("timeout", 503),
    Unavailable: ("unavailable", 503),
}

Found = TypeVar("Found")


def create_router(
    querier: Querier, *, now: Callable[[], float], rules: RulesSource | None = None, targets: TargetsSource | None = None
) -> APIRouter:
    """The routes over a querier. `now` is Unix seconds; without `rules` or `targets` their lists are empty."""
    router = APIRouter(prefix="/api/v1")
    api = _Api(querier, now, rules or NoRules(), targets or NoTargets())
    both, get = ["GET", "POST"], ["GET"]
    for path, methods, ask in (
        ("/query", both, api.query),
        ("/query_range", both, api.query_range),
        ("/series", both, api.series),
        ("/labels", both, api.labels),
        ("/label/{name}/values", get, api.label_values),
        ("/metadata", get, api.metadata),
        ("/rules", get, api.rules),
        ("/alerts", get, api.alerts),
        ("/targets", get, api.targets),
        ("/status/buildinfo", get, api.buildinfo),
    ):
        router.add_api_route(path, _answering(ask), methods=methods, include_in_schema=False)
    router.add_api_route("/{path:path}", _nothing_there, methods=both, include_in_schema=False)
    return router


def _answering(ask: Callable[[Request, Parameters], Awaitable[str]]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            return _document(await ask(request, await parameters(request)))
        except QueryError as error:
            kind, status = next((known for own, known in _STATUS.items() if isinstance(error, own)), ("internal", 500))
            return _document(writing.failure(kind, str(error)), status)

    return answer


async def _nothing_there(path: str) -> Response:
    return _document(writing.failure("not_found", f"/api/v1/{path} is not served here"), 404)


def _document(text: str, status: int = 200) -> Response:
    # Label values may hold halves of surrogate pairs only if a page did, which UTF-8 forbids: nothing here can fail to encode.
    return Response(text, status_code=status, media_type="application/json", headers={"Cache-Control": "no-store"})


class _Api:
    """One method for each route: a request's parameters in, the document out. Each raises QueryError."""

    def __init__(self, querier: Querier, now: Callable[[], float], rules: RulesSource, targets: TargetsSource) -> None:
        self._querier = querier
        self._now = now
        self._rules = rules
        self._targets = targets

    async def query(self, _request: Request, given: Parameters) -> str:
        at, limit, timeout = given.time("time", self._now()), given.limit(), given.timeout()
        return await _written(await self._querier.instant(given.query(), at, timeout=timeout), limit)

    async def query_range(self, _request: Request, given: Parameters) -> str:
        asked, limit, timeout = given.range(), given.limit(), given.timeout()
        return await _written(await self._querier.range(given.query(), asked.start, asked.end, asked.step, timeout=timeout), limit)

    async def series(self, _request: Request, given: Parameters) -> str:
        return writing.series(await self._querier.series(given.every("match[]"), *_times(given), limit=given.limit()))

    async def labels(self, _request: Request, given: Parameters) -> str:
        return writing.texts(await self._querier.label_names(given.every("match[]"), *_times(given), limit=given.limit()))

    async def label_values(self, request: Request, given: Parameters) -> str:
        name = request.path_params["name"]
        if not _LABEL_NAME.fullmatch(name):
            raise BadQuery(f'invalid label name: "{name}"')
        return writing.texts(await self._querier.label_values(name, given.every("match[]"), *_times(given), limit=given.limit()))

    async def metadata(self, _request: Request, given: Parameters) -> str:
        found = await self._querier.metadata(given.text("metric"), limit=given.limit())
        return writing.metadata(found, given.limit("limit_per_metric"))

    async def rules(self, _request: Request, given: Parameters) -> str:
        kind = given.text("type").lower()
        if kind not in ("", "alert", "record"):
            raise BadQuery(f'invalid parameter "type": not supported value "{kind}"')
        groups = self._rules.groups()
        with_alerts = given.text("exclude_alerts").lower() not in ("1", "t", "true")

        def written() -> str:
            kept = [_filtered(group, kind, given) for group in groups]
            return writing.success(
                writing.text({"groups": [writing.group(one, with_alerts=with_alerts) for one in kept if one is not None]})
            )

        return await asyncio.to_thread(written)  # of thousands of alerts it takes a while

    async def alerts(self, _request: Request, _given: Parameters) -> str:
        rules = [rule for group in self._rules.groups() for rule in group.rules if isinstance(rule, AlertingRule)]

        def written() -> str:
            return writing.success(writing.text({"alerts": [writing.alert(active) for rule in rules for active in rule.alerts]}))

        return await asyncio.to_thread(written)

    async def targets(self, _request: Request, given: Parameters) -> str:
        state, job = given.text("state").lower(), given.text("scrapePool")
        active = [writing.target(one) for one in self._targets.status() if job in ("", one.target.job)] if state != "dropped" else []
        return writing.success(writing.text({"activeTargets": active, "droppedTargets": []}))

    async def buildinfo(self, _request: Request, _given: Parameters) -> str:
        own = {"version": SPOKEN_VERSION, "revision": "", "branch": "", "buildUser": "", "buildDate": "", "goVersion": ""}
        return writing.success(
            writing.text({**own, "application": "Poise", "poiseVersion": installed_version(), "pythonVersion": platform.python_version()})
        )


def _times(given: Parameters) -> tuple[float, float]:
    start, end = given.time("start", EARLIEST), given.time("end", LATEST)
    return max(start, EARLIEST), min(end, LATEST)


async def _written(answer: Answer[Result], limit: int) -> str:
    count = writing.points(answer.data)
    if count > MOST_VALUES:
        raise ExecutionError(f"the result has {count} values, more than {MOST_VALUES}; ask for a longer step or fewer series")
    if count < _WRITTEN_IN_THREAD:
        data, cut = writing.result(answer.data, limit)
    else:
        data, cut = await asyncio.to_thread(writing.result, answer.data, limit)
    return writing.success(data, (*answer.warnings, TRUNCATED) if cut else answer.warnings)


def _filtered(group: RuleGroup, kind: str, given: Parameters) -> RuleGroup | None:
    """The group with the rules that were asked for, None without any."""
    names, groups, files = given.every("rule_name[]"), given.every("rule_group[]"), given.every("file[]")
    if (groups and group.name not in groups) or (files and group.file not in files):
        return None
    kept = [
        rule
        for rule in group.rules
        if kind in ("", "alert" if isinstance(rule, AlertingRule) else "record")
        and (not names or (rule.rule.name if isinstance(rule, AlertingRule) else rule.name) in names)
    ]
    if not kept:
        return None
    return RuleGroup(group.name, group.file, group.interval, kept, group.limit, group.evaluation_seconds, group.last_evaluation)
