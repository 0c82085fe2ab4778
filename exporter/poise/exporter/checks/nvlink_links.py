"""Check `nvlink_links`: every NVLink of a card is up; a card without NVLink has nothing to check."""

from __future__ import annotations

from collections.abc import Iterator

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
    for gpu, links in with_links:
        down = sorted((int(link) for (link,), up in links.items() if not up))
        # Boards with NVLink and no bridge report every link as inactive: nothing was ever joined, so nothing is broken.
        if down and len(down) < len(links):
            failing += 1
            yield _failing(snapshot, gpu, down, len(links))
    if not failing:
        total = sum(sum(1 for up in links.values() if up) for _, links in with_links)
        yield CheckResult(NAME, TITLE, Status.PASS, State.OK, f"{words.count(total, 'link')} up on {words.count(len(with_links), 'card')}")


def _failing(snapshot: NodeSnapshot, gpu: Gpu, down: list[int], total: int) -> CheckResult:
    owner = next((e for e in snapshot.engines if gpu.uuid in (e.used or ()) and len(e.used or ()) > 1), None)
    links = ("link " if len(down) == 1 else "links ") + words.joined([str(link) for link in down])
    return CheckResult(
        NAME,
        TITLE,
        Status.FAIL,
        State.PROBLEM if owner else State.WATCH,
        f"{links} of GPU {gpu.index} {'is' if len(down) == 1 else 'are'} down ({total - len(down)} of {total} up)",
        engine=owner.identity.engine if owner else "",
        uuid=gpu.uuid,
        gpu=str(gpu.index),
        cause="the link is inactive: a fault of link, bridge or switch"
        + (f"; {words.parallelism(owner)} sends every layer over it" if owner else ""),
        fix=f"`nvidia-smi nvlink -s -i {gpu.index}`, `nvidia-smi nvlink -e -i {gpu.index}`; reseat the bridge or check the fabric manager; reset the card",
        evidence={"links up": f"{total - len(down)} of {total}", "down": words.joined([str(link) for link in down])},
    )
