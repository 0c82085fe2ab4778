"""All collectors of a card, in the order in which they run. Being listed here makes a collector's flag and its help."""

from __future__ import annotations

from collections.abc import Mapping

from poise.exporter.nvml import (
    bar1,
    clocks,
    codec,
    ecc,
    fabric,
    gpm,
    identity,
    memory,
    nvlink,
    nvlink_errors,
    pcie,
    pcie_throughput,
    power,
    processes,
    recovery,
    remapped_rows,
    retired_pages,
    state,
    temperature,
    topology,
    utilization,
    xid,
)
from poise.exporter.nvml.card import Collector

ALL: tuple[Collector, ...] = (
    identity.COLLECTOR,
    utilization.COLLECTOR,
    memory.COLLECTOR,
    power.COLLECTOR,
    temperature.COLLECTOR,
    clocks.COLLECTOR,
    gpm.COLLECTOR,
    nvlink.TRAFFIC,
    processes.COLLECTOR,
    nvlink.STATE,
    topology.COLLECTOR,
    pcie.COLLECTOR,
    pcie_throughput.COLLECTOR,
    codec.COLLECTOR,
    bar1.COLLECTOR,
    ecc.COLLECTOR,
    remapped_rows.COLLECTOR,
    retired_pages.COLLECTOR,
    recovery.COLLECTOR,
    fabric.COLLECTOR,
    state.COLLECTOR,
    nvlink_errors.COLLECTOR,
    xid.COLLECTOR,
    clocks.LIMITS,
)

#: Name → help of the collectors that can be switched on and off.
SWITCHES: dict[str, str] = {
    collector.name: collector.help + ("" if collector.on_by_default else " (off by default)") for collector in ALL if collector.optional
}


def enabled(switches: Mapping[str, bool], *, defaults: bool = True, among: tuple[Collector, ...] = ALL) -> tuple[Collector, ...]:
    """The collectors that run, given what the user switched; without `defaults` only those that he switched on."""
    return tuple(
        collector for collector in among if not collector.optional or switches.get(collector.name, defaults and collector.on_by_default)
    )
