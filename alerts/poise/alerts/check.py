"""What is wrong with rule files before any Prometheus loads them: undeclared names, links without a page, rules that say too little.

`check_files` takes parsed files and returns problems; it reads runbooks and nothing else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from poise.alerts import runbooks
from poise.alerts.evaluation.evaluator import DEFAULT_INTERVAL
from poise.alerts.evaluation.prepared import prepare
from poise.alerts.labels import check_expression
from poise.alerts.names import Labels, declared
from poise.alerts.rules import Group, Rule, RuleFile
from poise.alerts.scale import DEFAULT_BASE, runbook_url

SEVERITIES = ("critical", "warning", "info", "none")
REQUIRED_ANNOTATIONS = ("summary", "runbook_url")

#: level:metric:operations (Prometheus, practices/rules).
_RECORDED_NAME = re.compile(r"[a-z_][a-z0-9_]*:[a-z_][a-z0-9_]*:[a-z0-9_]+")
#: A label that a template reads: {{ $labels.engine }}.
_TEMPLATE_LABEL = re.compile(r"\$labels\.(\w+)")


@dataclass(frozen=True, slots=True)
class Problem:
    """Something to mend, with its place: "FILE:LINE", group and rule."""

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


def check_files(files: Sequence[RuleFile], *, beside: Sequence[RuleFile] = (), allow_other_series: bool = False) -> tuple[Problem, ...]:
    """All problems of the files, taken together: one may read what another records. The order of files and rules does not matter.

    What files `beside` them record may be read too; they are not checked themselves.
    """
    checker = _Checker(files, allow_other_series, beside)
    return tuple(problem for file in files for group in file.groups for problem in checker.group(file, group))


def result_labels(files: Sequence[RuleFile]) -> dict[int, Labels]:
    """The labels that each rule's result can carry before the rule adds its own, by `id` of the rule."""
    return _Checker(files, allow_other_series=True).labels


class _Checker:
    def __init__(self, files: Sequence[RuleFile], allow_other_series: bool, beside: Sequence[RuleFile] = ()) -> None:
        self.allow_other_series = allow_other_series
        self.vocabulary = declared()
        self.labels: dict[int, Labels] = {}
        self.complaints: dict[int, tuple[str, ...]] = {}
        self.infer([rule for file in (*beside, *files) for rule in file.rules])
        #: Prepared as `poise up` does; the interval decides nothing here.
        self.refused = {id(one.rule): one.error for group in prepare(files, DEFAULT_INTERVAL) for one in group.rules if one.error}
        # A second identical rule would evaluate to the same series or alert twice.
        self.seen = Counter((rule.alert, rule.name, frozenset(rule.labels.items())) for file in files for rule in file.rules)

    def infer(self, rules: Sequence[Rule]) -> None:
        """Give every recorded name its labels, whichever file it is in: as many rounds as names build on each other."""
        for rule in rules:
            if not rule.alert:
                self.vocabulary.setdefault(rule.name, None)
        while True:
            changed = False
            for rule in rules:
                labels, complaints = check_expression(rule.expr, self.vocabulary, allow_other_series=self.allow_other_series)
                self.labels[id(rule)], self.complaints[id(rule)] = labels, complaints
                if not rule.alert and labels is not None:
                    made = labels | frozenset(rule.labels)
                    changed = changed or self.vocabulary[rule.name] != made
                    self.vocabulary[rule.name] = made
            if not changed:
                return

    def group(self, file: RuleFile, group: Group) -> Iterator[Problem]:
        for rule in group.rules:
            kind = "alert" if rule.alert else "record"
            place = f'{file.name}:{rule.line}, group "{group.name}", {kind} "{rule.name}"'
            for message in (*self.complaints[id(rule)], *self.rule(rule)):
                yield Problem(place, message)

    def rule(self, rule: Rule) -> Iterator[str]:
        if self.seen[rule.alert, rule.name, frozenset(rule.labels.items())] > 1:
            yield "stands twice with the same labels"
        if refusal := self.refused.get(id(rule)):
            yield f"the built-in evaluator of `poise up` cannot evaluate it, whatever a Prometheus does: {refusal}"
        if rule.alert:
            yield from self.alert(rule)
        elif not _RECORDED_NAME.fullmatch(rule.name):
            yield "the name of a recording rule has the form level:metric:operations"

    def alert(self, rule: Rule) -> Iterator[str]:
        severity = rule.labels.get("severity", "")
        if severity not in SEVERITIES:
            yield f'the label severity is "{severity}"; it must be one of {", ".join(SEVERITIES)}'
        for annotation in REQUIRED_ANNOTATIONS:
            if not rule.annotations.get(annotation):
                yield f"it has no annotation {annotation}"
        for name, value in rule.labels.items():
            if "$value" in value:
                yield f"the label {name} carries $value: every evaluation would make a new alert"
        link = rule.annotations.get("runbook_url", "")
        if link.startswith(f"{DEFAULT_BASE}/runbooks/"):
            yield from self.runbook(rule, link)
        known = self.labels[id(rule)]
        if known is not None:
            for name, text in rule.annotations.items():
                for label in _TEMPLATE_LABEL.findall(text):
                    if label not in known and label not in rule.labels:
                        yield f"the annotation {name} uses $labels.{label}, which no result of the expression has"

    def runbook(self, rule: Rule, link: str) -> Iterator[str]:
        if link != runbook_url(f"{DEFAULT_BASE}/runbooks", rule.name):
            yield f"its runbook_url is that of another alert: {link}"
        try:
            runbooks.read(rule.name)
        except (KeyError, runbooks.RunbookError) as error:
            yield str(error.args[0])
