"""All collectors of a card, in the order in which they run. Being listed here makes a collector's flag and its help."""

from __future__ import annotations

from collections.abc import Mapping

from poise.exporter.nvml import (
    bar1,
    clocks,
    codec,
    identity,
    memory,
    nvlink,
    pcie,
    power,
    processes,
    state,
    temperature,
    topology,
    utilization,
)
from poise.exporter.nvml.card import Collector

ALL: tuple[Collector, ...] = (
    identity.COLLECTOR,
    utilization.COLLECTOR,
    memory.COLLECTOR,
    power.COLLECTOR,
    temperature.COLLECTOR,
    clocks.COLLECTOR,
    nvlink.TRAFFIC,
    processes.COLLECTOR,
    nvlink.STATE,
    topology.COLLECTOR,
    pcie.COLLECTOR,
    codec.COLLECTOR,
    bar1.COLLECTOR,
    state.COLLECTOR,
    clocks.LIMITS,
)

#: Name → help of the collectors that can be switched off.
SWITCHES: dict[str, str] = {collector.name: collector.help for collector in ALL if collector.optional}


def enabled(switches: Mapping[str, bool]) -> tuple[Collector, ...]:
    """The collectors that run, given what the user switched."""
    return tuple(collector for collector in ALL if not collector.optional or switches.get(collector.name, True))
