"""Rules, runbooks, promtool tests and docs belong together: an alert that lacks one of them is not done."""

from __future__ import annotations

import functools
import itertools
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml
from poise.alerts import docs, runbooks, shipped
from poise.alerts.durations import parse_duration
from poise.alerts.rules import load

ROOT = Path(__file__).resolve().parents[3]
ALERTS = {rule.name for path in shipped.rule_files() for rule in load(path).alerts}
#: It has no quiet case: when it is quiet, the path is broken.
NEVER_QUIET = {"Watchdog"}


@functools.cache
def rule_tests() -> dict[str, Any]:
    """The promtool tests by the name of their file."""
    return {path.stem: yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)["tests"] for path in shipped.rule_test_files()}


def answers() -> dict[str, list[list[tuple[float, bool]]]]:
    """Alert → for each promtool test that asks for it: times (seconds) and whether it should fire then."""
    result: dict[str, list[list[tuple[float, bool]]]] = defaultdict(list)
    for tests in rule_tests().values():
        for test in tests:
            asked: dict[str, list[tuple[float, bool]]] = defaultdict(list)
            for question in test.get("alert_rule_test", ()):
                asked[question["alertname"]].append((parse_duration(question["eval_time"]), bool(question["exp_alerts"])))
            for alert, times in asked.items():
                result[alert].append(sorted(times))
    return result


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert set(runbooks.names()) == ALERTS


def test_every_alert_has_a_file_of_tests_with_its_name() -> None:
    assert {path.stem for path in shipped.rule_test_files()} == ALERTS | {"recording"}


def test_every_alert_has_a_firing_a_quiet_and_a_resolved_case() -> None:
    asked = answers()
    for alert in ALERTS:
        cases = asked[alert]
        assert any(fires for case in cases for _, fires in case), f"{alert} never fires"
        if alert not in NEVER_QUIET:
            assert any(not any(fires for _, fires in case) for case in cases), f"{alert} has no quiet case"
            assert any(fires and not later for case in cases for (_, fires), (_, later) in itertools.pairwise(case)), (
                f"{alert} is never resolved"
            )


def test_every_alert_that_fires_is_tried_over_lost_scrapes() -> None:
    for alert in ALERTS - NEVER_QUIET:
        first = rule_tests()[alert][0]
        assert any(" stale " in series["values"] for series in first["input_series"]), alert


def test_every_alert_tells_a_person_what_it_is_and_what_to_do() -> None:
    for path in shipped.rule_files():
        for rule in load(path).alerts:
            assert set(rule.annotations) == {"summary", "description", "action", "runbook_url", "dashboard_url"}, rule.name
            assert set(rule.labels) - {"subject"} == {"severity", "component"}, rule.name
            assert re.search(r"\$value|\d", _without_labels(rule.annotations["description"])), f"{rule.name} gives no number"


def _without_labels(text: str) -> str:
    return re.sub(r"\$labels\.\w+", "", text)


def test_the_documentation_is_what_rules_and_runbooks_say() -> None:
    assert (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8") == docs.page(), "run `make docs`"


def test_the_documentation_has_a_section_for_every_alert() -> None:
    page = docs.page()
    assert {alert for alert in ALERTS if f"\n### {alert}\n" not in page} == set()
