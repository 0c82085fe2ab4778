"""Reads the exporter's `GET /checks`: the verdict on the node and the checklist behind it.

The form is that of `poise.exporter.checks.document`. Owns reading and its limits: the exporter may be another host's, so every text is cut and
every unknown word becomes "unknown". Knows no page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from poise.dashboard.numbers import LABEL_CHARACTERS, TEXT_CHARACTERS, finite_number, shortened
from poise.exporter.checks.document import FORMAT
from poise.exporter.checks.result import CheckResult, State, Status

DOCUMENT_LIMIT = 1_000_000
MAX_RESULTS = 200
MAX_EVIDENCE = 24


class ChecksError(ValueError):
    """The answer is not in the form; the message says where."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A result with its subject as the exporter words it: "qwen-32b on n1:8000 TP=2"."""

    result: CheckResult
    subject: str


@dataclass(frozen=True, slots=True)
class ChecksDocument:
    """What the exporter's checks said at `time` (Unix seconds by the exporter's clock)."""

    node: str
    time: float
    simulated: bool
    state: State
    summary: str
    lines: tuple[Finding, ...]
    checks: tuple[Finding, ...]


def read(body: bytes) -> ChecksDocument:
    """The document in an answer. Raises ChecksError."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ChecksError(f"not JSON: {shortened(str(error))}") from None
    if not isinstance(document, Mapping) or not isinstance(document.get("verdict"), Mapping):
        raise ChecksError("no verdict in it")
    if document.get("format") != FORMAT:
        raise ChecksError(f"format {_label(document.get('format'))!r} is not {FORMAT}: exporter and page are of different versions")
    verdict = document["verdict"]
    return ChecksDocument(
        node=_label(document.get("node")),
        time=finite_number(document.get("time")) or 0.0,
        simulated=document.get("simulated") is True,
        state=_state(verdict.get("state")),
        summary=_text(verdict.get("summary")),
        lines=_findings(verdict.get("lines")),
        checks=_findings(document.get("checks")),
    )


def _findings(values: object) -> tuple[Finding, ...]:
    if not isinstance(values, list):
        return ()
    return tuple(Finding(_result(value), _text(value.get("subject"))) for value in values[:MAX_RESULTS] if isinstance(value, Mapping))


def _result(value: Mapping[str, object]) -> CheckResult:
    evidence = value.get("evidence")
    named = list(evidence.items())[:MAX_EVIDENCE] if isinstance(evidence, Mapping) else []
    status = str(value.get("status"))
    return CheckResult(
        check=_label(value.get("check")),
        title=_text(value.get("title")),
        status=Status(status) if status in tuple(Status) else Status.UNKNOWN,
        state=_state(value.get("state")),
        sentence=_text(value.get("sentence")),
        engine=_label(value.get("engine")),
        uuid=_label(value.get("uuid")),
        gpu=_label(value.get("gpu")),
        cause=_text(value.get("cause")),
        fix=_text(value.get("fix")),
        evidence={_label(name): _text(text) for name, text in named},
        since=finite_number(value.get("since")),
        deployment=_label(value.get("deployment")),
    )


def _state(value: object) -> State:
    text = str(value)
    return State(text) if text in tuple(State) else State.UNKNOWN


def _label(value: object) -> str:
    return "" if value is None else shortened(str(value), LABEL_CHARACTERS)


def _text(value: object) -> str:
    return "" if value is None else shortened(str(value), TEXT_CHARACTERS)
