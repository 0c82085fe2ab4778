"""The shipped Alertmanager configuration, and its copies for test beds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from poise.alerts import check, routing, shipped
from poise.alerts.check import SEVERITIES
from poise.alerts.rules import Rule, load


def test_webhooks_go_where_they_are_told_and_times_shrink_to_a_second_at_least() -> None:
    adapted = yaml.safe_load(routing.adapt(routing.shipped_configuration(), webhook_base="http://127.0.0.1:1/", factor=0.01))
    urls = {receiver["name"]: receiver["webhook_configs"][0]["url"] for receiver in adapted["receivers"] if "webhook_configs" in receiver}
    assert urls == {name: f"http://127.0.0.1:1/{name}" for name in ("page", "ticket", "simulated", "deadman")}
    assert adapted["route"]["group_wait"] == "1s"
    assert adapted["route"]["group_interval"] == "3s"
    assert adapted["route"]["routes"][0]["repeat_interval"] == "1s"


def test_routes_receivers_and_inhibitions_stay() -> None:
    original = yaml.safe_load(routing.shipped_configuration())
    adapted = yaml.safe_load(routing.adapt(routing.shipped_configuration(), webhook_base="http://127.0.0.1:1"))
    assert adapted["inhibit_rules"] == original["inhibit_rules"]
    assert [route["receiver"] for route in adapted["route"]["routes"]] == [route["receiver"] for route in original["route"]["routes"]]


def test_inhibitions_name_alerts_components_and_severities_that_exist() -> None:
    rules = [rule for path in shipped.rule_files() for rule in load(path).alerts]
    known = {rule.name for rule in rules} | {rule.labels["component"] for rule in rules} | set(SEVERITIES)
    for inhibition in yaml.safe_load(routing.shipped_configuration())["inhibit_rules"]:
        for matcher in (*inhibition["source_matchers"], *inhibition["target_matchers"]):
            assert set(matcher.split('"')[1].split("|")) <= known, matcher


def test_what_an_inhibition_compares_both_sides_have() -> None:
    """A label that one side lacks never matches; one that both lack always does, and would mute everything everywhere."""
    files = [load(path) for path in shipped.rule_files()]
    labels = check.result_labels(files)
    rules = [(rule, set(labels[id(rule)] or ())) for file in files for rule in file.alerts]
    for inhibition in yaml.safe_load(routing.shipped_configuration())["inhibit_rules"]:
        equal = set(inhibition["equal"])
        for side in ("source_matchers", "target_matchers"):
            meant = [own for rule, own in rules if _matches(rule, inhibition[side])]
            assert meant, f"{inhibition[side]} means no alert"
            assert any(equal <= own for own in meant), f"{inhibition[side]}: none has all of {equal}"
        sources = [own for rule, own in rules if _matches(rule, inhibition["source_matchers"])]
        for rule, own in rules:
            if _matches(rule, inhibition["target_matchers"]):
                # Whatever lacks the same labels as a source would be muted by it wherever it is.
                assert not any(not (equal & own) and not (equal & source) for source in sources), (rule.name, inhibition)


def _matches(rule: Rule, matchers: list[str]) -> bool:
    carried = {**rule.labels, "alertname": rule.name}
    for matcher in matchers:
        name, operator, value = re.fullmatch(r'(\w+)(=~|!~|!=|=)"(.*)"', matcher).groups()  # type: ignore[union-attr]  # the file is ours
        own = carried.get(name, "")
        hit = re.fullmatch(value, own) is not None if "~" in operator else own == value
        if hit is operator.startswith("!"):
            return False
    return True


@pytest.mark.parametrize("path", shipped.receiver_examples(), ids=lambda path: path.stem)
def test_examples_of_receivers_keep_secrets_in_files_and_go_where_routes_lead(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    merged = yaml.safe_load(routing.with_receivers(routing.shipped_configuration(), text))
    original = yaml.safe_load(routing.shipped_configuration())
    assert [receiver["name"] for receiver in merged["receivers"]] == [receiver["name"] for receiver in original["receivers"]]
    assert merged["route"] == original["route"]
    secret = re.compile(r"(secret|password|token|credentials|routing_key|api_key|service_key|slack_api_url|^api_url)$")
    for key, value in _pairs(yaml.safe_load(text)):
        assert not secret.search(key), f"{key} would hold a secret in the file"
        if key.endswith("_file"):
            assert str(value).startswith("/etc/alertmanager/secrets/")


def _pairs(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, inner
            yield from _pairs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _pairs(inner)


def test_a_receiver_that_no_route_knows_is_named() -> None:
    with pytest.raises(ValueError, match='no route leads to the receiver "pager"; there are page, ticket'):
        routing.with_receivers(routing.shipped_configuration(), "receivers: [{name: pager}]")
