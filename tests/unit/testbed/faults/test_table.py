"""The table of faults: complete, and every name in it is one that the rest of Poise knows."""

from __future__ import annotations

from pathlib import Path

import pytest
from poise.exporter.checks import runner
from poise.testbed.faults import FAULTS, Fault, signs

RULES = Path("alerts/poise/alerts/rules")
#: Alerts of issue 5 whose rules are being written; the end is an empty set.
RULES_TO_COME: frozenset[str] = frozenset()
OF_THE_ISSUES = {
    *("one-visible", "one-card", "kill-rank", "rank-gone", "slow-clock", "link-down", "card-lost"),
    *("kill-prefill", "kill-decode", "kill-router", "hang"),
    *("decode-direct", "prefill-direct", "kv-transfer-broken", "stale-peer", "model-mismatch", "slow-prefill", "slow-decode"),
    *("queue-flood", "kv-exhausted", "client-aborts"),
    *("thermal", "power-brake", "link-errors", "xid-79", "ecc", "driver-hang", "foreign-process", "scrape-blackhole"),
}

each_fault = pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])


def test_the_faults_of_the_issues_are_all_there_once() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names)
    assert set(names) >= OF_THE_ISSUES


def test_faults_of_a_group_stand_together() -> None:
    groups = [fault.group for fault in FAULTS]
    assert [group for place, group in enumerate(groups) if group not in groups[:place]] == [
        group for place, group in enumerate(groups) if place == 0 or groups[place - 1] != group
    ]


@each_fault
def test_a_fault_names_rules_that_exist_or_that_are_being_written(fault: Fault) -> None:
    text = "\n".join(path.read_text() for path in RULES.glob("*.yml"))
    for alert in (*fault.raises.alerts, *fault.raises.tolerated):
        assert (f"alert: {alert}\n" in text) != (alert in RULES_TO_COME), f"{alert}: is it written, or to come?"


@each_fault
def test_a_fault_names_series_and_labels_that_are_declared_and_checks_that_exist(fault: Fault) -> None:
    assert fault.raises.series
    for sign in fault.raises.series:
        assert {name for name, _ in sign.labels} <= set(signs.metric_of(sign).label_names), sign
    assert set(fault.raises.checks) <= {name for name, _, _ in runner.CHECKS}
