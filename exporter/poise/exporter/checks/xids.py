"""The fatal XIDs of a card since some time, for the checks that say why it is down or in trouble. Pure; judges nothing."""

from __future__ import annotations

from poise.exporter import metrics as m
from poise.exporter.nvml.xid_catalogue import Severity, Xid, lookup
from poise.exporter.snapshot import Gpu


def fatal_since(gpu: Gpu, since: float) -> list[tuple[float, Xid]]:
    """When each fatal code was last reported, where that was at `since` or later (Unix seconds), and what it means; oldest first."""
    told = [(at, lookup(int(code))) for (code,), at in gpu.readings.get(m.GPU_XID_LAST, {}).items() if code.isdecimal()]
    return sorted(((at, xid) for at, xid in told if xid.severity is Severity.FATAL and at >= since), key=lambda item: item[0])
