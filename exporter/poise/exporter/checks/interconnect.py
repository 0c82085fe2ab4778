"""Check `interconnect`: the ranks of a tensor-parallel group are joined by the best path that the node has, and their bytes take it.

Each layer is summed over the ranks of such a group twice, so the path decides how much more cards help. Paths: `nvidia-smi topo -m`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from poise.exporter import metrics as m
from poise.exporter.checks import thresholds as t
from poise.exporter.checks import words
from poise.exporter.checks.memory_balance import groups_of
from poise.exporter.checks.result import CheckResult, Line, State, Subject
from poise.exporter.checks.visible_devices import taken_by_others
from poise.exporter.checks.window import Window
from poise.exporter.snapshot import Engine, EngineGpu, Gpu, Libraries, NodeSnapshot, Reason

NAME = "interconnect"
TITLE = "Ranks are joined by the best path, and use it"
_LINE = Line(NAME, TITLE)

#: From near to far, behind NVLink.
_FAR = ("PIX", "PXB", "PHB", "NODE", "SYS")
_PATH_WORDS = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the CPU's PCIe bridge",
    "NODE": "PCIe bridges of one NUMA node",
    "SYS": "the link between CPU sockets",
}


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per living engine with a tensor-parallel group of several cards of this node."""
    for engine in snapshot.engines:
        groups = [group for group in groups_of(engine) if len(group) > 1]
        if groups and engine.observed.process_up:
            result = _check(snapshot, window, engine, groups)
            if result is not None:
                yield result


def rank_of(path: str) -> int:
    """Paths in order, NVLink first."""
    return 0 if path.startswith("NV") else 1 + _FAR.index(path) if path in _FAR else len(_FAR) + 1


def _check(snapshot: NodeSnapshot, window: Window, engine: Engine, groups: Sequence[tuple[EngineGpu, ...]]) -> CheckResult | None:
    about = Subject(engine=engine.identity.engine)
    paths = _paths(snapshot)
    pairs = {
        (one.index, other.index): paths.get(frozenset((one.uuid, other.uuid))) for group in groups for one, other in combinations(group, 2)
    }
    evidence = {f"GPU {one} – GPU {other}": path or "unknown" for (one, other), path in pairs.items()}
    known = [(pair, path) for pair, path in pairs.items() if path is not None]
    if len(known) < len(pairs):
        reasons = {gpu.absent.get(m.GPU_PAIR_INFO) for gpu in snapshot.gpus} - {None, Reason.NOT_SUPPORTED}
        if not known and not reasons:
            return None  # not supported, or not asked for
        return _LINE.unknown("the driver does not tell how the cards are joined", about, evidence)
    worst_pair, worst = max(known, key=lambda item: rank_of(item[1]))
    if rank_of(worst) == 0:
        silent = _silent(window, engine, groups)
        if silent is not None:
            return silent
        return _LINE.passed(f"ranks are joined by NVLink ({words.joined(sorted({path for _, path in known}))})", about, evidence)
    return _by_pcie(snapshot, engine, worst_pair, worst, evidence)


def _by_pcie(snapshot: NodeSnapshot, engine: Engine, pair: tuple[int, int], path: str, evidence: dict[str, str]) -> CheckResult:
    about = Subject(engine=engine.identity.engine)
    names = words.cards(pair)
    joined = f"{names} are joined by {_PATH_WORDS.get(path, path)} only ({path})"
    better = _better(snapshot, engine, path)
    if better is not None:
        (one, other), best = better
        return _LINE.failed(
            State.WATCH,
            f"{joined}, while {words.cards((one, other))} are by {best}",
            about,
            evidence | {f"GPU {one} – GPU {other}": best},
            cause="CUDA_VISIBLE_DEVICES or the order of starts put the ranks on cards that are far from each other",
            fix=words.start_with(engine, (one, other)).removesuffix(",")
            if len(engine.used or ()) == 2 and not words.in_pod(engine)
            else "give it cards that NVLink joins",
        )
    idle_links = [
        gpu
        for gpu in snapshot.gpus
        if gpu.uuid in (engine.used or ()) and any(not up for up in gpu.readings.get(m.GPU_NVLINK_UP, {}).values())
    ]
    if idle_links and not any(up for gpu in idle_links for up in gpu.readings.get(m.GPU_NVLINK_UP, {}).values()):
        return _LINE.passed(f"{joined}; their NVLinks lead nowhere (no bridge)", about, evidence)
    return _LINE.passed(f"{joined}; this node has no better path", about, evidence)


def _silent(window: Window, engine: Engine, groups: Sequence[tuple[EngineGpu, ...]]) -> CheckResult | None:
    """Fails when tokens flow and nothing moves over the links that join the ranks; None when it moves, or that is not known."""
    part = window.over(t.PROBLEM_WINDOW) or window.over(t.WATCH_WINDOW)
    # A build without CUDA moves nothing over NVLink.
    if part is None or engine.observed.libraries == Libraries():
        return None
    tokens = part.increase(engine.identity.engine, m.ENGINE_GENERATION_TOKENS) or 0.0
    if tokens < t.TOKENS_FLOOR * part.seconds:
        return None
    moved = [part.increase(card.uuid, m.GPU_NVLINK_TOTAL_TX) for group in groups for card in group]
    known = [value for value in moved if value is not None]
    if not known or len(known) < len(moved) or max(known) >= t.NVLINK_BYTES_PER_TOKEN * tokens:
        return None
    told = engine.config.communication
    named = ", ".join(f"{name}={told[name]}" for name in ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE") if name in told)
    return _LINE.failed(
        State.WATCH,
        f"{tokens / part.seconds:.0f} tokens/s and no bytes over the NVLinks between the ranks, {part.seconds:.0f} s",
        Subject(engine=engine.identity.engine),
        {
            f"GPU {card.index}": f"{words.gibibytes(value)} over NVLink"
            for card, value in zip((c for g in groups for c in g), known, strict=True)
        },
        cause=f"peer-to-peer is switched off ({named})"
        if named
        else "NCCL found no peer-to-peer path: a container without shared /dev/shm or with separate IPC, IOMMU or ACS, or one set of cards per container",
        fix="unset it and start the engine again"
        if named
        else "start it once with NCCL_DEBUG=INFO and read which transport it names for its channels (P2P, SHM, NET)",
    )


def _paths(snapshot: NodeSnapshot) -> dict[frozenset[str], str]:
    found: dict[frozenset[str], str] = {}
    for gpu in snapshot.gpus:
        for _, peer_uuid, path, _ in gpu.readings.get(m.GPU_PAIR_INFO, {}):
            found[frozenset((gpu.uuid, peer_uuid))] = path
    return found


def _better(snapshot: NodeSnapshot, engine: Engine, path: str) -> tuple[tuple[int, int], str] | None:
    """A pair with a better path among the cards that the engine has or could have."""
    others = taken_by_others(snapshot, engine)
    able = {gpu.uuid: gpu for gpu in snapshot.gpus if gpu.up and gpu.uuid not in others}
    best: tuple[tuple[int, int], str] | None = None
    for pair, candidate in _paths(snapshot).items():
        cards: list[Gpu] = [able[uuid] for uuid in pair if uuid in able]
        if len(cards) == 2 and rank_of(candidate) < rank_of(best[1] if best else path):
            first, second = sorted(gpu.index for gpu in cards)
            best = ((first, second), candidate)
    return best
