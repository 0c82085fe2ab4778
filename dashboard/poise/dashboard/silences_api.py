"""Our routes about the alerts that are on and who keeps them quiet: silences through Alertmanager, acknowledgements of this dashboard alone.

GET    /api/poise/v1/alerts                 every alert that is pending or firing: acknowledged by whom, silenced and inhibited by what
GET    /api/poise/v1/silences               pending and active silences of all Alertmanagers
POST   /api/poise/v1/silences               makes one (needs the token)          DELETE /api/poise/v1/silences/ID           ends it
POST   /api/poise/v1/acknowledgements       takes note of an alert (token)       DELETE /api/poise/v1/acknowledgements/ID   takes that back

What a request may hold stands in alert_requests.py, who may make one in changes.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from functools import wraps

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from poise.alerts.evaluation.acknowledgements import Acknowledgement, Acknowledgements, TooMany, identifier
from poise.alerts.notification.alertmanager import Matcher
from poise.alerts.notification.payload import sent_labels
from poise.alerts.notification.silencing import Known, Problem, Silencing, Suppression
from poise.dashboard import alert_requests
from poise.dashboard.api_prometheus.sources import ActiveAlert, AlertingRule, RulesSource
from poise.dashboard.changes import Gate, Refusal
from poise.dashboard.json_answers import answer
from poise.history.promql.labels import Labels, labels

#: What an acknowledgement is, in the words that go with each.
LOCAL = "only on this page: it is evaluated and sent as before"
_LISTED = "GET /api/poise/v1/alerts lists those that are on"
_NO_ALERTMANAGER = "this `poise up` knows no Alertmanager, and nothing else holds notifications back"

Route = Callable[..., Awaitable[JSONResponse]]


def create_router(
    rules: RulesSource,
    acknowledgements: Acknowledgements,
    silencing: Silencing,
    gate: Gate,
    *,
    mode: str,
    external_labels: Mapping[str, str],
    now: Callable[[], float],
) -> APIRouter:
    """The routes. `mode` says who evaluates rules (`AlertSettings.mode`): only this process's own alerts are listed. `external_labels` are those
    under which alerts are sent; `now` gives Unix seconds."""
    router = APIRouter(prefix="/api/poise/v1", include_in_schema=False)

    @router.get("/alerts")
    async def alerts() -> JSONResponse:
        suppressions, problems = await silencing.suppressions()
        active = [(one.rule.name, alert, labels(alert.labels)) for one in _alerting(rules) for alert in one.alerts]
        # In a thread, as all that may write the file: a disk that hangs must not hold up the page.
        standing = await asyncio.to_thread(acknowledgements.standing, {own for _, _, own in active})
        found = [
            _alert(name, alert, own, standing.get(own), suppressions.get(sent_labels(own, external_labels), Suppression()))
            for name, alert, own in active
        ]
        return answer({"time": now(), "mode": mode, "alerts": found, "alertmanagers": _alertmanagers(silencing, problems)})

    @router.get("/silences")
    async def silences() -> JSONResponse:
        known, problems = await silencing.silences()
        return answer({"silences": [_silence(one) for one in known], "alertmanagers": _alertmanagers(silencing, problems)})

    @router.post("/silences")
    @_refusing
    async def silence(request: Request) -> JSONResponse:
        document = await gate.document(request)
        wanted = alert_requests.silence(document)
        _need_alertmanager(silencing)
        matchers = [*wanted.matchers, *(_external(wanted.matchers, external_labels) if wanted.of_ours else ())]
        starts_at = now()
        ends_at = starts_at + wanted.wish.seconds
        made = await silencing.silence(matchers, starts_at=starts_at, ends_at=ends_at, by=wanted.wish.by, comment=wanted.wish.comment)
        if not made.done:
            raise _not_done(made.problems)
        return answer(
            {
                "made": [{"alertmanager": url, "id": name} for url, name in made.done],
                "matchers": [asdict(matcher) for matcher in matchers],
                "ends_at": ends_at,
                "problems": _problems(made.problems),
            },
            201,
        )

    @router.delete("/silences/{name}")
    @_refusing
    async def expire(request: Request, name: str) -> JSONResponse:
        gate.admit(request)
        _need_alertmanager(silencing)
        made = await silencing.expire(name)
        if made is None:
            raise Refusal(404, "no silence that is pending or active has this id", "GET /api/poise/v1/silences lists them", "id", name)
        if not made.done:
            raise _not_done(made.problems)
        return answer({"ended": [{"alertmanager": url, "id": one} for url, one in made.done], "problems": _problems(made.problems)})

    @router.post("/acknowledgements")
    @_refusing
    async def acknowledge(request: Request) -> JSONResponse:
        wanted = alert_requests.acknowledgement(await gate.document(request))
        if wanted.labels not in _active(rules):
            raise Refusal(404, "no alert with exactly these labels is pending or firing", _LISTED, "labels", dict(wanted.labels))
        made = now()
        one = Acknowledgement(
            wanted.labels, wanted.wish.by, wanted.wish.comment, round((made + wanted.wish.seconds) * 1000), round(made * 1000)
        )
        try:
            await asyncio.to_thread(acknowledgements.add, one)
        except TooMany as error:
            raise Refusal(409, str(error), "DELETE /api/poise/v1/acknowledgements/ID removes one") from None
        kept = f"until this process ends: {acknowledgements.error}" if acknowledgements.error else ""
        return answer({"id": identifier(wanted.labels), "acknowledged": _acknowledged(one), "kept_only": kept}, 201)

    @router.delete("/acknowledgements/{name}")
    @_refusing
    async def forget(request: Request, name: str) -> JSONResponse:
        gate.admit(request)
        own = next((own for own in _active(rules) if identifier(own) == name), None)
        if own is None or not await asyncio.to_thread(acknowledgements.remove, own):
            raise Refusal(404, "no alert that is on is acknowledged under this id", _LISTED, "id", name)
        return answer({"removed": name})

    return router


def _refusing(route: Route) -> Route:
    """The route with refusals as answers."""

    @wraps(route)
    async def refusing(*arguments: object, **named: object) -> JSONResponse:
        try:
            return await route(*arguments, **named)
        except Refusal as refusal:
            return refusal.answer()

    return refusing


# -------------------------------------------------------------------------------------------------------------------- asking
def _alerting(rules: RulesSource) -> list[AlertingRule]:
    return [one for group in rules.groups() for one in group.rules if isinstance(one, AlertingRule)]


def _active(rules: RulesSource) -> set[Labels]:
    return {labels(alert.labels) for one in _alerting(rules) for alert in one.alerts}


def _external(matchers: Sequence[Matcher], external_labels: Mapping[str, str]) -> list[Matcher]:
    """What makes a silence one of our alerts: others send to the same Alertmanager."""
    given = {matcher.name for matcher in matchers}
    return [Matcher(name, value) for name, value in sorted(external_labels.items()) if name not in given and value]


def _need_alertmanager(silencing: Silencing) -> None:
    if not silencing.urls:
        way_out = f"name one with --alertmanager; `poise alerts acknowledge` marks the alert {LOCAL}"
        raise Refusal(409, _NO_ALERTMANAGER, way_out)


def _not_done(problems: Sequence[Problem]) -> Refusal:
    refused = any(problem.refused for problem in problems)
    way_out = (
        "change what it names"
        if refused
        else "try again once it answers; GET /api/poise/v1/alerts/notifications tells how it goes with each"
    )
    return Refusal(400 if refused else 502, "; ".join(problem.error for problem in problems), way_out)


# ------------------------------------------------------------------------------------------------------------------- telling
def _alert(name: str, alert: ActiveAlert, own: Labels, acknowledged: Acknowledgement | None, suppression: Suppression) -> dict[str, object]:
    return {
        "id": identifier(own),
        "rule": name,
        "state": alert.state,
        "since": alert.active_at,
        "value": alert.value,
        "labels": alert.labels,
        "annotations": alert.annotations,
        "acknowledged": None if acknowledged is None else _acknowledged(acknowledged),
        "silenced_by": suppression.silenced_by,
        "inhibited_by": suppression.inhibited_by,
    }


def _acknowledged(one: Acknowledgement) -> dict[str, object]:
    return {"by": one.by, "comment": one.comment, "until": one.until / 1000, "made": one.made / 1000, "local": LOCAL}


def _silence(known: Known) -> dict[str, object]:
    one = known.silence
    return {
        "id": one.identifier,
        "state": one.state,
        "matchers": [asdict(matcher) for matcher in one.matchers],
        "starts_at": one.starts_at,
        "ends_at": one.ends_at,
        "by": one.created_by,
        "comment": one.comment,
        "alertmanagers": known.urls,
    }


def _alertmanagers(silencing: Silencing, problems: Sequence[Problem]) -> list[dict[str, str]]:
    wrong = {problem.url: problem.error for problem in problems}
    return [{"url": url, "error": wrong.get(url, "")} for url in silencing.urls]


def _problems(problems: Sequence[Problem]) -> list[dict[str, str]]:
    return [{"alertmanager": problem.url, "error": problem.error} for problem in problems]
