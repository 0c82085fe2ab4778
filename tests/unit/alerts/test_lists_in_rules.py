"""Lists that rules carry as regular expressions are those of the exporter: an expression cannot import them."""

from __future__ import annotations

import re

from poise.alerts import shipped
from poise.alerts.rules import load
from poise.exporter.checks import runner
from poise.exporter.engines.kv_transfer import PEER_CONNECTORS
from poise.exporter.nvml.xid_catalogue import FATAL

ALERTS = [rule for path in shipped.rule_files() for rule in load(path).alerts]


def matched(alert: str, label: str) -> list[str]:
    """The alternatives of the regular expression on a label, in every rule of the alert."""
    found = [words for rule in ALERTS if rule.name == alert for words in re.findall(rf'{label}[=!]~"([^"]*)"', rule.expr)]
    assert found, f"{alert} has no regular expression on {label}"
    return [word for words in found for word in re.sub(r"^\.\*\(|\)\.\*$", "", words).split("|")]


def test_a_faulty_card_is_one_with_a_code_that_the_catalogue_calls_fatal() -> None:
    assert sorted(map(int, matched("EngineOnFaultyNode", "xid"))) == sorted(FATAL)


def test_connectors_that_hand_over_whole_prompts_are_the_exporters() -> None:
    assert sorted(matched("PDDecodeComputesPrompts", "kv_connector")) == sorted(PEER_CONNECTORS)


def test_checks_that_other_alerts_cover_exist_and_their_alerts_are_named_in_the_runbook() -> None:
    left_out = matched("CheckFailing", "check")
    assert set(left_out) <= set(check_names()), set(left_out) - set(check_names())
    assert len(left_out) == len(set(left_out))
    text = (shipped.RUNBOOKS / "CheckFailing.md").read_text(encoding="utf-8")
    table = dict(row for row in re.findall(r"^\| ([a-z_, ]+) \| (.+) \|$", text, re.MULTILINE) if row[0] != "check")
    assert sorted(name for names in table for name in names.split(", ")) == sorted(left_out)
    known = {rule.name for rule in ALERTS}
    for alerts in table.values():
        assert set(re.findall(r"\b[A-Z]\w+", alerts)) - {"PD"} <= known, alerts


def check_names() -> list[str]:
    """The names of the checks that the exporter runs."""
    return [name for name, _, _ in runner.CHECKS]
