"""Check `nvlink_errors`: NVLinks that are up carry data without having to repeat it or to train anew."""

from __future__ import annotations

from collections.abc import Iterator

from poise.exporter import metrics as m
from poise.exporter.checks import thresholds as t
from poise.exporter.checks import words
from poise.exporter.checks.result import CheckResult, Line, State, Subject
from poise.exporter.checks.window import LINK_BREAKS, LINK_REPEATS, Window
from poise.exporter.snapshot import Gpu, NodeSnapshot

NAME = "nvlink_errors"
TITLE = "NVLinks carry data without errors"
_LINE = Line(NAME, TITLE)


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per card whose links err, else one for the node; none where no card counts."""
    cards = [gpu for gpu in snapshot.gpus if gpu.up and gpu.readings.get(m.GPU_NVLINK_ERRORS)]
    part = window.longest()
    if not cards:
        return
    failing = [result for gpu in cards if (result := _erring(part, gpu)) is not None]
    yield from failing
    if not failing:
        yield _LINE.passed(f"no link of {words.count(len(cards), 'card')} had to train anew or repeats much")


def _erring(part: Window, gpu: Gpu) -> CheckResult | None:
    breaks = part.increase(gpu.uuid, m.GPU_NVLINK_ERRORS, LINK_BREAKS) or 0.0
    repeats = part.increase(gpu.uuid, m.GPU_NVLINK_ERRORS, LINK_REPEATS) or 0.0
    if not breaks and repeats <= t.LINK_REPEATS:
        return None
    seconds = f"{part.seconds:.0f} s"
    worst = _worst(gpu)
    evidence = {"trained anew or lost data": f"{breaks:.0f} in {seconds}", "repeated or damaged packets": f"{repeats:.0f} in {seconds}"}
    if worst is not None:
        evidence["most errors since the driver was loaded"] = f"link {worst}"
    return _LINE.failed(
        State.WATCH,
        f"links of GPU {gpu.index} trained anew or lost data {breaks:.0f} times and repeated {repeats:.0f} packets in {seconds}",
        Subject(uuid=gpu.uuid, gpu=str(gpu.index)),
        evidence,
        cause="a bad cable, connector, bridge or switch port: the link stays up, and what crosses it is sent again",
        fix=f"`nvidia-smi nvlink -e -i {gpu.index}` names the link; reset both ends at the next drain, have it replaced when it comes back",
    )


def _worst(gpu: Gpu) -> str | None:
    """The link with the most errors in all."""
    totals: dict[str, float] = {}
    for (link, _), count in gpu.readings.get(m.GPU_NVLINK_ERRORS, {}).items():
        totals[link] = totals.get(link, 0.0) + count
    return max(totals, key=lambda link: totals[link]) if any(totals.values()) else None
