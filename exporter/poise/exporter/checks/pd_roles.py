"""Check `pd_roles`: a deployment that splits prefill from decode has living engines of both roles."""

from __future__ import annotations

from collections.abc import Iterator

from poise.exporter.checks import words
from poise.exporter.checks.pools import SPLIT_ROLES, Split, names, splits
from poise.exporter.checks.result import CheckResult, Line, State
from poise.exporter.checks.window import Window
from poise.exporter.snapshot import NodeSnapshot, Role

NAME = "pd_roles"
TITLE = "Prefill and decode are both there"
_LINE = Line(NAME, TITLE)


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per deployment that splits."""
    del window
    for split in splits(snapshot):
        yield _check(split)


def _check(split: Split) -> CheckResult:
    evidence = {str(role): names(split.pool(role)) for role in SPLIT_ROLES}
    for router in split.routers:
        evidence[f"router {router.name}"] = (
            ", ".join(f"{backend.engine or backend.url} ({backend.role})" for backend in router.backends) or "names no engine"
        )
    elsewhere: list[Role] = []
    for role in SPLIT_ROLES:
        living = split.pool(role)
        backends = [backend for router in split.routers for backend in router.backends if backend.role is role]
        gone = [engine for engine in split.engines if engine.identity.role is role and engine.observed.process_up is False]
        if backends and all(backend.healthy is False for backend in backends):
            return _LINE.failed(
                State.PROBLEM,
                f"the router calls every {role} engine unhealthy",
                split.about,
                evidence,
                cause="they do not answer its health checks",
                fix=f"look at the {role} engines' logs; restart what died",
            )
        if gone and not living and not any(backend.healthy for backend in backends):
            return _LINE.failed(
                State.PROBLEM,
                f"no {role} engine lives: {names(gone)} {'is' if len(gone) == 1 else 'are'} gone",
                split.about,
                evidence,
                cause=f"the process of {words.count(len(gone), 'engine')} ended",
                fix=f"start a {role} engine again; without it "
                + ("nothing is decoded" if role is Role.DECODE else "requests fail, or decode computes their prompts itself"),
            )
        if not living and not backends:
            if any(router.up and router.backends for router in split.routers):
                return _LINE.failed(
                    State.PROBLEM,
                    f"the router knows no {role} engine",
                    split.about,
                    evidence,
                    cause="none was named to it, or none registered",
                    fix=f"start the router with its {role} engines (vllm-router: --{role} URL)",
                )
            elsewhere.append(role)
    if elsewhere:
        return _LINE.unknown(
            f"no engine of role {words.joined([str(role) for role in elsewhere])} is known here",
            split.about,
            evidence,
            fix="name engines of other nodes with --engine NAME=URL,deployment=…,role=…, or run the exporter beside the router",
        )
    sentence = " and ".join(words.count(len(split.pool(role)), f"{role} engine") for role in SPLIT_ROLES)
    return _LINE.passed(
        f"{sentence} live here" if all(split.pool(role) for role in SPLIT_ROLES) else "the router has both", split.about, evidence
    )
