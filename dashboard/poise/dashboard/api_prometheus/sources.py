"""What the API shows besides series: rules, alerts and targets, as values, and who gives them. Times in Unix seconds, durations in seconds.

The evaluator and the scrape pool stand behind these Protocols; this file knows neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from poise.history.scraping import TargetStatus


@dataclass(frozen=True, slots=True)
class ActiveAlert:
    """One alert that is pending or firing."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    state: str  # pending, firing
    active_at: float
    value: float
    keep_firing_since: float | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule and how its last evaluation was. `health` is ok, err or unknown; `last_evaluation` None before the first. `lacks` says why the rule can
    say nothing (input missing, insufficient history); "" when it can. Prometheus has no such word."""

    name: str
    query: str
    labels: Mapping[str, str]
    health: str
    last_error: str
    evaluation_seconds: float
    last_evaluation: float | None
    lacks: str = ""


@dataclass(frozen=True, slots=True)
class AlertingRule:
    """What an alerting rule has besides. `state` is inactive, pending or firing: the worst of its alerts."""

    rule: Rule
    state: str
    duration: float
    keep_firing_for: float
    annotations: Mapping[str, str]
    alerts: Sequence[ActiveAlert]


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """A group of a file, its rules in order; a bare `Rule` is a recording rule."""

    name: str
    file: str
    interval: float
    rules: Sequence[AlertingRule | Rule]
    limit: int = 0
    evaluation_seconds: float = 0.0
    last_evaluation: float | None = None


class RulesSource(Protocol):
    """Who evaluates rules."""

    def groups(self) -> Sequence[RuleGroup]:
        """All groups with their present state, in order of file and group."""
        ...


class TargetsSource(Protocol):
    """Who scrapes."""

    def status(self) -> Sequence[TargetStatus]:
        """How each target does; `poise.history.scraping.ScrapePool` is one."""
        ...


@dataclass(frozen=True, slots=True)
class NoRules:
    """Where nothing evaluates rules."""

    def groups(self) -> Sequence[RuleGroup]:
        """None."""
        return ()


@dataclass(frozen=True, slots=True)
class NoTargets:
    """Where nothing scrapes: a Prometheus elsewhere does."""

    found: Sequence[TargetStatus] = field(default=())

    def status(self) -> Sequence[TargetStatus]:
        """None."""
        return self.found
