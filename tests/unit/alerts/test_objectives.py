"""One SLO configuration: what rules are rendered with is what pages draw."""

from __future__ import annotations

import re

from poise.alerts import shipped
from poise.alerts.objectives import Objectives, objectives
from poise.alerts.rules import load
from poise.alerts.thresholds import change, parse_settings, shipped_thresholds

MINE = "[SLO]\nttft_seconds = 5\nitl_seconds = 0.05\nttft_budget = 0.05\n"


def test_as_shipped_they_are_the_numbers_in_the_rules() -> None:
    assert objectives() == Objectives(2.5, 0.01, 0.1, 0.01, 0.001)


def test_one_file_changes_rules_and_bands_alike() -> None:
    settings = parse_settings(MINE, "mine.toml")
    assert objectives(settings) == Objectives(5, 0.05, 0.05, 0.01, 0.001)
    files = change([load(path) for path in shipped.rule_files()], settings)
    text = "\n".join(rule.expr for file in files for rule in file.rules)
    bounds = {name: set(re.findall(rf'{name}_bucket\{{le="([^"]+)"\}}', text)) for name in ("first_token_seconds", "token_latency_seconds")}
    assert bounds == {"first_token_seconds": {"5.0"}, "token_latency_seconds": {"0.05"}}
    assert "/ 0.05  # SLO.ttft_budget" in text


def test_the_missing_input_of_an_objective_is_looked_for_where_the_objective_is() -> None:
    """RuleInputMissing must follow a changed objective: else it would be silent about a bound that does not exist."""
    settings = parse_settings(MINE, "mine.toml")
    files = change([load(path) for path in shipped.rule_files()], settings)
    (rule,) = [rule for file in files for rule in file.alerts if rule.name == "RuleInputMissing"]
    assert 'le="5.0"' in rule.expr
    assert 'le="0.05"' in rule.expr


def test_shipped_objectives_are_bounds_of_vllms_buckets() -> None:
    """v1/metrics/buckets.py of vLLM 0.33."""
    first_token = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0}
    between = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0}
    assert shipped_thresholds()["SLO.ttft_seconds"].value in first_token
    assert shipped_thresholds()["SLO.itl_seconds"].value in between
