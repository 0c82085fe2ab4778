"""Engines in containers of real namespaces: where they are asked, which cards they have, and what is said of those that cannot be asked."""

from __future__ import annotations

import functools
import json
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from poise.testbed.nvml.node import SimulatedNode
from prometheus_client.parser import text_string_to_metric_families

from tests.container_node import Node, as_nobody, node
from tests.waiting import wait_until

pytestmark = pytest.mark.contract

NODE = socket.gethostname()
POD_UID, CONTAINER_ID = str(uuid.uuid4()), uuid.uuid4().hex * 2
DOCKER_ID = uuid.uuid4().hex * 2

#: Port → what the container there is.
POD, DOCKER, LOOPBACK, ALONE, UNROUTED, IMPOSTER, FILE, SIX = range(8001, 8009)
ASKED = (POD, DOCKER, FILE, SIX, 18000)


#: Exporters by their rights: root; a user who may trace, as packaging/systemd gives it; a user without rights.
ROOT, TRACER, USER = range(8080, 8083)
WITHIN = {ROOT: (), TRACER: as_nobody("sys_ptrace", "dac_read_search"), USER: as_nobody()}


@dataclass(frozen=True, slots=True)
class Watched:
    """What an exporter shows of the node of containers, as it was when all that can be asked had answered."""

    samples: dict[str, dict[str, list[dict[str, str]]]]  # series → engine → labels of each sample that is not 0
    checks: dict[str, dict[str, Any]]  # "check engine" → result
    everything: str
    pids: dict[int, int]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Watched]]:
    """`shown(ROOT)`: what the exporter with these rights shows; each is started when it is first asked for."""
    folder = tmp_path_factory.mktemp("containers")
    with SimulatedNode.create(folder / "cards" / "node.nvml", "h20x8") as cards, node(folder) as made:
        pids = containers(made)

        @functools.cache
        def show(port: int) -> Watched:
            # A user without rights may not look into pytest's folder, where the simulated cards are.
            made.exporter({**os.environ, **(cards.environment() if port == ROOT else {})}, port=port, within=WITHIN[port])
            ports = ASKED if port != USER else tuple(each for each in ASKED if each != FILE)
            wait_until(lambda: told(made, port) >= {str(each) for each in ports}, "all that can be asked answer")
            wait_until(lambda: "being tried" not in made.get("/checks", port), "all addresses were tried")
            page, checks = made.get("/metrics", port), made.get("/checks", port)
            return Watched(samples_of(page), checks_of(checks), page + checks + made.log(port), pids)

        yield show


@pytest.fixture(scope="module")
def watched(shown: Callable[[int], Watched]) -> Watched:
    return shown(ROOT)


def told(made: Node, port: int) -> set[str]:
    """Ports of the engines that are up."""
    up = samples_of(made.get("/metrics", port)).get("poise_engine_up", {})
    return {engine.rpartition(":")[2] for engine in up}


def containers(made: Node) -> dict[int, int]:
    """Starts one of each kind; port → pid of the server."""

    def start(name: str, port: int, host: str = "0.0.0.0", **how: Any) -> int:
        return made.start(name, "--port", str(port), serve=(f"{host}:{port}",), **how)

    termination = made.folder / "kubelet" / "pods" / POD_UID / "containers" / "vllm" / "1a2b3c4d"
    pids = {
        POD: start(
            "pod",
            POD,
            devices=(2, 3),
            hostname="chat-0",
            namespace="serving",
            termination=str(termination),
            NVIDIA_VISIBLE_DEVICES="GPU-something",
            CUDA_VISIBLE_DEVICES="1",
            HF_TOKEN="planted-environment",
        ),
        DOCKER: start("docker", DOCKER, devices=(5,), hostname="1234567890ab", NVIDIA_VISIBLE_DEVICES="5"),
        LOOPBACK: start("loopback", LOOPBACK, "127.0.0.1"),
        ALONE: start("alone", ALONE),
        UNROUTED: start("unrouted", UNROUTED),
        IMPOSTER: start("imposter", IMPOSTER),
        FILE: made.start("file", "--config", "/etc/vllm.yaml", serve=(f"0.0.0.0:{FILE}",), decoys=("0.0.0.0:7999",)),
        SIX: start("six", SIX, "::"),
    }
    made.put_in_cgroup(pids[POD], f"/kubepods/burstable/pod{POD_UID}/{CONTAINER_ID}")
    made.put_in_cgroup(pids[DOCKER], f"/system.slice/docker-{DOCKER_ID}.scope")
    for number, port in enumerate((POD, DOCKER, LOOPBACK, FILE), 1):
        made.connect(pids[port], f"10.77.{number}.2/24", node_side=(f"10.77.{number}.1/24",))
    made.connect(pids[UNROUTED], "10.78.1.2/24")
    # Another container has the very address that this one has in a network of its own, and the node has a route there.
    made.connect(pids[IMPOSTER], "10.79.1.2/24")
    other = made.start("other", "--port", "18000", serve=(f"0.0.0.0:{IMPOSTER}", "0.0.0.0:18000"))
    made.connect(other, "10.79.1.2/24", node_side=("10.79.1.1/24",))
    made.connect(pids[SIX], "fd77::2/64", node_side=("fd77::1/64",))
    made.settle()
    return pids


def samples_of(page: str) -> dict[str, dict[str, list[dict[str, str]]]]:
    found: dict[str, dict[str, list[dict[str, str]]]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.value and "engine" in sample.labels:
                found.setdefault(sample.name, {}).setdefault(sample.labels["engine"], []).append(sample.labels)
    return found


def checks_of(document: str) -> dict[str, dict[str, Any]]:
    return {f"{check['check']} {check['engine']}".strip(): check for check in json.loads(document)["checks"]}


def cards(watched: Watched, port: int) -> list[tuple[str, str]]:
    """NVML index and CUDA ordinal of the cards that an engine sees."""
    return [(card["gpu"], card["cuda_index"]) for card in watched.samples["poise_engine_gpu_info"].get(f"{NODE}:{port}", [])]


def pod(watched: Watched, port: int) -> list[tuple[str, str, str]]:
    found = watched.samples["poise_engine_pod_info"].get(f"{NODE}:{port}", [])
    return [(labels["engine_namespace"], labels["engine_pod"], labels["engine_container"]) for labels in found]


@pytest.mark.parametrize(
    ("port", "address"),
    [
        (POD, f"http://10.77.1.2:{POD}"),
        (DOCKER, f"http://10.77.2.2:{DOCKER}"),
        (FILE, f"http://10.77.4.2:{FILE}"),
        (SIX, f"http://[fd77::2]:{SIX}"),
    ],
)
def test_a_container_is_asked_at_its_own_address(watched: Watched, port: int, address: str) -> None:
    check = watched.checks[f"engine_answers {NODE}:{port}"]
    assert (check["status"], check["evidence"]["address"], check["evidence"]["process"]) == ("pass", address, str(watched.pids[port]))


@pytest.mark.parametrize(
    ("port", "words"),
    [
        (LOOPBACK, f"listens only on the loopback of its own network namespace (port {LOOPBACK})"),
        (ALONE, "its network namespace has no address besides loopback"),
        (UNROUTED, "none of whose addresses (10.78.1.2) can be reached from here"),
        (IMPOSTER, "none of whose addresses (10.79.1.2) can be reached from here"),
    ],
)
def test_a_container_that_cannot_be_asked_says_why_and_is_neither_up_nor_down(watched: Watched, port: int, words: str) -> None:
    check = watched.checks[f"engine_answers {NODE}:{port}"]
    assert check["status"] == "unknown"
    assert words in check["sentence"]
    assert f'poise_engine_up{{engine="{NODE}:{port}"' not in watched.everything
    assert f"{NODE}:{port}" in watched.samples["poise_engine_process_up"]


def test_cards_are_those_of_the_device_nodes_and_ordinals_count_them(watched: Watched) -> None:
    assert cards(watched, POD) == [("3", "0")]
    assert cards(watched, DOCKER) == [("5", "0")]
    assert cards(watched, LOOPBACK) == []
    visible = watched.checks[f"visible_devices {NODE}:{DOCKER}"]
    assert visible["status"] == "fail"
    assert "a container with 1 card and CUDA_VISIBLE_DEVICES not set hides GPU" in visible["sentence"]
    assert "NVIDIA_VISIBLE_DEVICES=" in visible["fix"]


def test_pod_and_container_are_named_and_nothing_else_of_the_pod_is_read(watched: Watched) -> None:
    assert pod(watched, POD) == [("serving", "chat-0", "vllm")]
    assert pod(watched, DOCKER) == [("", "", DOCKER_ID[:12])]
    assert pod(watched, LOOPBACK) == []
    assert "planted" not in watched.everything


def test_the_other_server_with_a_containers_address_is_an_engine_of_its_own(watched: Watched) -> None:
    assert watched.checks[f"engine_answers {NODE}:18000"]["evidence"]["address"] == "http://10.79.1.2:18000"


def test_an_own_pid_namespace_is_said_at_the_start_and_harms_nothing_that_is_found(watched: Watched) -> None:
    assert "it runs in its own pid namespace: processes of other containers are not seen; run it with --pid=host" in watched.everything
    assert watched.checks["node_view"]["status"] == "pass"
    assert watched.checks["cards"]["status"] == "pass"


def test_a_user_who_may_trace_sees_as_much_as_root(shown: Callable[[int], Watched], watched: Watched) -> None:
    tracer = shown(TRACER)
    for port in (POD, DOCKER, FILE, SIX):
        mine, roots = (each.checks[f"engine_answers {NODE}:{port}"]["evidence"] for each in (tracer, watched))
        assert (mine["address"], mine["process"]) == (roots["address"], roots["process"])
    assert pod(tracer, POD) == [("serving", "chat-0", "vllm")]
    assert "it has no CAP_" not in tracer.everything
    assert "environment cannot be read: run" not in tracer.everything


def test_without_rights_the_page_is_found_all_the_same_and_what_is_missing_is_said(shown: Callable[[int], Watched]) -> None:
    user = shown(USER)
    assert user.checks[f"engine_answers {NODE}:{POD}"]["evidence"]["address"] == f"http://10.77.1.2:{POD}"
    assert pod(user, POD) == [("", "", "vllm")]
    assert (
        f"engine {NODE}:{POD}: its environment cannot be read: run Poise as root or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
        in user.everything
    )
    assert "it has no CAP_SYS_PTRACE: environment, cards and container of other users' processes cannot be read" in user.everything
    # Which of its sockets is the API of a server whose port only a file tells, its descriptors would say.
    assert f"{NODE}:{FILE}" not in user.samples["poise_engine_process_up"]


def test_a_node_without_visible_engines_says_that_they_may_be_hidden_and_the_rest_works(tmp_path: Path) -> None:
    with node(tmp_path) as made:
        made.exporter(os.environ, "--engine", "far=http://127.0.0.1:9")
        wait_until(lambda: "refused" in made.get("/checks"), "the configured engine was asked")
        check = checks_of(made.get("/checks"))["node_view"]
    assert (check["status"], check["sentence"]) == ("unknown", "no engine process is found, and Poise does not see all processes")
    assert "--pid=host (Kubernetes: hostPID: true)" in check["fix"]
