"""Check `nvlink_links`: every NVLink that leads somewhere is up; a card without NVLink has nothing to check.

A board reports all links that its chip has, wired or not, and an unwired one is inactive like a broken one. So a link that is down counts when
its far end is known, that is, when it was up before; one that was never up is only told from an unwired one by cards of the same kind
that have more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from poise.exporter import metrics as m
from poise.exporter.checks import words
from poise.exporter.checks.result import CheckResult, State, Status
from poise.exporter.checks.window import Window
from poise.exporter.snapshot import Gpu, NodeSnapshot

NAME = "nvlink_links"
TITLE = "NVLinks up"


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per card with a link down, else one for the node."""
    del window
    with_links = [(gpu, gpu.readings.get(m.GPU_NVLINK_UP, {})) for gpu in snapshot.gpus if gpu.up]
    with_links = [(gpu, links) for gpu, links in with_links if links]
    if not with_links:
        return
    failing = 0
    count_up = {gpu.uuid: sum(1 for up in links.values() if up) for gpu, links in with_links}
    for gpu, links in with_links:
        # Boards with NVLink and no bridge report every link as inactive: nothing was ever joined, so nothing is broken.
        if not count_up[gpu.uuid]:
            continue
        down = _down(gpu, links)
        fellow = max((other for other, _ in with_links if other.identity.name == gpu.identity.name), key=lambda other: count_up[other.uuid])
        if down:
            failing += 1
            yield _failing(snapshot, gpu, down, count_up[gpu.uuid])
        elif count_up[gpu.uuid] < count_up[fellow.uuid]:
            failing += 1
            yield _fewer(gpu, count_up[gpu.uuid], fellow, count_up[fellow.uuid])
    if not failing:
        total = sum(count_up.values())
        yield CheckResult(NAME, TITLE, Status.PASS, State.OK, f"{words.count(total, 'link')} up on {words.count(len(with_links), 'card')}")


def _down(gpu: Gpu, links: Mapping[tuple[str, ...], float]) -> list[int]:
    """The links that are down and lead somewhere; where no far end of any link is told, all that are down."""
    far_ends = gpu.readings.get(m.GPU_NVLINK_PEER_INFO)
    wired = None if far_ends is None else {link for link, kind, _, bus_id in far_ends if bus_id or kind != "unknown"}
    return sorted(int(link) for (link,), up in links.items() if not up and (wired is None or link in wired))


def _fewer(gpu: Gpu, up: int, fellow: Gpu, fellow_up: int) -> CheckResult:
    return CheckResult(
        NAME,
        TITLE,
        Status.FAIL,
        State.WATCH,
        f"GPU {gpu.index} has {words.count(up, 'link')} up, GPU {fellow.index} of the same kind {fellow_up}",
        uuid=gpu.uuid,
        gpu=str(gpu.index),
        cause="links that were never up since the exporter started: a fault of link, bridge or switch, or bridges that differ",
        fix=f"compare `nvidia-smi nvlink -s -i {gpu.index}` with `-i {fellow.index}`; reseat the bridge or check the fabric manager",
        evidence={f"links up, GPU {gpu.index}": str(up), f"links up, GPU {fellow.index}": str(fellow_up)},
    )


def _failing(snapshot: NodeSnapshot, gpu: Gpu, down: list[int], up: int) -> CheckResult:
    owner = next((e for e in snapshot.engines if gpu.uuid in (e.used or ()) and len(e.used or ()) > 1), None)
    total = len(down) + up
    links = ("link " if len(down) == 1 else "links ") + words.joined([str(link) for link in down])
    return CheckResult(
        NAME,
        TITLE,
        Status.FAIL,
        State.PROBLEM if owner else State.WATCH,
        f"{links} of GPU {gpu.index} {'is' if len(down) == 1 else 'are'} down ({up} of {total} up)",
        engine=owner.identity.engine if owner else "",
        uuid=gpu.uuid,
        gpu=str(gpu.index),
        cause="the link is inactive: a fault of link, bridge or switch"
        + (f"; {words.parallelism(owner)} sends every layer over it" if owner else ""),
        fix=f"`nvidia-smi nvlink -s -i {gpu.index}`, `nvidia-smi nvlink -e -i {gpu.index}`; reseat the bridge or check the fabric manager; reset the card",
        evidence={"links up": f"{up} of {total}", "down": words.joined([str(link) for link in down])},
    )
