"""The evaluator's rules in the shapes of the API. Values in, values out."""

from __future__ import annotations

from collections.abc import Sequence

from poise.alerts.evaluation.active import Alert, State
from poise.alerts.evaluation.evaluator import Evaluator
from poise.alerts.evaluation.views import RuleView
from poise.dashboard.api_prometheus.sources import ActiveAlert, AlertingRule, Rule, RuleGroup


class EvaluatedRules:
    """A `RulesSource` over the evaluator of this process."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator

    def groups(self) -> Sequence[RuleGroup]:
        """As RulesSource says."""
        return [
            RuleGroup(
                view.group.name,
                view.group.file,
                view.group.interval / 1000,
                [_rule(rule) for rule in view.rules],
                view.group.limit,
                view.seconds,
                None if view.evaluated is None else view.evaluated / 1000,
            )
            for view in self._evaluator.view()
        ]


def _rule(view: RuleView) -> AlertingRule | Rule:
    source, health = view.rule.rule, view.health
    rule = Rule(
        source.name,
        source.expr,
        view.rule.labels,
        "unknown" if health.at is None and not view.rule.error else "err" if health.error or view.rule.error else "ok",
        health.error or view.rule.error,
        health.seconds,
        None if health.at is None else health.at / 1000,
        view.needs.sentence,
    )
    if not source.alert:
        return rule
    alerts = [_alert(alert) for alert in view.alerts if alert.state is not State.INACTIVE]
    return AlertingRule(rule, view.state.value, source.wait, source.keep_firing_for, source.annotations, alerts)


def _alert(alert: Alert) -> ActiveAlert:
    since = alert.keep_firing_since
    return ActiveAlert(
        dict(alert.labels),
        alert.annotations,
        alert.state.value,
        alert.active_at / 1000,
        alert.value,
        None if since is None else since / 1000,
    )
