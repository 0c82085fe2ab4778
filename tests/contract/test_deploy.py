"""The files of `poise testbed compose` and `kubernetes` before the real programs: Prometheus and Alertmanager run with them (ports rewritten) against a real
exporter on simulated cards; promtool and amtool check them; kubectl's kustomize, where there is one, makes of the folders what tests/kustomize.py does.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from poise.testbed.manifests.files import Links, write
from poise.testbed.nvml.node import SimulatedNode

from tests import kustomize
from tests.monitoring import Receiver, Server, free_port, receiving, started
from tests.needs import needs
from tests.waiting import wait_until

pytestmark = pytest.mark.contract

SECONDS = 60.0
#: Everything is there within two scrapes and one evaluation, some twenty seconds; this is for a machine that is out of breath.
PATIENCE = 180.0
#: What listens where in the folder; 19747 is the webhook receiver of the shipped Alertmanager configuration.
PORTS = (9747, 9090, 9093, 19747)


@dataclass(frozen=True)
class Running:
    """The programs of the compose folder."""

    prometheus: Server
    receiver: Receiver
    folder: Path

    def value(self, expression: str) -> float | None:
        """Of an instant query with one result at most."""
        result = self.prometheus.get("/api/v1/query", query=expression)["data"]["result"]
        return float(result[0]["value"][1]) if result else None


def command_of(service: dict[str, Any], program: str, folder: Path, data: Path, ports: dict[int, int]) -> list[str]:
    """A service's command as it runs outside a container: mounted folders by their place, ports as they are here."""
    places = {
        target: str(folder / source if source.startswith("./") else data)
        for source, target, *_ in (volume.split(":") for volume in service["volumes"])
    }
    words = []
    for word in service["command"]:
        for target, place in sorted(places.items(), key=lambda item: -len(item[0])):
            flag, equals, value = word.partition("=")
            if value == target or value.startswith(f"{target}/"):
                word = f"{flag}{equals}{place}{value.removeprefix(target)}"
                break
        words.append(rewritten(word, ports))
    return [program, *words]


def rewritten(text: str, ports: dict[int, int]) -> str:
    for port, here in ports.items():
        text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{here}")
    return text


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    programs = {name: needs(name) for name in ("prometheus", "alertmanager")}
    folder, logs = tmp_path_factory.mktemp("compose"), tmp_path_factory.mktemp("logs")
    write("compose", folder, Links(), force=False)
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    with contextlib.ExitStack() as stack:
        receiver = stack.enter_context(receiving())
        ports = {port: free_port() for port in PORTS} | {19747: receiver.port}
        for path in (folder / "prometheus" / "prometheus.yml", folder / "alertmanager" / "alertmanager.yml"):
            path.write_text(rewritten(path.read_text(), ports))
        node = stack.enter_context(SimulatedNode.create(logs / "node.nvml", "h20x2"))
        stack.callback(node.release)
        exporter = [sys.executable, "-m", "poise.cli", *(rewritten(word, ports) for word in services["exporter"]["command"])]
        environment = [f"{name}={value}" for name, value in node.environment().items()]
        stack.enter_context(
            started("exporter", ["env", *environment, *exporter], f"http://127.0.0.1:{ports[9747]}", "/readyz", logs / "exporter.log")
        )
        servers = {}
        for name, port in (("alertmanager", 9093), ("prometheus", 9090)):
            command = command_of(services[name], programs[name], folder, logs / name, ports)
            servers[name] = stack.enter_context(started(name, command, f"http://127.0.0.1:{ports[port]}", "/-/ready", logs / f"{name}.log"))
        yield Running(servers["prometheus"], receiver, folder)


def test_every_target_is_up_and_the_cards_are_seen(running: Running) -> None:
    wait_until(lambda: running.value("sum(up)") == 3, "three targets", PATIENCE)
    assert running.value('count(poise_gpu_up{job="poise-exporter"} == 1)') == 2
    assert running.value('poise_node_info{simulated="true"}') == 1


def test_every_rule_is_loaded_and_none_fails(running: Running) -> None:
    def groups() -> list[dict[str, Any]]:
        return list(running.prometheus.get("/api/v1/rules")["data"]["groups"])

    shipped = [yaml.safe_load(path.read_text()) for path in (running.folder / "prometheus" / "rules").glob("*.yml")]
    names = {group["name"] for file in shipped for group in file["groups"]}
    wait_until(lambda: all(rule["health"] == "ok" for group in groups() for rule in group["rules"]), "evaluation of all rules", PATIENCE)
    assert {group["name"] for group in groups()} == names
    assert [rule["name"] for group in groups() for rule in group["rules"] if rule.get("lastError")] == []


def test_the_way_to_a_receiver_is_open(running: Running) -> None:
    """Prometheus found Alertmanager, and the dead man's switch, which always fires, arrives."""
    running.receiver.wait_for(lambda alert: alert.name == "Watchdog" and alert.receiver == "deadman" and alert.firing, PATIENCE)
    active = running.prometheus.get("/api/v1/alertmanagers")["data"]["activeAlertmanagers"]
    assert len(active) == 1


@pytest.mark.parametrize(
    ("program", "words", "path"),
    [("promtool", ["check", "config"], "prometheus/prometheus.yml"), ("amtool", ["check-config"], "alertmanager/alertmanager.yml")],
)
def test_their_own_tools_accept_the_configuration(tmp_path: Path, program: str, words: list[str], path: str) -> None:
    write("compose", tmp_path, Links(), force=False)
    done = subprocess.run([needs(program), *words, str(tmp_path / path)], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_rules_of_the_cluster(tmp_path: Path) -> None:
    write("kubernetes", tmp_path, Links(), force=False)
    spec = yaml.safe_load((tmp_path / "monitoring" / "rules.yaml").read_text())["spec"]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump(spec, allow_unicode=True))
    done = subprocess.run([needs("promtool"), "check", "rules", str(file)], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def kubectl() -> Callable[[Path], list[dict[str, Any]]]:
    """kubectl's own kustomize. Not among the programs that the tests install: Debian's is too old (1.20), so that the stand-in has to do there."""
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("kubectl is not installed; tests/kustomize.py stands for its kustomize")

    def build(folder: Path) -> list[dict[str, Any]]:
        done = subprocess.run(
            [program, "kustomize", str(folder)], capture_output=True, text=True, timeout=SECONDS, check=False, env=dict(os.environ)
        )
        if done.returncode != 0 and "unknown" in done.stderr:
            pytest.skip(f"this kubectl's kustomize is too old: {done.stderr.strip()[:200]}")
        assert done.returncode == 0, done.stderr
        assert "deprecated" not in done.stderr.lower()
        return [each for each in yaml.safe_load_all(done.stdout) if each is not None]

    return build


@pytest.mark.parametrize("entry", ["base", "overlays/tensor-parallel"])
def test_kustomize_itself_makes_the_same_objects(tmp_path: Path, entry: str, kubectl: Callable[[Path], list[dict[str, Any]]]) -> None:
    write("kubernetes", tmp_path, Links(), force=False)
    ours = {kustomize.name_of(each): each for each in kustomize.build(tmp_path / entry)}
    assert {kustomize.name_of(each): each for each in kubectl(tmp_path / entry)} == ours
