"""Rule files made ready to be evaluated: expressions compiled, templates parsed, durations in milliseconds; what cannot be is kept with its reason.

A rule that the engine refuses costs that rule, not its file: it stands in the list with an error and is never taken for one that is quiet.
Knows no store and no moment.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from poise.alerts.evaluation.active import OF_ALERTS, AlertRule
from poise.alerts.evaluation.templates import Template, TemplateError, parse_template
from poise.alerts.rules import Group, Rule, RuleFile
from poise.history.promql.compile import compile_query
from poise.history.promql.errors import QueryError
from poise.history.promql.nodes import Node, Type, selectors, type_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreparedRule:
    """One rule. `key` names it over restarts and reloads. `node` is None and `error` filled when it cannot be evaluated; `alert` is None for a
    recording rule, whose `labels` are plain texts (Prometheus expands none there)."""

    key: str
    rule: Rule
    node: Node | None
    alert: AlertRule | None
    labels: Mapping[str, str]
    error: str = ""


@dataclass(frozen=True, slots=True)
class PreparedGroup:
    """A group: `interval`, `query_offset` in milliseconds."""

    file: str
    name: str
    interval: int
    query_offset: int
    limit: int
    rules: tuple[PreparedRule, ...]

    @property
    def key(self) -> str:
        return f"{self.file};{self.name}"

    @property
    def gives(self) -> frozenset[str]:
        """The names of the series that its rules write."""
        return frozenset(name for rule in self.rules for name in ((rule.rule.name,) if rule.alert is None else OF_ALERTS))

    @property
    def reads(self) -> frozenset[str]:
        """The names of the series that its rules look at."""
        return frozenset(one.name for rule in self.rules if rule.node is not None for one in selectors(rule.node) if one.name is not None)


def prepare(files: Iterable[RuleFile], interval: float) -> tuple[PreparedGroup, ...]:
    """The groups of all files in order; `interval` (seconds) is for groups that name none, or 0 as Prometheus has it (`rules/manager.go`)."""
    seen: dict[str, int] = {}
    return tuple(_group(file, group, interval, seen) for file in files for group in file.groups)


def _group(file: RuleFile, group: Group, interval: float, seen: dict[str, int]) -> PreparedGroup:
    rules = []
    for rule in group.rules:
        rule_labels = {**group.labels, **rule.labels}
        identity = _key(PurePath(file.name).name, group.name, rule.name, rule_labels)
        seen[identity] = seen.get(identity, 0) + 1
        rules.append(_rule(f"{identity}.{seen[identity]}", group, rule, rule_labels))
    return PreparedGroup(
        file.name,
        group.name,
        _milliseconds(group.interval or interval),
        _milliseconds(group.query_offset or 0.0),
        group.limit,
        tuple(rules),
    )


def _key(file: str, group: str, name: str, rule_labels: Mapping[str, str]) -> str:
    """By what a rule is known again when its expression or its text was changed, or its file was moved: the file's own name, group, name, labels."""
    text = json.dumps([file, group, name, sorted(rule_labels.items())])
    return f"{name}.{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _rule(key: str, group: Group, rule: Rule, rule_labels: Mapping[str, str]) -> PreparedRule:
    node, alert, error = None, None, ""
    try:
        node = compile_query(rule.expr)
        if type_of(node) not in (Type.VECTOR, Type.SCALAR):
            raise QueryError(f"a rule takes an instant vector or a number, and this is a {type_of(node)}")
        if rule.alert:
            alert = AlertRule(
                rule.name,
                _milliseconds(rule.wait),
                _milliseconds(rule.keep_firing_for),
                _templates(rule_labels, "label"),
                _templates(rule.annotations, "annotation"),
                group.limit,
            )
    except (QueryError, TemplateError) as failure:
        node, alert, error = None, None, str(failure)
    except Exception as failure:  # whatever the compiler stumbles over costs this rule, not the files
        logger.exception("group %s, %s: it cannot be compiled, for a reason that is a fault of Poise", group.name, rule.title)
        node, alert, error = None, None, f"{type(failure).__name__}: {failure}"
    return PreparedRule(key, rule, node, alert, rule_labels, error)


def _templates(texts: Mapping[str, str], what: str) -> dict[str, Template]:
    parsed = {}
    for name, text in texts.items():
        try:
            parsed[name] = parse_template(text)
        except TemplateError as error:
            raise TemplateError(f"{what} {name}: {error}") from None
    return parsed


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
