"""Check `nccl_environment`: no variable of NCCL, UCX or NIXL keeps an engine's ranks, or its KV, from the fast path.

Meanings: NCCL user guide, environment variables; UCX configuration (UCX_TLS); vllm/envs.py (VLLM_NIXL_…).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from poise.exporter import metrics as m
from poise.exporter.checks import spread, words
from poise.exporter.checks.result import CheckResult, Line, State, Subject
from poise.exporter.checks.window import Window
from poise.exporter.setting_values import is_loopback
from poise.exporter.snapshot import Engine, NodeSnapshot, RdmaPort, Role

NAME = "nccl_environment"
TITLE = "NCCL, UCX and NIXL may take the fast path"
_LINE = Line(NAME, TITLE)

#: NCCL_SOCKET_NTHREADS × NCCL_NSOCKS_PERTHREAD must not exceed this (NCCL user guide).
MOST_SOCKETS = 64
#: Forced choices that NCCL makes better by itself in most cases: said, not judged.
_FORCED = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE", "NCCL_CROSS_NIC", "NCCL_NET_GDR_LEVEL", "NCCL_MNNVL_ENABLE")


@dataclass(frozen=True, slots=True)
class _Finding:
    """A variable that harms: how bad, what holds, why, and what to do."""

    state: State
    sentence: str
    cause: str
    fix: str


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per living engine of this node with several ranks or a KV connector."""
    del window
    for engine in snapshot.engines:
        if engine.observed.process_up and (engine.config.world_size > 1 or engine.config.kv_connector is not None):
            yield _check(snapshot, engine)


def _check(snapshot: NodeSnapshot, engine: Engine) -> CheckResult:
    about, told = Subject(engine=engine.identity.engine), engine.config.communication
    if not engine.config.environment_read:
        return _LINE.unknown(
            "its environment cannot be read", about, fix="run the exporter as root, or with CAP_SYS_PTRACE, in the host's PID namespace"
        )
    found = [*_between_ranks(snapshot, engine), *_between_nodes(snapshot, engine), *_of_kv(snapshot, engine), *_of_logging(told)]
    if found:
        worst = min(found, key=lambda finding: finding.state is not State.PROBLEM)
        return _LINE.failed(worst.state, worst.sentence, about, told, cause=worst.cause, fix=worst.fix)
    forced = [f"{name}={told[name]}" for name in _FORCED if name in told]
    if forced:
        return _LINE.passed(f"{words.joined(forced)} forced: NCCL would choose by itself; nothing forbids the fast path", about, told)
    return _LINE.passed("nothing set forbids the fast path" if told else "nothing set", about, told)


def _on(told: Mapping[str, str], name: str) -> bool:
    """Whether a switch of NCCL is on: it reads numbers."""
    return told.get(name, "").strip() not in ("", "0")


def _between_ranks(snapshot: NodeSnapshot, engine: Engine) -> Iterator[_Finding]:
    told = engine.config.communication
    if (engine.local_world_size or engine.config.world_size) < 2:
        return
    gpus = [gpu for gpu in snapshot.gpus if gpu.uuid in (engine.used or ())]
    linked = any(up for gpu in gpus for up in gpu.readings.get(m.GPU_NVLINK_UP, {}).values())
    level = told.get("NCCL_P2P_LEVEL", "").upper()
    if _on(told, "NCCL_P2P_DISABLE") or level in ("LOC", "0"):
        variable = "NCCL_P2P_DISABLE=1" if _on(told, "NCCL_P2P_DISABLE") else f"NCCL_P2P_LEVEL={level}"
        yield _Finding(
            State.PROBLEM if linked else State.WATCH,
            f"{variable} keeps ranks from talking card to card" + (" though NVLink joins them" if linked else ""),
            "every byte between ranks goes through the host's memory",
            "unset it and start the engine again; where peer-to-peer really fails, look for ACS and IOMMU (`nvidia-smi topo -p2p r`)",
        )
    if _on(told, "NCCL_SHM_DISABLE") and not linked:
        yield _Finding(
            State.WATCH,
            "NCCL_SHM_DISABLE=1 sends bytes between ranks over network sockets",
            "without peer-to-peer shared memory is the fastest way that is left",
            "unset it; give the container enough shared memory (--shm-size, --ipc=host)",
        )
    sockets = [told.get(name, "") for name in ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")]
    if all(count.isdecimal() and count.isascii() for count in sockets) and int(sockets[0]) * int(sockets[1]) > MOST_SOCKETS:
        yield _Finding(
            State.WATCH,
            f"NCCL_SOCKET_NTHREADS={sockets[0]} times NCCL_NSOCKS_PERTHREAD={sockets[1]} is more than {MOST_SOCKETS}",
            "NCCL allows no more sockets and falls back to its own choice",
            f"choose two numbers with a product of at most {MOST_SOCKETS}, or unset both",
        )


def _between_nodes(snapshot: NodeSnapshot, engine: Engine) -> Iterator[_Finding]:
    told, ports = engine.config.communication, snapshot.rdma_ports or ()
    if not spread.spans_nodes(engine):
        return
    active = [port for port in ports if port.state == "ACTIVE"]
    for name, forbids in (("NCCL_IB_DISABLE", _on(told, "NCCL_IB_DISABLE")), ("NCCL_NET", told.get("NCCL_NET", "").lower() == "socket")):
        if forbids and active:
            yield _Finding(
                State.PROBLEM,
                f"{name}={told[name]} sends bytes between nodes over TCP though {words.count(len(active), 'RDMA port')} could carry them",
                "NCCL does not use InfiniBand or RoCE",
                "unset it on all nodes and start the engine again",
            )
    chosen = told.get("NCCL_IB_HCA", "")
    if chosen and ports and not any(_chosen(chosen, port) for port in active):
        yield _Finding(
            State.PROBLEM,
            f"NCCL_IB_HCA={chosen} names no active port of this node",
            f"active here: {words.joined([f'{port.device}:{port.port}' for port in active])}",
            "name active devices, or unset it",
        )
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        if "lo" in told.get(name, "").lstrip("=").split(","):
            yield _Finding(
                State.PROBLEM,
                f"{name}={told[name]}: other nodes cannot reach this node's loopback",
                "the engine's ranks on other nodes wait for an address that is their own",
                "name the interface that joins the nodes (`ip -br address`)",
            )


def _chosen(chosen: str, port: RdmaPort) -> bool:
    """Whether NCCL_IB_HCA admits a port: a list of prefixes ("mlx5"), exact names behind "=", or what to leave out behind "^"."""
    left_out, exact = chosen.startswith("^"), chosen.lstrip("^").startswith("=")
    for item in chosen.lstrip("^=").split(","):
        device, colon, number = item.strip().partition(":")
        same = port.device == device if exact else bool(device) and port.device.startswith(device)
        if same and (not colon or number == str(port.port)):
            return not left_out
    return left_out


def _of_kv(snapshot: NodeSnapshot, engine: Engine) -> Iterator[_Finding]:
    told, connector = engine.config.communication, engine.config.kv_connector or ""
    if not connector:
        return
    elsewhere = spread.split_of(snapshot, engine) is not None
    host = told.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "")
    if "nixl" in connector.lower() and elsewhere and engine.identity.role is Role.PREFILL and is_loopback(host):
        yield _Finding(
            State.PROBLEM,
            f"VLLM_NIXL_SIDE_CHANNEL_HOST is {host or 'not set, so localhost'}, and decode is on another node",
            "decode is told that address and asks itself: no handshake, so no transfer",
            "set it to an address of this node that the decode nodes reach, and start the engine again",
        )
    transports = told.get("UCX_TLS", "").lower()
    libraries = engine.observed.libraries
    on_cards = libraries is not None and bool(libraries.cuda_runtime)
    if (
        transports
        and on_cards
        and not transports.startswith("^")
        and not {"all", "gdr_copy"} & set(transports.split(","))
        and "cuda" not in transports
    ):
        yield _Finding(
            State.WATCH,
            f"UCX_TLS={transports} leaves no transport for card memory",
            "KV goes through the host's memory",
            "unset it, or add cuda_copy and cuda_ipc (one node) or rc (RDMA)",
        )
    if elsewhere and told.get("UCX_NET_DEVICES", "") == "lo":
        yield _Finding(
            State.PROBLEM,
            "UCX_NET_DEVICES=lo, and the other role is on another node",
            "KV cannot leave this node",
            "name the device that joins the nodes, such as mlx5_0:1, or unset it",
        )


def _of_logging(told: Mapping[str, str]) -> Iterator[_Finding]:
    if told.get("NCCL_DEBUG", "").upper() == "TRACE":
        yield _Finding(
            State.WATCH,
            "NCCL_DEBUG=TRACE writes a line for every call",
            "logging on every collective costs time",
            "set NCCL_DEBUG=WARN, or INFO while you look for something",
        )
