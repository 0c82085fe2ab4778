"""Check `router_answers`: each router before engines answers, and holds its engines for healthy."""

from __future__ import annotations

from collections.abc import Iterator

from poise.exporter.checks import words
from poise.exporter.checks.result import CheckResult, Line, State, Subject
from poise.exporter.checks.window import Window
from poise.exporter.snapshot import NodeSnapshot, Role, Router

NAME = "router_answers"
TITLE = "Router alive and answering"
_LINE = Line(NAME, TITLE)


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per router; none for one of whose deployment nothing lives, for that was stopped as a whole."""
    del window
    for router in snapshot.routers:
        engines = [engine for engine in snapshot.engines if engine.identity.deployment == router.deployment]
        living = any(engine.observed.process_up is not False for engine in engines)
        if router.up or living:
            yield _check(snapshot, router, living)


def _check(snapshot: NodeSnapshot, router: Router, living: bool) -> CheckResult:
    about = _about(snapshot, router)
    evidence = {"address": router.url or "unknown", "kind": router.kind or "unknown"}
    if not router.up:
        others = any(other.up for other in snapshot.routers if other.deployment == router.deployment)
        return _LINE.failed(
            State.PROBLEM if living and not others else State.WATCH,
            f"router {router.name} does not answer"
            + ("" if others else f", so that no request reaches the engines of {router.deployment}"),
            about,
            evidence,
            cause=router.error or "no answer",
            fix="read the last lines of its log, and start it again",
        )
    sick = [backend.engine or backend.url for backend in router.backends if backend.healthy is False]
    if sick:
        return _LINE.failed(
            State.WATCH,
            f"router {router.name} holds {words.joined(sick)} for unhealthy and sends nothing there",
            about,
            evidence | {"backends": str(len(router.backends))},
            cause="its health checks of the engine fail",
            fix="look at the engine; the router takes it up again by itself once it answers",
        )
    told = f" with {words.count(len(router.backends), 'engine')}" if router.backends else ""
    return _LINE.passed(f"router {router.name} ({evidence['kind']}) answers{told}", about, evidence)


def _about(snapshot: NodeSnapshot, router: Router) -> Subject:
    """The router's deployment; its series carry the first engine that decodes, else the first of all, as those of other checks do."""
    found = [
        (engine.identity.engine, engine.identity.role) for engine in snapshot.engines if engine.identity.deployment == router.deployment
    ]
    found = found or [(backend.engine, backend.role) for backend in router.backends if backend.engine]
    names = [name for name, role in found if role is Role.DECODE] + [name for name, _ in found]
    return Subject(engine=names[0] if names else "", deployment=router.deployment)
