"""Expressions taken apart and scaled: time changes, meaning does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.alerts import shipped
from poise.alerts.expressions import ExpressionError, parse, scale, selected_names, walk
from poise.alerts.rules import Rule, load

RULES = [rule for path in shipped.rule_files() for rule in load(path).rules]


@pytest.mark.parametrize(
    ("text", "factor", "scaled"),
    [
        ("rate(a[5m]) > 5", 0.1, "rate(a[30s]) > 5"),
        ("rate(a[5m] offset 1h)", 0.1, "rate(a[30s] offset 6m)"),
        ("a offset -10m", 0.1, "a offset -1m"),
        ("max_over_time(rate(a[5m])[1h:30s] offset 1d)", 0.1, "max_over_time(rate(a[30s])[6m:3s] offset 2h24m)"),
        ("avg_over_time(a[1h:])", 0.1, "avg_over_time(a[6m:])"),
        ("max_over_time(a[1h:1m] @ end())", 0.1, "max_over_time(a[6m:6s] @ end())"),
        ("max_over_time(a[1h:1m] @ 1600000000.5)", 0.1, "max_over_time(a[6m:6s] @ 1600000000.5)"),
        ("max_over_time(a[1h] @ start())", 0.1, "max_over_time(a[6m] @ start())"),
        ("time() - a < 900", 0.1, "time() - a < 90"),
        ("900 >= (time() - max_over_time(a[2m]))", 0.1, "90 >= (time() - max_over_time(a[12s]))"),
        ("time() - a > bool 3", 0.5, "time() - a > bool 1.5"),
        ("time() - a < 900 and b < 900", 0.1, "time() - a < 90 and b < 900"),
        ("a - b < 900", 0.1, "a - b < 900"),
        ("clamp_max(a, 900)", 0.1, "clamp_max(a, 900)"),
        ("rate(a[5m])", 0.001, "rate(a[2s])"),
    ],
)
def test_time_is_scaled_and_nothing_else(text: str, factor: float, scaled: str) -> None:
    assert str(parse(scale(text, factor))) == str(parse(scaled))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.name}-{rule.line}")
def test_a_factor_of_one_changes_no_shipped_rule(rule: Rule) -> None:
    assert str(parse(scale(rule.expr, 1))) == str(parse(rule.expr))


@given(st.integers(2, 10**5), st.sampled_from([0.5, 0.1, 1 / 30, 1 / 7, 0.001]))
def test_a_range_is_whole_seconds_never_shorter_than_asked_nor_than_two(seconds: int, factor: float) -> None:
    (selector,) = [node for node in walk(parse(scale(f"rate(a[{seconds}s])", factor))) if hasattr(node, "range")]
    scaled = selector.range.total_seconds()
    assert scaled == int(scaled)
    assert max(2, seconds * factor) - 1e-3 <= scaled < max(2, seconds * factor) + 1


def test_names_are_found_wherever_they_stand() -> None:
    text = 'sum by (x) (rate(a_total[5m])) / on (x) b{c="d"} unless {__name__="e"} or topk(2, max_over_time(f[1h:]))'
    assert selected_names(parse(text)) == {"a_total", "b", "e", "f"}


@pytest.mark.parametrize("text", ["sum(", "a[5m", "a ++ ", "rate(a)", ""])
def test_what_does_not_parse_is_said_in_one_line(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
