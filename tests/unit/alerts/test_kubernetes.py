"""Rules as a PrometheusRule: the groups of all files in one object, with the same meaning."""

from __future__ import annotations

import argparse
from dataclasses import replace

import pytest
import yaml
from poise.alerts import command
from poise.alerts.kubernetes import prometheus_rule
from poise.alerts.rules import Group, Rule, RuleFile, parse_rules

ALERT = Rule(
    "Down",
    True,
    "up == 0\n  and on (job) x",
    wait=300,
    labels={"severity": "critical"},
    annotations={"summary": "{{ $labels.instance }}: é"},
)
FILES = [
    RuleFile("a.yml", (Group("a", (Rule("x:y:z", False, "sum(up)"),), interval=30.0), Group("b", (ALERT,)))),
    RuleFile("c.yml", (Group("c", (replace(ALERT, name="Other"),)),)),
]


def test_all_groups_stand_in_one_object_with_their_meaning() -> None:
    text = prometheus_rule(FILES, name="poise", namespace="monitoring", comment="Written by hand.\n\nNot.")
    assert text.startswith("# Written by hand.\n#\n# Not.\napiVersion: ")
    found = yaml.safe_load(text)
    assert {key: found[key] for key in ("apiVersion", "kind", "metadata")} == {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "poise", "namespace": "monitoring"},
    }
    again = parse_rules(yaml.safe_dump(found["spec"], allow_unicode=True))
    assert [group.name for group in again.groups] == ["a", "b", "c"]
    assert [(rule.name, rule.expr, rule.wait, rule.labels, rule.annotations) for rule in again.rules] == [
        (rule.name, rule.expr, rule.wait, rule.labels, rule.annotations) for file in FILES for rule in file.rules
    ]


def test_the_command_prints_one_object_with_what_was_changed(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    words = ["rules", "--kubernetes", "--namespace", "monitoring", "--without", "Watchdog", "--dashboard-base", "https://poise.example"]
    assert command.run(parser.parse_args(words)) == 0
    found = yaml.safe_load(capsys.readouterr().out)
    alerts = [rule for group in found["spec"]["groups"] for rule in group["rules"] if "alert" in rule]
    assert found["metadata"]["namespace"] == "monitoring"
    assert "Watchdog" not in {rule["alert"] for rule in alerts}
    assert all("localhost" not in rule["annotations"]["dashboard_url"] for rule in alerts)
