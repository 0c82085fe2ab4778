"""Rule files: read with every mistake named, and written again with the same meaning."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from poise.alerts import shipped
from poise.alerts.rules import Group, Rule, RuleError, RuleFile, load, parse_rules, render

GOOD = """\
groups:
  - name: g
    interval: 30s
    limit: 5
    rules:
      - record: level:metric:sum
        expr: sum(up)
        labels: {team: ops}
      - alert: Down
        expr: |-
          up == 0
        for: 5m
        keep_firing_for: 1m30s
        labels: {severity: critical}
        annotations: {summary: "{{ $labels.instance }} is down"}
"""


def test_every_field_of_groups_and_rules_is_read() -> None:
    (group,) = parse_rules(GOOD, "a.yml").groups
    assert (group.name, group.interval, group.limit, group.line) == ("g", 30.0, 5, 2)
    recorded, alert = group.rules
    assert (recorded.alert, recorded.name, recorded.expr, recorded.labels) == (False, "level:metric:sum", "sum(up)", {"team": "ops"})
    assert (alert.alert, alert.name, alert.expr, alert.wait, alert.keep_firing_for) == (True, "Down", "up == 0", 300.0, 90.0)
    assert alert.annotations == {"summary": "{{ $labels.instance }} is down"}
    assert alert.line == 9


def test_an_empty_file_has_no_groups() -> None:
    assert parse_rules("# nothing\n").groups == ()
    assert parse_rules("groups:\n").groups == ()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: g", "nome: g", 'a.yml:2: unknown field "nome"'),
        ("for: 5m", "for: 5 min", 'a.yml:12, group "g", alert "Down": for: "5 min" is no duration'),
        ("for: 5m", "fro: 5m", 'a.yml:12, group "g": unknown field "fro"'),
        ("expr: sum(up)", "expr: sum(up", 'a.yml:7, group "g", record "level:metric:sum": expr: '),
        ("expr: sum(up)", "for: 1m", 'a.yml:7, group "g", record "level:metric:sum": `for` is for alerts only'),
        ("record: level:metric:sum", 'record: "a b"', 'a.yml:6, group "g", record "a b": not the name of a series'),
        ("alert: Down", "record: x\n        alert: Down", 'a.yml:9, group "g": a rule has either `record` or `alert`'),
        ("labels: {severity", "labels: {se-verity", '"se-verity" in labels is no label name'),
        ("limit: 5", "limit: many", 'limit: "many" is no whole number'),
        ("limit: 5", "limit: ٥", 'a.yml:4, group "g": limit: '),
        ("limit: 5", f"limit: {'1' * 5000}", 'a.yml:4, group "g": limit: "111'),
        ("limit: 5", "limit: 9223372036854775808", "is more than Prometheus takes, 9223372036854775807"),
        ("interval: 30s", f"interval: {'9' * 400}y", 'a.yml:3, group "g": interval: "999'),
        ("interval: 30s", "interval: 293y", 'a.yml:3, group "g": interval: "293y" is more than Prometheus takes, about 292 years'),
        ("for: 5m", "for: 99999999999999y", 'alert "Down": for: "99999999999999y" is more than'),
        (" is down", r" is \ud83d\ude00", r"""a.yml:15, group "g", alert "Down": '\ud83d' is half a character"""),
        ("{severity: critical}", r'{severity: "\udc00"}', r"'\udc00' is half a character"),
        ("name: g", r'"na\ud800me": g', "a.yml:2: '\\ud800' is half a character"),
        (" is down", r" is \U00110000", "no valid YAML: an escape in it"),
        (" is down", r" is \UFFFFFFFF", "no valid YAML: an escape in it"),
        ("name: g", "name: g\0", r"a.yml:2: no valid YAML: the character '\x00' may not stand in it"),
        ("groups:", "[" * 2_000, "a.yml: no valid YAML: nested too deeply"),
        ("expr: sum(up)", "expr: ''", 'record "level:metric:sum": it has no `expr`'),
        ("rules:", "rules: 3\n    labels:", 'a.yml:5, group "g": expected a list'),
        ("interval: 30s", "interval: 30s\n    interval: 31s", 'the field "interval" stands twice'),
        ("groups:", "groups: [", "no valid YAML"),
    ],
)
def test_a_mistake_is_named_with_file_line_group_and_rule(old: str, new: str, message: str) -> None:
    with pytest.raises(RuleError) as caught:
        parse_rules(GOOD.replace(old, new, 1), "a.yml")
    assert message in str(caught.value)


def test_a_file_that_is_no_utf_8_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "latin1.yml"
    path.write_bytes(GOOD.replace("ops", "é").encode("latin-1"))
    with pytest.raises(RuleError, match=r"latin1.yml:8: no UTF-8 text"):
        load(path)


def test_a_character_beyond_16_bits_may_be_escaped() -> None:
    (_, alert) = parse_rules(GOOD.replace(" is down", r" \U0001F600")).rules
    assert alert.annotations["summary"].endswith("\U0001f600")


def test_a_recording_rule_without_expression_is_refused() -> None:
    with pytest.raises(RuleError, match='group "g", record "a:b:c": it has no `expr`'):
        parse_rules("groups: [{name: g, rules: [{record: 'a:b:c'}]}]")


def test_two_groups_of_one_name_are_refused() -> None:
    with pytest.raises(RuleError, match='two groups are called "g"'):
        parse_rules("groups: [{name: g, rules: []}, {name: g, rules: []}]")


def test_yaml_anchors_are_followed() -> None:
    text = "groups: [{name: g, rules: [{alert: A, expr: up, labels: &l {severity: none}}, {alert: B, expr: up, labels: *l}]}]"
    assert [rule.labels["severity"] for rule in parse_rules(text).rules] == ["none", "none"]


def test_fields_of_prometheus_3_are_kept() -> None:
    file = parse_rules("groups: [{name: g, query_offset: 1m, labels: {team: ops}, rules: []}]")
    assert yaml.safe_load(render(file))["groups"][0] == {"name": "g", "query_offset": "1m", "labels": {"team": "ops"}, "rules": []}


def test_a_header_becomes_a_comment() -> None:
    assert render(parse_rules(GOOD), "one\n\ntwo").startswith("# one\n#\n# two\ngroups:\n")


def meaning(file: RuleFile) -> object:
    return [(group.name, group.interval, group.limit, [_without_line(rule) for rule in group.rules]) for group in file.groups]


def _without_line(rule: Rule) -> object:
    return (rule.name, rule.alert, rule.expr, rule.wait, rule.keep_firing_for, dict(rule.labels), dict(rule.annotations))


@pytest.mark.parametrize("path", shipped.rule_files(), ids=lambda path: path.name)
def test_what_is_written_means_what_was_read(path: Path) -> None:
    file = load(path)
    assert meaning(parse_rules(render(file))) == meaning(file)


texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=30)


@given(
    st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), texts, max_size=4),
    st.integers(0, 10**6),
    st.text("yes no:'\"#{}%\n", min_size=1),
)
def test_any_text_survives_writing(annotations: dict[str, str], wait: int, name: str) -> None:
    file = RuleFile("x", (Group(name, (Rule("A", True, "up", wait=float(wait), annotations=annotations),)),))
    assert meaning(parse_rules(render(file))) == meaning(file)
