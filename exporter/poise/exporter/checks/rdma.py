"""Check `rdma`: an engine or a deployment on several nodes has an active InfiniBand or RoCE port here, and its bytes go over it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from poise.exporter import metrics as m
from poise.exporter.checks import spread, words
from poise.exporter.checks import thresholds as t
from poise.exporter.checks.result import NODE, CheckResult, Line, State
from poise.exporter.checks.window import Window
from poise.exporter.snapshot import Engine, NodeSnapshot, RdmaPort

NAME = "rdma"
TITLE = "RDMA devices up and used between nodes"
_LINE = Line(NAME, TITLE)

_ACTIVE = "ACTIVE"


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result for the node when anything on it talks to other nodes."""
    living = [engine for engine in snapshot.engines if engine.observed.process_up]
    spanning = [engine for engine in living if spread.spans_nodes(engine)]
    handing = [engine for engine in living if spread.split_of(snapshot, engine) is not None]
    if spanning or handing:
        yield _check(snapshot.rdma_ports, window, spanning, handing)


def _check(ports: Sequence[RdmaPort] | None, window: Window, spanning: Sequence[Engine], handing: Sequence[Engine]) -> CheckResult:
    who = words.joined([engine.identity.engine for engine in {id(engine): engine for engine in (*spanning, *handing)}.values()])
    if ports is None:
        return _LINE.unknown("the RDMA ports of this node cannot be read", fix="mount the host's /sys into the exporter's container")
    evidence = {f"{port.device} port {port.port}": ", ".join(filter(None, (port.state, port.link_layer, port.rate))) for port in ports}
    active = [port for port in ports if port.state == _ACTIVE]
    if not ports:
        return _LINE.failed(
            State.WATCH,
            f"this node has no RDMA device, and {who} talks to other nodes",
            NODE,
            cause="NCCL and UCX fall back to TCP sockets, which carry a tenth of what RDMA does and cost CPU",
            fix="give the node (and the container: /dev/infiniband) its InfiniBand or RoCE adapters, or keep the engine on one node",
        )
    if not active:
        return _LINE.failed(
            State.PROBLEM,
            f"none of {words.count(len(ports), 'RDMA port')} is active, and {who} talks to other nodes",
            NODE,
            evidence,
            cause="cable, switch port, subnet manager (InfiniBand) or network configuration (RoCE)",
            fix="read `ibstat`, `rdma link` and `dmesg | grep -i mlx`; check the cable and the subnet manager",
        )
    part = window.longest()
    moved, expected = part.rdma_bytes(), _expected(part, spanning, handing)
    if moved is not None and expected is not None and moved < expected / 2:
        return _LINE.failed(
            State.WATCH,
            f"{who} sent about {words.gibibytes(expected)} to other nodes and {words.gibibytes(moved)} went over RDMA in the last {part.seconds:.0f} s",
            NODE,
            evidence,
            cause="NCCL or UCX uses TCP: a variable forbids RDMA, or the container lacks /dev/infiniband",
            fix="look at nccl_environment; start it with NCCL_DEBUG=INFO and read `NET/IB` or `NET/Socket`; for NIXL check UCX_TLS and UCX_NET_DEVICES",
        )
    used = f", {words.gibibytes(moved)} in the last {part.seconds:.0f} s" if moved else ""
    return _LINE.passed(f"{len(active)} of {words.count(len(ports), 'RDMA port')} active{used}", NODE, evidence)


def _expected(part: Window, spanning: Sequence[Engine], handing: Sequence[Engine]) -> float | None:
    """The least that must have gone to other nodes, in bytes; None when too little was done to say."""
    tokens = sum(part.increase(engine.identity.engine, m.ENGINE_GENERATION_TOKENS) or 0.0 for engine in spanning)
    moved = sum(part.increase(engine.identity.engine, m.ENGINE_KV_TRANSFER_BYTES) or 0.0 for engine in handing)
    least = (tokens * t.NVLINK_BYTES_PER_TOKEN if tokens >= t.TOKENS_FLOOR * part.seconds else 0.0) + moved
    return least if least >= t.RDMA_BYTES_FLOOR else None
