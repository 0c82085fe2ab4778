"""The compose folder against the rules of the compose specification that matter to it, and against the programs that it starts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from poise.alerts import settings as alert_settings
from poise.cli.main import build_parser
from poise.dashboard.flags import DEFAULT_LISTEN as DASHBOARD_LISTEN
from poise.exporter import setting_values, settings
from poise.exporter.nvml import registry
from poise.history import settings as history_settings
from poise.testbed.manifests.files import DASHBOARDS, Links, contents

from tests.dockerfile import read_dockerfile

ROOT = Path(__file__).resolve().parents[4]
FILES = contents("compose", Links())
COMPOSE: dict[str, Any] = yaml.safe_load(FILES["compose.yaml"])
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROMETHEUS = yaml.safe_load(FILES["prometheus/prometheus.yml"])
LOCAL = "127.0.0.1"

#: Of the attributes of a service (compose-spec, 05-services.md) those that may stand here.
ATTRIBUTES = {
    "image",
    "command",
    "network_mode",
    "pid",
    "cap_add",
    "cap_drop",
    "security_opt",
    "read_only",
    "deploy",
    "volumes",
    "environment",
    "restart",
}
PORTS = {"exporter": 9747, "dashboard": 9748, "prometheus": 9090, "alertmanager": 9093, "grafana": 3000}


def words(service: str) -> list[str]:
    return [str(word) for word in SERVICES[service].get("command", ())]


def mounts(service: str) -> dict[str, str]:
    """Target in the container → source."""
    return {parts[1]: parts[0] for volume in SERVICES[service].get("volumes", ()) if (parts := volume.split(":"))}


def test_only_attributes_that_mean_something_and_values_of_the_right_kind() -> None:
    assert set(COMPOSE) == {"name", "services", "volumes"}
    assert re.fullmatch(r"[a-z0-9][a-z0-9_-]*", COMPOSE["name"])
    for name, service in SERVICES.items():
        assert set(service) <= ATTRIBUTES, name
        assert re.fullmatch(r"[a-z0-9./-]+:[\w.-]+", service["image"]), "a version, so that a restart is no update"
        assert all(isinstance(word, str) for word in service.get("command", ())), name
        assert all(isinstance(value, str) for value in service.get("environment", {}).values()), (
            f"{name}: YAML would make it something else"
        )
        assert service["restart"] == "unless-stopped"


def test_with_the_hosts_network_nothing_is_published_and_each_listens_on_loopback_alone() -> None:
    listening = {}
    for name, service in SERVICES.items():
        assert service["network_mode"] == "host"
        told = [word.partition("=")[2] for word in words(name) if word.startswith(("--listen=", "--web.listen-address="))]
        if name == "grafana":
            told = [f"{service['environment']['GF_SERVER_HTTP_ADDR']}:{service['environment']['GF_SERVER_HTTP_PORT']}"]
        (listening[name],) = told
    assert listening == {name: f"{LOCAL}:{port}" for name, port in PORTS.items()}
    assert "--cluster.listen-address=" in words("alertmanager")


def test_volumes_are_declared_and_what_is_mounted_is_written() -> None:
    named = {source for service in SERVICES for source in mounts(service).values() if "/" not in source}
    assert named == set(COMPOSE["volumes"])
    for service in SERVICES:
        for target, source in mounts(service).items():
            assert target.startswith("/")
            if source.startswith("./"):
                below = source.removeprefix("./")
                assert below == DASHBOARDS or any(name.startswith(f"{below}/") for name in FILES), source
    read_only = [volume for service in SERVICES.values() for volume in service.get("volumes", ()) if volume.startswith(("./", "/"))]
    assert all(volume.endswith(":ro") for volume in read_only)


def test_every_file_is_mounted_somewhere() -> None:
    sources = [source.removeprefix("./") for service in SERVICES for source in mounts(service).values() if source.startswith("./")]
    assert [name for name in FILES if name != "compose.yaml" and not any(name.startswith(f"{source}/") for source in sources)] == []


@pytest.mark.parametrize(("service", "flag"), [("prometheus", "--config.file"), ("alertmanager", "--config.file")])
def test_configuration_is_read_from_where_it_is_mounted(service: str, flag: str) -> None:
    (path,) = [word.partition("=")[2] for word in words(service) if word.startswith(f"{flag}=")]
    source = mounts(service)[str(Path(path).parent)].removeprefix("./")
    assert f"{source}/{Path(path).name}" in FILES
    data = next(word.partition("=")[2] for word in words(service) if word.startswith(("--storage.tsdb.path=", "--storage.path=")))
    assert mounts(service)[data] in COMPOSE["volumes"], "kept over restarts"


# -------------------------------------------------------------------------------------------------------------------- programs
def test_poise_takes_what_it_is_told() -> None:
    exporter = build_parser("exporter").parse_args(words("exporter"))
    chosen = settings.load(exporter, {}, registry.SWITCHES)
    assert setting_values.parse_listen(chosen.listen)[1] == setting_values.parse_listen(settings.DEFAULT_LISTEN)[1]
    assert str(Path(chosen.interconnect_file).parent) in mounts("exporter")
    page = build_parser("up").parse_args(words("dashboard"))
    host, port = page.listen
    assert (f"{host}:{port}", page.exporter, page.no_exporter) == (DASHBOARD_LISTEN, f"http://{chosen.listen}", True)


def test_the_page_evaluates_no_rules_beside_prometheus_and_silences_at_its_alertmanager() -> None:
    """Two evaluators of the same rules are two notifications of one alert."""
    page = alert_settings.load(build_parser("up").parse_args(words("dashboard")), {})
    (manager,) = PROMETHEUS["alerting"]["alertmanagers"]
    assert page.mode == "external"
    assert [place.url for place in page.alertmanagers] == [f"http://{target}" for target in manager["static_configs"][0]["targets"]]


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_a_service_whose_root_is_read_only_keeps_its_state_in_a_volume(service: str) -> None:
    state = SERVICES[service].get("environment", {}).get("POISE_STATE_DIR")
    if service == "dashboard":
        assert state == history_settings.default_path({"POISE_STATE_DIR": state}).parent.as_posix()
        assert mounts(service)[state] in COMPOSE["volumes"]
        assert f"VOLUME {state}\n" in (ROOT / "Dockerfile").read_text(), "a named volume takes its owner from the image"
    else:
        assert state is None


def test_nothing_here_listens_where_the_shipped_receivers_are_looked_for() -> None:
    configuration = yaml.safe_load(FILES["alertmanager/alertmanager.yml"])
    urls = [webhook["url"] for receiver in configuration["receivers"] for webhook in receiver.get("webhook_configs", ())]
    ports = {urlsplit(url).port for url in urls}
    assert len(ports) == 1
    # Alertmanager's own: 9093 page, 9094 cluster (its --help). 9100 to 9999 are given to exporters (Prometheus' wiki, Default port allocations).
    assert not ports & {*PORTS.values(), 9094, *range(9090, 10_000)}


def test_the_exporter_has_the_rights_that_the_page_names_and_all_cards() -> None:
    exporter = SERVICES["exporter"]
    page = (ROOT / "docs" / "containers.md").read_text()
    assert (exporter["pid"], exporter["cap_add"], exporter["security_opt"]) == ("host", ["SYS_PTRACE"], ["apparmor=unconfined"])
    assert all(words in page for words in ("--pid host", "--cap-add SYS_PTRACE", "--security-opt apparmor=unconfined", "--network host"))
    (device,) = exporter["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"], "gpu" in device["capabilities"]) == ("nvidia", "all", True)


def test_images_of_ours_are_those_of_the_dockerfile_and_of_this_version() -> None:
    version = re.search(r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    stages = read_dockerfile(ROOT / "Dockerfile")
    for name in ("exporter", "dashboard"):
        assert SERVICES[name]["image"] == f"poise-{name}:{version[1]}"
        assert f'image.title="poise-{name}"' in stages[name].all("LABEL")[0].rest


def test_prometheus_scrapes_what_listens_and_sends_to_alertmanager() -> None:
    jobs = {job["job_name"]: job["static_configs"][0]["targets"] for job in PROMETHEUS["scrape_configs"]}
    assert jobs == {
        "poise-exporter": [f"{LOCAL}:{PORTS['exporter']}"],
        "prometheus": [f"{LOCAL}:{PORTS['prometheus']}"],
        "alertmanager": [f"{LOCAL}:{PORTS['alertmanager']}"],
    }
    (manager,) = PROMETHEUS["alerting"]["alertmanagers"]
    assert manager["static_configs"][0]["targets"] == jobs["alertmanager"]
    assert PROMETHEUS["rule_files"] == ["rules/*.yml"]


def test_grafana_reads_prometheus_and_the_folder_of_dashboards() -> None:
    sources = yaml.safe_load(FILES["grafana/provisioning/datasources/prometheus.yml"])["datasources"]
    assert {source["type"]: source["url"] for source in sources} == {
        "prometheus": f"http://{LOCAL}:{PORTS['prometheus']}",
        "alertmanager": f"http://{LOCAL}:{PORTS['alertmanager']}",
    }
    assert len({source["uid"] for source in sources}) == len(sources)
    assert [source["isDefault"] for source in sources if source.get("isDefault")] == [True]
    assert sources[0]["jsonData"]["timeInterval"] == PROMETHEUS["global"]["scrape_interval"]
    (provider,) = yaml.safe_load(FILES["grafana/provisioning/dashboards/poise.yml"])["providers"]
    assert mounts("grafana")[provider["options"]["path"]] == f"./{DASHBOARDS}"
