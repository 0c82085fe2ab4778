"""The checklist as JSON: what the exporter serves under /checks, the page shows, and `poise doctor --json` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from poise.exporter.checks.result import WORST_FIRST, CheckResult, State
from poise.exporter.checks.runner import CheckOutcome, sentence_of, subject_of
from poise.exporter.snapshot import NodeSnapshot

#: Raised when a field changes its meaning; readers refuse what they do not know.
FORMAT = 1


def document(snapshot: NodeSnapshot, outcome: CheckOutcome) -> dict[str, Any]:
    """The outcome as JSON-ready values. Times are Unix seconds; `subject` and `line` are for people."""
    return {
        "format": FORMAT,
        "node": snapshot.node,
        "time": snapshot.taken_at,
        "simulated": snapshot.simulated,
        "verdict": {
            "state": str(outcome.verdict.state),
            "summary": outcome.verdict.summary,
            "lines": [entry(result, subject_of(snapshot, result)) for result in outcome.verdict.lines],
        },
        "checks": [entry(result, subject_of(snapshot, result)) for result in outcome.results],
    }


def with_results(page: Mapping[str, Any], added: Sequence[tuple[CheckResult, str]]) -> dict[str, Any]:
    """A document with more results, each with its subject: behind the others, and before the verdict's lines where they are worse."""
    entries = [entry(result, subject) for result, subject in added]
    verdict = dict(page["verdict"])
    worst = min(entries, key=lambda item: WORST_FIRST.index(State(item["state"])), default=None)
    known = [str(state) for state in WORST_FIRST]
    if worst is not None and verdict["state"] in known and known.index(worst["state"]) < known.index(verdict["state"]):
        verdict = {"state": worst["state"], "summary": worst["line"], "lines": [worst, *verdict["lines"]]}
    return {**page, "verdict": verdict, "checks": [*page["checks"], *entries]}


def entry(result: CheckResult, subject: str) -> dict[str, Any]:
    """A result as JSON-ready values."""
    return {
        "check": result.check,
        "title": result.title,
        "status": str(result.status),
        "state": str(result.state),
        "subject": subject,
        "engine": result.engine,
        "deployment": result.deployment,
        "gpu": result.gpu,
        "uuid": result.uuid,
        "sentence": result.sentence,
        "cause": result.cause,
        "fix": result.fix,
        "evidence": dict(result.evidence),
        "since": result.since,
        "line": sentence_of(result, subject),
    }
