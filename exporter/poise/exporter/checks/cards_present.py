"""Check `cards`: the driver is loaded, the expected number of cards is there, and each of them answers."""

from __future__ import annotations

from collections.abc import Iterator

from poise.exporter.checks import thresholds as t
from poise.exporter.checks import words
from poise.exporter.checks.result import CheckResult, State, Status
from poise.exporter.checks.window import Window
from poise.exporter.checks.xids import fatal_since
from poise.exporter.nvml.xid_catalogue import Xid
from poise.exporter.snapshot import Gpu, NodeSnapshot, Reason

NAME = "cards"
TITLE = "Driver loaded, expected cards there and healthy"

_DOWN = {
    Reason.GPU_LOST: (
        "the card has fallen off the bus (NVML answers GPU_IS_LOST)",
        "read `dmesg | grep -i xid`; drain the node, reset the card (`nvidia-smi --gpu-reset -i {index}`) or reboot",
    ),
    Reason.TIMEOUT: (
        "a call into the driver does not come back",
        "look for processes in state D and XIDs in `dmesg`; drain the node and reboot it if the call does not return",
    ),
}
_DOWN_OTHERWISE = ("the driver answers errors for it", "read `nvidia-smi -q -i {index}` and `dmesg | grep -i nvrm`")


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result for the node, and one for each card that does not answer, unless none can for want of a driver."""
    del window  # a configuration fault needs no window
    answering = [gpu for gpu in snapshot.gpus if gpu.up]
    evidence = {"driver": snapshot.driver.driver or "none", "cards that answer": str(len(answering))}
    if snapshot.gpus_expected is not None:
        evidence["cards expected"] = str(snapshot.gpus_expected)
    if snapshot.driver.error and not answering:
        yield _no_driver(snapshot, evidence)
        return
    for gpu in snapshot.gpus:
        if not gpu.up:
            yield _down(gpu)
    if snapshot.gpus_expected is not None and len(answering) < snapshot.gpus_expected:
        known = len(snapshot.gpus) >= snapshot.gpus_expected
        yield CheckResult(
            NAME,
            TITLE,
            Status.FAIL,
            State.PROBLEM,
            f"{len(answering)} of {words.count(snapshot.gpus_expected, 'expected card')} answer",
            cause="a card of this node is down" if known else "the driver does not list every card that should be here",
            fix="" if known else "compare `nvidia-smi -L` with `lspci -d 10de:`; read `dmesg | grep -i nvrm`",
            evidence=evidence,
        )
    else:
        sentence = f"driver {snapshot.driver.driver}, {_answering(len(answering), snapshot.gpus_expected)}"
        yield CheckResult(NAME, TITLE, Status.PASS, State.OK, sentence, evidence=evidence)


def _answering(count: int, expected: int | None) -> str:
    cards = words.count(count, "card")
    if expected is None:
        return f"{cards} answer"
    if count == expected:
        return f"{cards} of {expected} expected answer"
    return f"{cards} answer, " + (f"more than the {expected} expected" if expected else "none was expected")


def _no_driver(snapshot: NodeSnapshot, evidence: dict[str, str]) -> CheckResult:
    # Cards that answered before are as good a reason to expect them as the PCI bus.
    expected = max(snapshot.gpus_expected or 0, len(snapshot.gpus))
    return CheckResult(
        NAME,
        TITLE,
        Status.FAIL if expected else Status.UNKNOWN,
        State.PROBLEM if expected else State.UNKNOWN,
        f"no NVIDIA driver: {snapshot.driver.error}",
        cause=f"{words.count(expected, 'card')} should be here and the driver does not answer" if expected else "",
        fix="install or load the NVIDIA driver (`modprobe nvidia`, `nvidia-smi`); in a container, start it with the NVIDIA runtime",
        evidence=evidence,
    )


def _down(gpu: Gpu) -> CheckResult:
    cause, fix = _DOWN.get(gpu.down_reason or Reason.ERROR, _DOWN_OTHERWISE)
    evidence = {"reason": str(gpu.down_reason or Reason.ERROR), "name": gpu.identity.name, "pci": gpu.identity.pci_bus_id}
    xids = _fatal_xids(gpu)
    if xids:
        cause, fix = f"XID {xids[-1].code}, {xids[-1].name}: {xids[-1].meaning}", xids[-1].action
        evidence["XIDs"] = ", ".join(str(xid.code) for xid in xids)
    return CheckResult(
        NAME,
        TITLE,
        Status.FAIL,
        State.PROBLEM,
        f"GPU {gpu.index} does not answer",
        uuid=gpu.uuid,
        gpu=str(gpu.index),
        cause=cause,
        fix=fix.format(index=gpu.index),
        evidence=evidence,
    )


def _fatal_xids(gpu: Gpu) -> list[Xid]:
    """The fatal XIDs that came with the end of a card that was read before, oldest first."""
    return [xid for _, xid in fatal_since(gpu, gpu.sampled_at - t.XID_BEFORE_LOSS)] if gpu.sampled_at is not None else []
