"""The XIDs that rules name are those of the exporter's catalogue."""

from __future__ import annotations

import re

from poise.alerts import shipped
from poise.alerts.rules import load
from poise.exporter.nvml.xid_catalogue import CATALOGUE, FATAL, Severity

#: It follows every kill (NVIDIA's catalogue), so it says nothing about repetition.
FOLLOWS_EVERY_KILL = 45


def codes(alert: str) -> list[set[int]]:
    """The codes of every XID matcher in the expressions of an alert."""
    rules = [rule for path in shipped.rule_files() for rule in load(path).alerts if rule.name == alert]
    return [{int(code) for code in match.split("|")} for rule in rules for match in re.findall(r'xid=~"([\d|]+)"', rule.expr)]


def test_the_fatal_rule_names_all_fatal_codes() -> None:
    assert codes("GPUXidFatal") == [set(FATAL)]


def test_the_rule_about_programs_names_all_codes_of_programs_but_the_one_that_follows_every_kill() -> None:
    application = {code for code, entry in CATALOGUE.items() if entry.severity is Severity.APPLICATION}
    assert codes("GPUXidApplication") == [application - {FOLLOWS_EVERY_KILL}] * 2
