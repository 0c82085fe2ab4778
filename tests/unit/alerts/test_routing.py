"""The shipped Alertmanager configuration, and its copies for test beds."""

from __future__ import annotations

import yaml
from poise.alerts import routing, shipped
from poise.alerts.rules import load


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


def test_inhibitions_name_alerts_and_components_that_exist() -> None:
    rules = [rule for path in shipped.rule_files() for rule in load(path).alerts]
    known = {rule.name for rule in rules} | {rule.labels["component"] for rule in rules}
    for inhibition in yaml.safe_load(routing.shipped_configuration())["inhibit_rules"]:
        for matcher in (*inhibition["source_matchers"], *inhibition["target_matchers"]):
            assert set(matcher.split('"')[1].split("|")) <= known, matcher
