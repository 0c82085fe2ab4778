"""How the evaluator does, as series for the /metrics of the process that runs it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from poise.alerts.evaluation.evaluator import Evaluator
from poise.alerts.evaluation.inputs import Readiness
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class EvaluatorCollector(Collector):
    """Register it with a registry of prometheus_client."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering evaluates nothing."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        counts = self._evaluator.counts
        yield CounterMetricFamily("poise_evaluator_rule_evaluations", "Evaluations of rules", value=counts.evaluations)
        yield CounterMetricFamily("poise_evaluator_rule_failures", "Evaluations of rules that gave no result", value=counts.failures)
        yield CounterMetricFamily(
            "poise_evaluator_slots_missed", "Evaluations of groups that were left out because they came too late", value=counts.missed
        )
        yield CounterMetricFamily("poise_evaluator_seconds", "Time spent on evaluations", value=counts.seconds)
        last = GaugeMetricFamily("poise_evaluator_group_duration_seconds", "Duration of a group's last evaluation", labels=["group"])
        when = GaugeMetricFamily(
            "poise_evaluator_group_last_evaluation_timestamp_seconds", "Time of a group's last evaluation", labels=["group"]
        )
        alerts = dict.fromkeys(("pending", "firing"), 0)
        lacking = dict.fromkeys((one for one in Readiness if one is not Readiness.READY), 0)
        failing = 0
        for group in self._evaluator.view():
            last.add_metric([group.group.name], group.seconds)
            if group.evaluated is not None:
                when.add_metric([group.group.name], group.evaluated / 1000)
            for rule in group.rules:
                failing += bool(rule.health.error or rule.rule.error)
                if rule.needs.readiness in lacking:
                    lacking[rule.needs.readiness] += 1
                for alert in rule.alerts:
                    if alert.state.value in alerts:
                        alerts[alert.state.value] += 1
        yield last
        yield when
        yield GaugeMetricFamily("poise_evaluator_rules_failing", "Rules whose last evaluation gave no result", value=failing)
        states = GaugeMetricFamily("poise_evaluator_rules_lacking", "Rules that can say nothing, by what they lack", labels=["lack"])
        for readiness, number in lacking.items():
            states.add_metric([readiness.value], number)
        yield states
        family = GaugeMetricFamily("poise_evaluator_alerts", "Alerts by state", labels=["state"])
        for state, number in alerts.items():
            family.add_metric([state], number)
        yield family
