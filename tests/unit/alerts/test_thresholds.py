"""Thresholds: declared once, marked where they stand, changed in copies, and no number decides without a name."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from poise.alerts import settings, shipped, thresholds
from poise.alerts.rules import RuleFile, load, parse_rules, render
from poise.alerts.thresholds import ThresholdError, change, marks, parse_declarations, parse_settings, shipped_thresholds

FILES = [load(path) for path in shipped.rule_files()]
#: A comparison with a number at the end of a line or of a bracket, and the number. 0 and 1 are states, not thresholds.
COMPARED = re.compile(r"(?:==|!=|<=|>=|<|>)(?: bool)? (\d[\d.eE]*)")


def expressions(files: tuple[RuleFile, ...]) -> dict[str, str]:
    return {rule.name: rule.expr for file in files for rule in file.rules}


def by_name(file: RuleFile) -> list[tuple[str, str]]:
    return [(rule.name, rule.expr) for rule in file.rules]


def test_rules_and_declarations_say_the_same() -> None:
    assert list(thresholds.disagreements(FILES)) == []


def test_no_number_decides_without_a_name() -> None:
    """A comparison with anything but 0 or 1 is a threshold, and a user must find and change it."""
    bare = [
        f"{rule.name}: {line.strip()}"
        for file in FILES
        for rule in file.rules
        for line in rule.expr.splitlines()
        if any(number not in ("0", "1") for number in COMPARED.findall(line)) and not marks(line)
    ]
    assert bare == []


def test_every_threshold_has_a_source_and_a_meaning() -> None:
    for threshold in shipped_thresholds().values():
        assert len(threshold.source) >= len("heuristic"), threshold.name
        assert threshold.meaning, threshold.name
        assert "|" not in threshold.source + threshold.meaning, f"{threshold.name} would break the table of docs/alerts.md"


def test_a_changed_number_is_changed_wherever_it_is_marked_and_nowhere_else() -> None:
    before, after = expressions(tuple(FILES)), expressions(change(FILES, {"Serving.tokens_per_second": "25.5"}))
    assert after["poise_engine:serving:tokens_rate5m"].count("> 25.5  # Serving.tokens_per_second") == 2
    assert {name for name in before if before[name] != after[name]} == {"poise_engine:serving:tokens_rate5m"}


def test_a_changed_alert_says_so_in_its_notification() -> None:
    changed = change(FILES, {"EngineDown.loading_seconds": "60", "EngineDown.for": "5m"})
    rules = [rule for file in changed for rule in file.alerts if rule.name == "EngineDown"]
    assert {rule.wait for rule in rules} == {300.0}
    for rule in rules:
        assert "EngineDown.loading_seconds is 60, not 1200; EngineDown.for is 5m, not 2m" in rule.annotations["changed"]


def test_every_threshold_and_every_duration_can_be_changed_and_the_result_is_a_rule_file() -> None:
    wanted = {name: "1m" if name.rpartition(".")[2] in thresholds.DURATIONS else "1" for name in thresholds.names(FILES)}
    changed = change(FILES, wanted)
    assert all(by_name(parse_rules(render(file), file.name)) == by_name(file) for file in changed)
    for file in changed:
        assert all(mark.value == 1.0 for rule in file.rules for mark in marks(rule.expr))
        assert all(rule.wait == rule.keep_firing_for == 60.0 for rule in file.alerts)


def test_the_last_number_of_the_line_is_meant_whatever_else_stands_there() -> None:
    (bound,) = marks('rate(poise_x_bucket{le="2.5"}[5m])  # Slo.seconds')
    assert bound.value == 2.5
    (factor,) = marks("poise_engine:a1:rate5m > 14.4  # Slo.factor")
    assert factor.value == 14.4
    (huge,) = marks("(x:y:rate5m > 1e9)  # Link.bytes")
    assert huge.value == 1e9


def test_the_bound_of_a_bucket_is_written_as_pages_have_it() -> None:
    """Prometheus 2 compares le as text, and Python's client writes 5.0."""
    rule = 'groups: [{name: g, rules: [{record: "a:b:c", expr: "rate(x_bucket{le=\\"2.5\\"}[5m]) # Slo.seconds"}]}]'
    (file,) = change([parse_rules(rule)], {"Slo.seconds": "5"})
    assert 'le="5.0"' in file.rules[0].expr


def test_a_comment_that_is_no_name_is_no_mark() -> None:
    assert marks("up > 3  # three of them") == ()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            {"EngineDown.seconds": "1"},
            "EngineDown.seconds: there is no such threshold; did you mean 'EngineDown.loading_seconds'? `poise alerts",
        ),
        ({"EngineDown.loading_seconds": "1m"}, 'EngineDown.loading_seconds: "1m" is no number'),
        ({"EngineDown.loading_seconds": "-1"}, "EngineDown.loading_seconds: -1 is no seconds; it must be zero or more"),
        ({"EngineDown.loading_seconds": "nan"}, "it must be zero or more"),
        ({"EngineRankStraggler.clock_ratio": "85"}, "EngineRankStraggler.clock_ratio: 85 is no ratio; it must be between 0 and 1"),
        ({"EngineDown.for": "5 min"}, 'EngineDown.for: "5 min" is no duration'),
    ],
)
def test_what_cannot_be_is_said(wanted: dict[str, str], message: str) -> None:
    with pytest.raises(ThresholdError, match=re.escape(message)):
        change(FILES, wanted)


def test_a_mark_without_a_number_is_named() -> None:
    with pytest.raises(ThresholdError, match=re.escape("A.b marks a line without a number")):
        marks("max_over_time(up[5m])  # A.b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[A.b]\nvalue = 1", r"\[A.b\] must have value, unit, meaning and source"),
        ("[A.for]\nvalue=1\nunit='count'\nmeaning=''\nsource=''", "must have value"),
        ("[A.b]\nvalue=1\nunit='apples'\nmeaning=''\nsource=''", 'the unit "apples" is none of ratio'),
        ("[A", "no valid TOML"),
    ],
)
def test_a_declaration_that_lacks_something_is_named(text: str, message: str) -> None:
    with pytest.raises(ThresholdError, match=message):
        list(parse_declarations(text, "x.toml"))


def test_a_persons_file_names_alerts_with_their_numbers() -> None:
    text = '[EngineDown]\nloading_seconds = 60\nfor = "5m"\n'
    assert parse_settings(text, "mine.toml") == {"EngineDown.loading_seconds": "60", "EngineDown.for": "5m"}


def test_the_forms_of_the_configuration_are_taken_from_a_file_too_and_the_other_way_round() -> None:
    forms = ('[A]\nb = 2\nfor = "5m"', 'A.b = 2\n"A.for" = "5m"', '[alerts.thresholds]\nA.b = 2\n"A.for" = "5m"')
    for form in forms:
        assert parse_settings(form, "mine.toml") == {"A.b": "2", "A.for": "5m"}
    for form in forms[:2]:
        assert settings.threshold_values(tomllib.loads(form)) == {"A.b": "2", "A.for": "5m"}
    with pytest.raises(ValueError, match=r"A: write a table \[ALERT\]"):
        settings.threshold_values({"A": 1})


@pytest.mark.parametrize(
    ("text", "message"), [("a = 1", "write a table"), ("[A]\nb = true", "A.b must be a number"), ("[", "no valid TOML")]
)
def test_a_persons_file_that_says_something_else_is_refused(text: str, message: str) -> None:
    with pytest.raises(ThresholdError, match=message):
        parse_settings(text, "mine.toml")


def test_a_file_that_is_no_text_is_said(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(ThresholdError, match="no UTF-8 text"):
        thresholds.read_settings(path)
