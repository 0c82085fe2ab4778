"""Settings of alerting: layers, values, and what is wrong in words."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from poise.alerts import settings as module
from poise.alerts.notification.alertmanager import Place
from poise.alerts.rule_set import rule_files
from poise.alerts.settings import AlertSettings, add_arguments, load
from poise.alerts.thresholds import ThresholdError
from poise.exporter.access import Access
from poise.exporter.settings import SettingsError

FILE = """
[alerts]
mode = "builtin"
interval = "30s"
rules = ["own.yml"]
without = ["NodeGPUUnowned"]
external_labels = { cluster = "c1" }
page = "https://poise.example/"

[alerts.thresholds]
EngineQueueTimeHigh.seconds = 10
"EngineDown.for" = "5m"

[[alertmanager]]
url = "https://am-1:9093"
ca_file = "ca.pem"
username = "poise"
password_file = "secret"

[[alertmanager]]
url = "http://am-2:9093/prefix/"
timeout = "5s"
"""


def loaded(*arguments: str, file: Path | None = None, **environment: str) -> AlertSettings:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.add_argument("--config", default=None if file is None else str(file))
    return load(parser.parse_args(arguments), environment)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "poise.toml"
    path.write_text(FILE)
    return path


def test_without_anything_said_the_shipped_rules_are_evaluated_here_and_nobody_is_told() -> None:
    assert loaded() == AlertSettings()
    assert AlertSettings().mode == "builtin"
    assert AlertSettings().alertmanagers == ()


def test_a_file_says_everything_and_its_paths_start_beside_it(file: Path) -> None:
    settings = loaded(file=file)
    folder = file.parent
    assert settings == AlertSettings(
        mode="builtin",
        interval=30.0,
        rules=(str(folder / "own.yml"),),
        without=("NodeGPUUnowned",),
        thresholds={"EngineQueueTimeHigh.seconds": "10", "EngineDown.for": "5m"},
        external_labels={"cluster": "c1"},
        page="https://poise.example",
        alertmanagers=(
            Place(
                "https://am-1:9093", access=Access(ca_file=str(folder / "ca.pem"), username="poise", password_file=str(folder / "secret"))
            ),
            Place("http://am-2:9093/prefix", 5.0),
        ),
    )


def test_environment_wins_over_the_file_and_flags_over_both(file: Path) -> None:
    settings = loaded(
        "--alerts",
        "off",
        "--external-label",
        "a=b",
        file=file,
        POISE_ALERTS_MODE="external",
        POISE_ALERTS_INTERVAL="10s",
        POISE_ALERTS_SERVICE_HOST="1",
    )
    assert (settings.mode, settings.interval, settings.external_labels) == ("off", 10.0, {"a": "b"})
    told = loaded("--alertmanager", "http://one:9093,timeout=3s", "--alertmanager", "https://two:9093,bearer_token_env=TOKEN")
    assert told.alertmanagers == (Place("http://one:9093", 3.0), Place("https://two:9093", access=Access(bearer_token_env="TOKEN")))
    assert len(loaded(POISE_ALERTS_ALERTMANAGERS="http://one:9093; http://two:9093").alertmanagers) == 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--alertmanager", "one:9093"), "one:9093"),
        (("--alertmanager", "http://one,password=geheim"), "password_file"),
        (("--alertmanager", "http://one,colour=red"), "unknown option 'colour'"),
        (("--alertmanager", "http://one", "--alertmanager", "http://one/"), "stands twice"),
        (("--alertmanager", "http://one,timeout=soon"), "timeout"),
        (("--alerts-interval", "0.1s"), "between 1s and 1h"),
        (("--external-label", "alertname=x"), "'alertname' is no name"),
        (("--external-label", "cluster"), "is not NAME=VALUE"),
        (("--alerts-time-scale", "2"), "above 0 and at most at 1"),
        (("--alerts-time-scale", "fast"), "expected a number"),
        (("--page-url", "poise.example"), "page-url"),
    ],
)
def test_a_flag_that_cannot_be_is_named_with_the_way_out(arguments: tuple[str, ...], named: str) -> None:
    with pytest.raises(SettingsError, match=named) as raised:
        loaded(*arguments)
    assert "geheim" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[alerts]\nmode = "both"', "builtin, external, off"),
        ("[alerts]\nmodus = 1", r"unknown key 'modus' in \[alerts\]"),
        ('[alerts]\nalertmanagers = ["http://one"]', r"write \[\[alertmanager\]\]"),
        ("[alerts]\nrules = 3", "expected a list of texts"),
        ("[alerts.thresholds]\nA.b = true", "A.b must be a number"),
        ('[[alertmanager]]\nname = "x"', "unknown key 'name'"),
        ("[[alertmanagers]]\nurl = 'http://one'", r"\[\[alertmanager\]\]"),
    ],
)
def test_a_file_that_cannot_be_is_named_with_place_and_way_out(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "poise.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=named) as raised:
        loaded(file=path)
    assert "poise.toml" in str(raised.value)


def test_a_variable_that_nobody_knows_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"POISE_ALERTS_MODUS; did you mean .POISE_ALERTS_MODE"):
        loaded(POISE_ALERTS_MODUS="off")


def test_every_setting_can_be_said_in_a_file_and_in_the_environment() -> None:
    assert set(module.field_names()) == set(module._LAYERS.parsers)


def test_the_rules_in_force_have_thresholds_links_and_the_users_own(tmp_path: Path) -> None:
    own = tmp_path / "own.yml"
    own.write_text("groups: [{name: own, rules: [{alert: Mine, expr: up == 0, for: 10m}]}]")
    settings = AlertSettings(rules=(str(own),), without=("NodeGPUUnowned",), thresholds={"EngineDown.for": "7m"}, time_scale=0.5)
    rules = {rule.name: rule for file in rule_files(settings, "https://poise.example") for rule in file.rules}
    assert "NodeGPUUnowned" not in rules
    assert rules["Mine"].wait == 300.0
    assert rules["EngineDown"].wait == 210.0
    assert rules["EngineDown"].annotations["runbook_url"] == "https://poise.example/runbooks/EngineDown"
    assert rules["EngineDown"].annotations["dashboard_url"].startswith("https://poise.example/")


def test_a_threshold_that_is_not_there_is_refused() -> None:
    with pytest.raises(ThresholdError, match=r"NoSuch\.seconds"):
        rule_files(AlertSettings(thresholds={"NoSuch.seconds": "1"}), "http://page")
