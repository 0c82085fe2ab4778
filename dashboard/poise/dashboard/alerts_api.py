"""Our own routes about alerts: why one fires, and what changed in the last thirty days. Reads only.

GET /api/poise/v1/alerts/explain/NAME?engine=…&time=…   the clauses of the alert's expression with their present values
GET /api/poise/v1/alerts/history?start=…&end=…&name=…   changes of state, oldest first
GET /api/poise/v1/alerts/notifications                  how it goes with each Alertmanager
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from poise.alerts.evaluation.active import Transition
from poise.alerts.explain import Clause
from poise.alerts.notification.notifier import LineStatus
from poise.dashboard.alert_explained import explained
from poise.dashboard.api_prometheus.sources import AlertingRule, RulesSource
from poise.dashboard.json_answers import answer
from poise.history import moments
from poise.history.promql.errors import BadQuery, QueryError
from poise.history.querier.door import Querier

#: Changes of one answer.
_MOST_CHANGES = 5_000
#: Seconds of history where no start is given.
_DEFAULT_HISTORY = 86_400.0
#: Parameters that are no label of the series to be explained.
_NOT_LABELS = frozenset({"time"})

History = Callable[[float, float, str | None], Sequence[Transition]]


def create_router(
    querier: Querier, rules: RulesSource, *, now: Callable[[], float], history: History, notifications: Callable[[], Sequence[LineStatus]]
) -> APIRouter:
    """The routes. `history` gives the changes of state between two moments (Unix seconds), of one alert when it is named."""
    router = APIRouter(prefix="/api/poise/v1/alerts", include_in_schema=False)

    @router.get("/explain/{name}")
    async def explanation(name: str, request: Request) -> JSONResponse:
        try:
            given = request.query_params.get("time")
            where = {key: value for key, value in request.query_params.items() if key not in _NOT_LABELS}
            at, found = await explained(name, querier, rules, None if given is None else _time(given, 0.0), where, now=now())
        except QueryError as error:
            return answer({"error": str(error)}, 400 if isinstance(error, BadQuery) else 503)
        if not found:
            return answer({"error": f"no alert is called {name}"}, 404)
        return answer({"alert": name, "time": at, "where": where, "rules": [_rule(one, clause) for one, clause in found]})

    @router.get("/history")
    async def changes(request: Request) -> JSONResponse:
        given = request.query_params
        try:
            end = _time(given.get("end"), now())
            start = _time(given.get("start"), end - _DEFAULT_HISTORY)
        except BadQuery as error:
            return answer({"error": str(error)}, 400)
        found = await asyncio.to_thread(history, start, end, given.get("name"))  # from a file
        return answer(
            {
                "start": start,
                "end": end,
                "changes": [_change(one) for one in found[-_MOST_CHANGES:]],
                "left_out": max(0, len(found) - _MOST_CHANGES),
            }
        )

    @router.get("/notifications")
    async def lines() -> JSONResponse:
        return answer({"alertmanagers": [asdict(line) for line in notifications()]})

    return router


def _time(text: str | None, default: float) -> float:
    try:
        return default if text is None else moments.unix_seconds(text)
    except ValueError as error:
        raise BadQuery(str(error)) from None


def _rule(one: AlertingRule, clause: Clause) -> dict[str, object]:
    return {
        "state": one.state,
        "for": one.duration,
        "keep_firing_for": one.keep_firing_for,
        "error": one.rule.last_error,
        "lacks": one.rule.lacks,
        "alerts": [asdict(alert) for alert in one.alerts],
        "clause": asdict(clause),
    }


def _change(one: Transition) -> dict[str, object]:
    return {
        "time": one.at / 1000,
        "labels": dict(one.labels),
        "before": one.before.value if one.before else None,
        "after": one.after.value if one.after else None,
        "value": one.value,
        "annotations": dict(one.annotations),
    }
