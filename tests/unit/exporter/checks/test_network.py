"""The checks of what lies between ranks and nodes: RDMA ports, and the variables of NCCL, UCX and NIXL."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from poise.exporter.checks.result import State, Status
from poise.exporter.snapshot import Engine, Libraries, NodeSnapshot, RdmaPort, Role

from tests.check_lines import line, lines
from tests.pd_scenes import decode, pd_node, pd_router, prefill
from tests.scenes import card, engine, node

LINKED = [card(0, busy=0, links={0: True}), card(1, busy=0, links={0: True})]
PLAIN = [card(0, busy=0), card(1, busy=0)]


def port(device: str = "mlx5_0", state: str = "ACTIVE", moved: float | None = None) -> RdmaPort:
    count = int(moved / 2) if moved is not None else None
    return RdmaPort(device, 1, state, "InfiniBand", "400 Gb/sec (4X NDR)", count, count)


def with_ports(scene: NodeSnapshot, *ports: RdmaPort) -> NodeSnapshot:
    return dataclasses.replace(scene, rdma_ports=ports)


def spanning(tokens: float = 0.0, **told: str) -> Engine:
    """An engine on two nodes of which this one has two cards."""
    return engine(environment="0,1", tokens=tokens, nnodes=2, tensor=4, communication=told)


# -------------------------------------------------------------------------------------------------------------------- RDMA
def test_engine_on_one_node_needs_no_rdma() -> None:
    assert lines(with_ports(node(PLAIN, [engine()])), "rdma") == []


def test_active_ports_pass_and_those_that_are_down_are_evidence() -> None:
    found = line(with_ports(node(PLAIN, [spanning()]), port(), port("mlx5_1", "DOWN")), "rdma")
    assert (found.status, found.sentence) == (Status.PASS, "1 of 2 RDMA ports active")
    assert found.evidence["mlx5_1 port 1"] == "DOWN, InfiniBand, 400 Gb/sec (4X NDR)"


def test_missing_down_and_unreadable_ports() -> None:
    scene = node(PLAIN, [spanning()])
    missing = line(with_ports(scene), "rdma")
    assert (missing.state, missing.sentence) == (State.WATCH, "this node has no RDMA device, and n1:8000 talks to other nodes")
    assert line(with_ports(scene, port(state="DOWN")), "rdma").state is State.PROBLEM
    assert line(scene, "rdma").status is Status.UNKNOWN


@pytest.mark.parametrize(("moved", "status"), [(1e4, Status.FAIL), (1e7, Status.PASS)])
def test_tokens_of_an_engine_on_several_nodes_must_show_on_its_ports(moved: float, status: Status) -> None:
    def scene(second: float) -> NodeSnapshot:
        return with_ports(node(PLAIN, [spanning(tokens=500 * second)]), port(moved=moved * second))

    assert line(scene, "rdma", 60).status is status


def far_split(second: float, moved: float) -> NodeSnapshot:
    """Decode here, prefill on another node, ten transfers of 8 MiB a second."""
    far = pd_router((("n2:8100", Role.PREFILL, True), ("n1:8200", Role.DECODE, True)))
    return with_ports(pd_node(decode(transfers=10 * second), routers=[far]), port(moved=moved * second))


def test_kv_that_goes_past_rdma_is_watched() -> None:
    found = line(lambda second: far_split(second, 1e3), "rdma", 60)
    assert (found.state, found.sentence) == (
        State.WATCH,
        "n1:8200 sent about 4.7 GiB to other nodes and 0.0 GiB went over RDMA in the last 60 s",
    )
    assert line(lambda second: far_split(second, 1e8), "rdma", 60).status is Status.PASS
    assert lines(with_ports(pd_node(prefill(), decode()), port()), "rdma") == [], "both are here"


# ------------------------------------------------------------------------------------------------------------- environment
def test_engine_of_one_rank_without_connector_has_no_line_and_an_unread_environment_is_unknown() -> None:
    assert lines(node(PLAIN, [engine(cards=[0])]), "nccl_environment") == []
    one = engine()
    blind = dataclasses.replace(
        one, observed=dataclasses.replace(one.observed, config=dataclasses.replace(one.config, environment_read=False))
    )
    assert line(node(PLAIN, [blind]), "nccl_environment").status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({}, "nothing set"),
        ({"NCCL_DEBUG": "INFO", "NCCL_P2P_DISABLE": "0", "NCCL_P2P_LEVEL": "NVL"}, "nothing set forbids the fast path"),
        ({"NCCL_ALGO": "Ring"}, "NCCL_ALGO=Ring forced: NCCL would choose by itself; nothing forbids the fast path"),
        ({"NCCL_SHM_DISABLE": "1"}, "nothing set forbids the fast path"),
        ({"NCCL_SOCKET_NTHREADS": "8", "NCCL_NSOCKS_PERTHREAD": "8"}, "nothing set forbids the fast path"),
        ({"NCCL_SOCKET_NTHREADS": "x", "NCCL_NSOCKS_PERTHREAD": "\u0663"}, "nothing set forbids the fast path"),
        ({"NCCL_IB_DISABLE": "1"}, "nothing set forbids the fast path"),
    ],
)
def test_harmless_variables_pass(told: dict[str, str], sentence: str) -> None:
    found = line(node(LINKED, [engine(communication=told)]), "nccl_environment")
    assert (found.status, found.sentence) == (Status.PASS, sentence)


@pytest.mark.parametrize(
    ("told", "cards", "state", "sentence"),
    [
        (
            {"NCCL_P2P_DISABLE": "1"},
            LINKED,
            State.PROBLEM,
            "NCCL_P2P_DISABLE=1 keeps ranks from talking card to card though NVLink joins them",
        ),
        ({"NCCL_P2P_DISABLE": "1"}, PLAIN, State.WATCH, "NCCL_P2P_DISABLE=1 keeps ranks from talking card to card"),
        ({"NCCL_P2P_LEVEL": "loc"}, PLAIN, State.WATCH, "NCCL_P2P_LEVEL=LOC keeps ranks from talking card to card"),
        ({"NCCL_SHM_DISABLE": "1"}, PLAIN, State.WATCH, "NCCL_SHM_DISABLE=1 sends bytes between ranks over network sockets"),
        ({"NCCL_DEBUG": "trace"}, PLAIN, State.WATCH, "NCCL_DEBUG=TRACE writes a line for every call"),
        (
            {"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "8"},
            PLAIN,
            State.WATCH,
            "NCCL_SOCKET_NTHREADS=16 times NCCL_NSOCKS_PERTHREAD=8 is more than 64",
        ),
    ],
)
def test_variable_that_harms_ranks_of_one_node_is_named(told: dict[str, str], cards: list[Any], state: State, sentence: str) -> None:
    found = line(node(cards, [engine(communication=told)]), "nccl_environment")
    assert (found.state, found.sentence) == (state, sentence)
    assert found.evidence == told


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"NCCL_IB_DISABLE": "1"}, "NCCL_IB_DISABLE=1 sends bytes between nodes over TCP though 1 RDMA port could carry them"),
        ({"NCCL_NET": "Socket"}, "NCCL_NET=Socket sends bytes between nodes over TCP though 1 RDMA port could carry them"),
        ({"NCCL_IB_HCA": "mlx4"}, "NCCL_IB_HCA=mlx4 names no active port of this node"),
        ({"NCCL_IB_HCA": "=mlx5"}, "NCCL_IB_HCA==mlx5 names no active port of this node"),
        ({"NCCL_IB_HCA": "mlx5_0:2"}, "NCCL_IB_HCA=mlx5_0:2 names no active port of this node"),
        ({"NCCL_IB_HCA": "^mlx5_0"}, "NCCL_IB_HCA=^mlx5_0 names no active port of this node"),
        ({"NCCL_SOCKET_IFNAME": "lo"}, "NCCL_SOCKET_IFNAME=lo: other nodes cannot reach this node's loopback"),
        ({"GLOO_SOCKET_IFNAME": "lo"}, "GLOO_SOCKET_IFNAME=lo: other nodes cannot reach this node's loopback"),
    ],
)
def test_variable_that_keeps_nodes_apart_is_a_problem(told: dict[str, str], sentence: str) -> None:
    found = line(with_ports(node(PLAIN, [spanning(**told)]), port()), "nccl_environment")
    assert (found.state, found.sentence) == (State.PROBLEM, sentence)


@pytest.mark.parametrize("chosen", ["mlx5", "=mlx5_0", "mlx5_0:1", "mlx4,mlx5", "^mlx4"])
def test_adapters_that_are_there_may_be_named(chosen: str) -> None:
    assert line(with_ports(node(PLAIN, [spanning(NCCL_IB_HCA=chosen)]), port()), "nccl_environment").status is Status.PASS


def far(**told: str) -> NodeSnapshot:
    """Prefill here, decode on another node."""
    router = pd_router((("n1:8100", Role.PREFILL, True), ("n2:8200", Role.DECODE, True)))
    return pd_node(prefill(config={"communication": told}), routers=[router])


def test_side_channel_on_loopback_is_a_problem_once_decode_is_elsewhere() -> None:
    found = line(far(), "nccl_environment")
    assert (found.state, found.sentence) == (
        State.PROBLEM,
        "VLLM_NIXL_SIDE_CHANNEL_HOST is not set, so localhost, and decode is on another node",
    )
    assert line(far(VLLM_NIXL_SIDE_CHANNEL_HOST="10.0.0.1"), "nccl_environment").status is Status.PASS
    assert {result.status for result in lines(pd_node(prefill(), decode()), "nccl_environment")} == {Status.PASS}
    lo = line(far(VLLM_NIXL_SIDE_CHANNEL_HOST="10.0.0.1", UCX_NET_DEVICES="lo"), "nccl_environment")
    assert lo.sentence == "UCX_NET_DEVICES=lo, and the other role is on another node"


@pytest.mark.parametrize(
    ("transports", "libraries", "status"),
    [
        ("tcp,self,sm", Libraries("", "12.8"), Status.FAIL),
        ("tcp,self,sm", Libraries(), Status.PASS),
        ("tcp,cuda_copy,cuda_ipc", Libraries("", "12.8"), Status.PASS),
        ("all", Libraries("", "12.8"), Status.PASS),
        ("^rc", Libraries("", "12.8"), Status.PASS),
    ],
)
def test_transports_without_card_memory_are_watched_where_kv_is_on_cards(transports: str, libraries: Libraries, status: Status) -> None:
    one = prefill(config={"communication": {"UCX_TLS": transports}})
    one = dataclasses.replace(one, observed=dataclasses.replace(one.observed, libraries=libraries))
    assert line(pd_node(one), "nccl_environment").status is status
