"""Builds verdict and checklist from the exporter's checks. Pure; judges nothing itself: no checks, no verdict."""

from __future__ import annotations

from datetime import datetime

from poise.dashboard.cards import identifier
from poise.dashboard.checks_document import Finding
from poise.dashboard.contexts import CheckContext, SourceContext, VerdictContext
from poise.dashboard.numbers import TEXT_CHARACTERS, age, shortened
from poise.dashboard.observation import Observation
from poise.dashboard.texts import Texts
from poise.exporter import metrics
from poise.exporter.checks.result import FAIL_FIRST, WORST_FIRST, State, Status

#: Sentences in the verdict.
MAX_LINES = 3
#: Seconds after which the snapshot that was judged is too old for a verdict: six scrapes at the default interval.
CHECKS_OLD = 30.0

#: Words that begin a sentence of a check and are written as they are typed.
_COMMANDS = frozenset({"dmesg", "nvcc", "numactl"})


def verdict(observation: Observation, exporter: SourceContext, texts: Texts) -> VerdictContext:
    """The node in a word. Old or unreadable checks, or an exporter that is silent, are "unknown", never the last verdict."""
    document = observation.checks
    if document is None:
        if observation.window.newest is None:
            return _unknown(texts.verdict_waiting, texts)
        return _unknown(texts.verdict_no_checks.format(error=shortened(observation.checks_error, TEXT_CHARACTERS) or "?"), texts)
    old = _age_of_checks(observation)
    if old > CHECKS_OLD or exporter.state in ("down", "stale"):
        return _unknown(texts.verdict_old.format(age=age(old)), texts)
    lines = tuple(_check(finding, texts, "verdict") for finding in document.lines[:MAX_LINES])
    state = document.state.value
    # The numbers in sentences move at every refresh; a screen reader is told of a change in what is wrong, not of each number.
    announced = (
        [texts.states[state], *(f"{line.title}: {line.subject}" for line in lines)] if lines else [texts.states[state], document.summary]
    )
    return VerdictContext(state, texts.states[state], document.summary, ". ".join(announced), lines)


def _age_of_checks(observation: Observation) -> float:
    """Seconds since the node was judged, by our clock alone: the exporter's may be minutes off, and says its snapshot's age itself."""
    newest = observation.window.newest
    since_scrape = observation.now - newest.at if newest is not None else 0.0
    return max(0.0, since_scrape) + (observation.window.one(metrics.SNAPSHOT_AGE.name) or 0.0)


def checks(observation: Observation, exporter: SourceContext, texts: Texts) -> tuple[CheckContext, ...]:
    """The checklist: fail first (worst state first), then unknown, then pass; within these in the exporter's order."""
    if observation.checks is None or exporter.state in ("down", "stale"):
        return ()
    ordered = sorted(
        observation.checks.checks,
        key=lambda finding: (FAIL_FIRST.index(finding.result.status), WORST_FIRST.index(finding.result.state)),
    )
    return tuple(_check(finding, texts, "check") for finding in ordered)


def counts(found: tuple[CheckContext, ...], texts: Texts) -> str:
    """How many fail, are unknown, pass."""
    if not found:
        return texts.no_checks
    numbers = {status: sum(1 for check in found if check.status == status.value) for status in Status}
    return texts.checks_counts.format(failed=numbers[Status.FAIL], unknown=numbers[Status.UNKNOWN], passed=numbers[Status.PASS])


def _unknown(summary: str, texts: Texts) -> VerdictContext:
    word = texts.states[State.UNKNOWN.value]
    return VerdictContext(State.UNKNOWN.value, word, summary, word)


def _check(finding: Finding, texts: Texts, kind: str) -> CheckContext:
    result = finding.result
    since = _moment(result.since)
    state = result.state.value
    return CheckContext(
        key=identifier(kind, f"{result.check} {result.deployment} {result.engine} {result.uuid}"),
        check=result.check,
        title=result.title,
        status=result.status.value,
        state=state,
        word=texts.states[state] if result.status is Status.FAIL else texts.statuses[result.status.value],
        subject=finding.subject,
        gpu=texts.gpu.format(index=result.gpu) if result.gpu else "",
        sentence=_capitalised(result.sentence),
        cause=_capitalised(result.cause),
        fix=_capitalised(result.fix),
        evidence=tuple(result.evidence.items()),
        since=since.strftime("%H:%M:%S") if since else "",
        since_iso=since.isoformat(timespec="seconds") if since else "",
    )


def _capitalised(text: str) -> str:
    """A sentence that stands alone begins with a capital, unless its first word is a name or a command ("vLLM", "nvidia-smi")."""
    first = text.partition(" ")[0]
    return text[:1].upper() + text[1:] if first.isalpha() and first.islower() and first not in _COMMANDS else text


def _moment(at: float | None) -> datetime | None:
    """Local time with its offset; None for no time and for one that no calendar has."""
    if at is None:
        return None
    try:
        return datetime.fromtimestamp(at).astimezone()
    except (OverflowError, OSError, ValueError):
        return None
