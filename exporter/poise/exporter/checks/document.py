"""The checklist as JSON: what the exporter serves under /checks, the page shows, and `poise doctor --json` prints."""

from __future__ import annotations

from typing import Any

from poise.exporter.checks.result import CheckResult
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
            "lines": [_result(snapshot, result) for result in outcome.verdict.lines],
        },
        "checks": [_result(snapshot, result) for result in outcome.results],
    }


def _result(snapshot: NodeSnapshot, result: CheckResult) -> dict[str, Any]:
    return {
        "check": result.check,
        "title": result.title,
        "status": str(result.status),
        "state": str(result.state),
        "subject": subject_of(snapshot, result),
        "engine": result.engine,
        "deployment": result.deployment,
        "gpu": result.gpu,
        "uuid": result.uuid,
        "sentence": result.sentence,
        "cause": result.cause,
        "fix": result.fix,
        "evidence": dict(result.evidence),
        "since": result.since,
        "line": sentence_of(snapshot, result),
    }
