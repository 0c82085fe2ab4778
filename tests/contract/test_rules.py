"""promtool and amtool on what ships: the rules and their tests, time-scaled copies, the Alertmanager configuration and its routes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from poise.alerts import promtool, routing, shipped
from poise.alerts.scale import scale_rules

from tests.needs import needs

pytestmark = pytest.mark.contract


def run(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_the_rules_without_a_lint() -> None:
    needs("promtool")
    opinion = promtool.check_rules(shipped.rule_files())
    assert opinion is not None
    assert opinion.accepted, opinion.text


@pytest.mark.parametrize("path", shipped.rule_test_files(), ids=lambda path: path.stem)
def test_rules_behave_as_their_tests_say(path: Path) -> None:
    run(needs("promtool"), "test", "rules", path)


@pytest.mark.parametrize("factor", [0.5, 0.05, 1 / 30, 0.001])
def test_promtool_accepts_time_scaled_copies(tmp_path: Path, factor: float) -> None:
    needs("promtool")
    copies = []
    for path in shipped.rule_files():
        copies.append(tmp_path / path.name)
        copies[-1].write_text(scale_rules(path.read_text(encoding="utf-8"), factor), encoding="utf-8")
    opinion = promtool.check_rules(copies)
    assert opinion is not None
    assert opinion.accepted, opinion.text


def test_a_rule_file_that_prometheus_refuses_is_refused_here_too(tmp_path: Path) -> None:
    needs("promtool")
    path = tmp_path / "twice.yml"
    path.write_text("groups: [{name: g, rules: [{record: 'a:b:c', expr: up}, {record: 'a:b:c', expr: up}]}]")
    opinion = promtool.check_rules([path])
    assert opinion is not None
    assert not opinion.accepted


def test_amtool_accepts_the_configuration_and_its_adapted_copy(tmp_path: Path) -> None:
    amtool = needs("amtool")
    run(amtool, "check-config", shipped.ALERTMANAGER)
    copy = tmp_path / "alertmanager.yml"
    copy.write_text(routing.adapt(routing.shipped_configuration(), webhook_base="http://127.0.0.1:1", factor=1 / 300))
    run(amtool, "check-config", copy)


@pytest.mark.parametrize(
    ("receiver", "labels"),
    [
        ("deadman", ("alertname=Watchdog", "severity=none")),
        ("page", ("alertname=EngineDown", "severity=critical", "simulated=false", "instance=n1", "engine=e")),
        ("ticket", ("alertname=NodeGPUUnowned", "severity=warning", "simulated=false")),
        ("ticket", ("alertname=Other", "severity=info")),
        ("simulated", ("alertname=EngineDown", "severity=critical", "simulated=true")),
        ("simulated", ("alertname=NodeGPUUnowned", "severity=warning", "simulated=true")),
        ("none", ("alertname=Source", "severity=none", "simulated=false")),
    ],
)
def test_alerts_are_routed_to_whom_they_concern(receiver: str, labels: tuple[str, ...]) -> None:
    run(needs("amtool"), "config", "routes", "test", "--config.file", shipped.ALERTMANAGER, f"--verify.receivers={receiver}", *labels)
