"""promtool and amtool on what ships: the rules and their tests, time-scaled copies, the Alertmanager configuration and its routes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from poise.alerts import promtool, routing, shipped
from poise.alerts.scale import scale_rules

from tests.needs import needs

pytestmark = pytest.mark.contract


def run(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read(paths: Sequence[Path]) -> list[tuple[Path, str]]:
    return [(path, path.read_text()) for path in paths]


def test_promtool_accepts_the_rules_without_a_lint() -> None:
    needs("promtool")
    opinion = promtool.check_rules(read(shipped.rule_files()))
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
    opinion = promtool.check_rules(read(copies))
    assert opinion is not None
    assert opinion.accepted, opinion.text


def test_a_rule_file_that_prometheus_refuses_is_refused_here_too(tmp_path: Path) -> None:
    needs("promtool")
    path = tmp_path / "twice.yml"
    path.write_text("groups: [{name: g, rules: [{record: 'a:b:c', expr: up}, {record: 'a:b:c', expr: up}]}]")
    opinion = promtool.check_rules(read([path]))
    assert opinion is not None
    assert not opinion.accepted


def test_amtool_accepts_the_configuration_and_its_adapted_copy(tmp_path: Path) -> None:
    amtool = needs("amtool")
    run(amtool, "check-config", shipped.ALERTMANAGER)
    copy = tmp_path / "alertmanager.yml"
    copy.write_text(routing.adapt(routing.shipped_configuration(), webhook_base="http://127.0.0.1:1", factor=1 / 300))
    run(amtool, "check-config", copy)


@pytest.mark.parametrize("example", shipped.receiver_examples(), ids=lambda path: path.stem)
def test_amtool_accepts_every_example_of_receivers_and_routes_lead_to_them(tmp_path: Path, example: Path) -> None:
    amtool = needs("amtool")
    since = re.search(r"Needs Alertmanager (\d+)\.(\d+)", example.read_text(encoding="utf-8"))
    if since is not None and amtool_version(amtool) < (int(since[1]), int(since[2])):
        refused = subprocess.run(
            [amtool, "check-config", merged(example, tmp_path)], capture_output=True, text=True, timeout=120, check=False
        )
        assert "api_secret_file not found" in refused.stdout + refused.stderr, "it says that it needs a newer one, and this one takes it"
        return
    configuration = merged(example, tmp_path)
    run(amtool, "check-config", configuration)
    for receiver, labels in ROUTES:
        run(amtool, "config", "routes", "test", "--config.file", configuration, f"--verify.receivers={receiver}", *labels)


def merged(example: Path, folder: Path) -> Path:
    """The shipped configuration with the receivers of an example."""
    path = folder / "alertmanager.yml"
    path.write_text(routing.with_receivers(routing.shipped_configuration(), example.read_text(encoding="utf-8")), encoding="utf-8")
    return path


def amtool_version(amtool: str) -> tuple[int, int]:
    """Major and minor."""
    found = re.search(r"version (\d+)\.(\d+)", run(amtool, "--version"))
    assert found is not None
    return int(found[1]), int(found[2])


ROUTES = (
    ("deadman", ("alertname=Watchdog", "severity=none")),
    ("page", ("alertname=EngineDown", "severity=critical", "simulated=false", "instance=n1", "engine=e")),
    # About a deployment: it has no instance. About an exporter that never answered: it has no node, and nobody knows whether it is simulated.
    ("page", ("alertname=PDRoleMissing", "severity=critical", "simulated=false", "deployment=chat", "role=decode")),
    ("page", ("alertname=ExporterDown", "severity=critical", "instance=n1", "job=poise")),
    ("ticket", ("alertname=NodeGPUUnowned", "severity=warning", "simulated=false")),
    ("ticket", ("alertname=ReplicaLoadSkew", "severity=warning", "simulated=false", "deployment=chat", "role=mixed")),
    ("ticket", ("alertname=Other", "severity=info")),
    ("simulated", ("alertname=EngineDown", "severity=critical", "simulated=true")),
    ("simulated", ("alertname=NodeGPUUnowned", "severity=warning", "simulated=true")),
    ("simulated", ("alertname=TTFTBudgetBurnFast", "severity=critical", "simulated=true", "deployment=chat")),
    ("none", ("alertname=EngineOnFaultyNode", "severity=none", "simulated=false")),
    ("none", ("alertname=EngineOnFaultyNode", "severity=none", "simulated=true")),
)


@pytest.mark.parametrize(("receiver", "labels"), ROUTES)
def test_alerts_are_routed_to_whom_they_concern(receiver: str, labels: tuple[str, ...]) -> None:
    run(needs("amtool"), "config", "routes", "test", "--config.file", shipped.ALERTMANAGER, f"--verify.receivers={receiver}", *labels)


def test_every_route_is_tried() -> None:
    document = yaml.safe_load(routing.shipped_configuration())
    assert {receiver for receiver, _ in ROUTES} == {route["receiver"] for route in document["route"]["routes"]} | {
        document["route"]["receiver"]
    }
