"""Check `card_health`: no card reports broken memory, a recovery that waits to be done, or a fresh fatal XID; a partitioned card is said."""

from __future__ import annotations

from collections.abc import Iterator

from poise.exporter import metrics as m
from poise.exporter.checks import thresholds as t
from poise.exporter.checks import words
from poise.exporter.checks.result import CheckResult, Line, State, Subject
from poise.exporter.checks.window import Window
from poise.exporter.checks.xids import fatal_since
from poise.exporter.snapshot import Gpu, NodeSnapshot, Reason

NAME = "card_health"
TITLE = "Cards report no errors"
_LINE = Line(NAME, TITLE)

_TOLD_BY = (m.GPU_REMAP_PENDING, m.GPU_REMAP_FAILED, m.GPU_RECOVERY_ACTION, m.GPU_ECC_ERRORS, m.GPU_XID_ERRORS)

#: nvmlDeviceGpuRecoveryAction_t (nvml.h) → what the driver asks.
_RECOVERY = {
    1: "for a reset of the card",
    2: "for a reboot of the node",
    3: "to drain peer-to-peer traffic",
    4: "to drain and reset the card",
    5: "to recover the IMEX domain",
    6: "for a reset of the bus",
    7: "for a reboot of the system",
}


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per card that reports something, else one for the node; none where no card tells its health."""
    del window
    answering = [gpu for gpu in snapshot.gpus if gpu.up]
    telling = [gpu for gpu in answering if any(gpu.readings.get(metric) for metric in _TOLD_BY)]
    failing = 0
    for gpu in answering:
        result = _troubled(gpu, snapshot.taken_at)
        if result is not None:
            failing += 1
            yield result
        elif gpu.value(m.GPU_MIG_MODE):
            yield _LINE.unknown(
                f"GPU {gpu.index} is partitioned (MIG): Poise does not measure its instances",
                _about(gpu),
                fix=f"switch it off for serving on whole cards: `nvidia-smi -i {gpu.index} -mig 0`",
            )
    refused = {reason for gpu in answering for metric in _TOLD_BY if (reason := gpu.absent.get(metric)) is not None} - {
        Reason.NOT_SUPPORTED,
        Reason.FUNCTION_NOT_FOUND,
    }
    if telling and not failing:
        yield _LINE.passed(f"{words.count(len(telling), 'card')} {'reports' if len(telling) == 1 else 'report'} no error")
    elif not telling and refused:
        yield _LINE.unknown(f"no card tells its errors ({words.joined(sorted(refused))})", fix="run the exporter as root")


def _troubled(gpu: Gpu, now: float) -> CheckResult | None:
    """The worst of what a card reports, with all of it as evidence."""
    found: list[tuple[State, str, str, str]] = []  # how bad, what holds, why, what to do
    evidence: dict[str, str] = {}
    reset = f"drain it and reset it: `nvidia-smi --gpu-reset -i {gpu.index}`"
    action = int(gpu.value(m.GPU_RECOVERY_ACTION) or 0)
    if action:
        wanted = _RECOVERY.get(action, f"for recovery action {action}")
        evidence["recovery action"] = wanted.removeprefix("for ")
        state = State.WATCH if action == 3 else State.PROBLEM
        found.append((state, f"the driver asks {wanted}", "the card met an error that it cannot mend itself", f"drain the node; {reset}"))
    # A driver that tells recovery actions and asks for none has been reset since, or did not need it.
    mended = gpu.value(m.GPU_RECOVERY_ACTION) == 0
    for at, xid in reversed(fatal_since(gpu, now - t.FRESH_XID)):
        minutes = max(0.0, now - at) / 60
        evidence[f"XID {xid.code}"] = f"{xid.name}, {minutes:.0f} min ago"
        state = State.WATCH if mended else State.PROBLEM
        found.append((state, f"it reported XID {xid.code} ({xid.name}) {minutes:.0f} min ago", xid.meaning, xid.action))
    if gpu.value(m.GPU_REMAP_FAILED):
        evidence["row remapping"] = "failed"
        found.append(
            (State.PROBLEM, "a memory row could not be replaced", "its spare rows are used up or broken", "have the card replaced")
        )
    uncorrected = gpu.value(m.GPU_ECC_ERRORS, "uncorrected") or 0.0
    if uncorrected:
        evidence["uncorrected memory errors"] = f"{uncorrected:.0f} since the driver was loaded"
        found.append(
            (State.WATCH, f"{uncorrected:.0f} uncorrected memory errors since the driver was loaded", "device memory failed", reset)
        )
    if gpu.value(m.GPU_REMAP_PENDING):
        evidence["row remapping"] = "pending"
        found.append(
            (State.WATCH, "a memory row waits to be replaced", "memory failed and a spare row takes over at the next reset", reset)
        )
    if not found:
        return None
    state, sentence, cause, fix = min(found, key=lambda item: item[0] is not State.PROBLEM)
    return _LINE.failed(state, f"GPU {gpu.index}: {sentence}", _about(gpu), evidence, cause=cause, fix=fix)


def _about(gpu: Gpu) -> Subject:
    return Subject(uuid=gpu.uuid, gpu=str(gpu.index))
