"""What a check says: status, state, evidence, cause and fix; and how results become one verdict.

Status is what the evidence shows now (pass, fail, unknown). State is what a person should think of it: a configuration fault is a
problem at once, a load verdict is watched first. This file knows no check and no page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Status(StrEnum):
    """What the evidence shows; the values of the label `status` of `poise_check_status`."""

    PASS = "pass"  # noqa: S105 - a status, no password
    FAIL = "fail"
    UNKNOWN = "unknown"


class State(StrEnum):
    """How a result or the whole node is judged, best first."""

    OK = "ok"
    UNKNOWN = "unknown"
    WATCH = "watch"
    PROBLEM = "problem"


#: Worst first, for sorting and for the verdict.
WORST_FIRST = (State.PROBLEM, State.WATCH, State.UNKNOWN, State.OK)


#: What matters most first, for lists and where one of several results has to stand for all.
FAIL_FIRST = (Status.FAIL, Status.UNKNOWN, Status.PASS)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of the checklist for one subject (a deployment, an engine, a card, or the node when all are empty).

    A line about a deployment names the engine where it shows, or the first one, so that each has series of its own.
    `title` is the line itself ("Tensor-parallel size equals the cards in use"), `sentence` what holds now, with its numbers. `cause`
    and `fix` are empty unless it fails. `evidence` are named values as text, in the order to show. `since` is Unix seconds of the
    first result in a row with this status, set by the runner.
    """

    check: str
    title: str
    status: Status
    state: State
    sentence: str
    engine: str = ""
    uuid: str = ""
    gpu: str = ""
    cause: str = ""
    fix: str = ""
    evidence: Mapping[str, str] = field(default_factory=dict)
    since: float | None = None
    deployment: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """Who a result is about; all empty: the node. Fields as in `CheckResult`."""

    engine: str = ""
    uuid: str = ""
    gpu: str = ""
    deployment: str = ""


NODE = Subject()


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the checklist, which makes its results: `name` as in the series, `title` as on the page."""

    name: str
    title: str

    def passed(self, sentence: str, about: Subject = NODE, evidence: Mapping[str, str] | None = None) -> CheckResult:
        """The line holds."""
        return self._result(Status.PASS, State.OK, sentence, about, evidence)

    def unknown(self, sentence: str, about: Subject = NODE, evidence: Mapping[str, str] | None = None, *, fix: str = "") -> CheckResult:
        """It cannot be told whether it holds, which worries nobody: `fix` says how it could be told."""
        return self._result(Status.UNKNOWN, State.OK, sentence, about, evidence, fix=fix)

    def failed(
        self, state: State, sentence: str, about: Subject, evidence: Mapping[str, str] | None = None, *, cause: str, fix: str
    ) -> CheckResult:
        """The line does not hold; `state` says how bad that is."""
        return self._result(Status.FAIL, state, sentence, about, evidence, cause, fix)

    def _result(
        self,
        status: Status,
        state: State,
        sentence: str,
        about: Subject,
        evidence: Mapping[str, str] | None,
        cause: str = "",
        fix: str = "",
    ) -> CheckResult:
        return CheckResult(
            self.name,
            self.title,
            status,
            state,
            sentence,
            engine=about.engine,
            uuid=about.uuid,
            gpu=about.gpu,
            cause=cause,
            fix=fix,
            evidence=dict(evidence or {}),
            deployment=about.deployment,
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """The node in one word and at most three sentences, worst first."""

    state: State
    lines: tuple[CheckResult, ...]
    summary: str
