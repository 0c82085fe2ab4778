"""Carries bytes between simulated cards: over the NVLinks that join the two, else over PCIe.

Owns which links join two cards, as their own far ends say. Knows nothing of what the bytes are (traffic.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from poise.testbed.nvml.codes import Gpm, RemoteType
from poise.testbed.nvml.gpu import SimulatedGPU
from poise.testbed.traffic import Flow, whole_parts

MEBI = 1 << 20


def links_between(source: SimulatedGPU, target: SimulatedGPU) -> tuple[list[int], list[int]]:
    """The links of each of the two that are up and lead to the other, straight or by a switch; two empty lists when none do.

    NVSwitches of one node join all cards that hang on them (HGX boards), so a card on a switch reaches every other on one.
    """
    ways = []
    for one, other in ((source, target), (target, source)):
        up = [link for link in one.links if link.up]
        straight = [link.number for link in up if link.remote_type is RemoteType.GPU and link.remote_bus_id == other.pci_bus_id]
        ways.append((straight, [link.number for link in up if link.remote_type is RemoteType.SWITCH]))
    for here, there in zip(*ways, strict=True):
        if here and there:
            return here, there
    return [], []


class Carrier:
    """Adds flows to the cards' counters. NCCL and NIXL stripe over all links, so each that leads there carries the same part.

    What goes over PCIe is a rate as well, the mean of the last `window` seconds. A card with NVLink has no such rate: what it
    moves to and from the host is not known here, and 0 would be a lie.
    """

    def __init__(self, gpus: Sequence[SimulatedGPU], window: float) -> None:
        self._gpus = gpus
        self._window = window
        self._moved: list[deque[tuple[float, int, int]]] = [deque() for _ in gpus]

    def carry(self, flow: Flow, now: float) -> None:
        """Takes one flow at `now` (monotonic seconds): what leaves one card arrives at the other."""
        source, target, count = self._gpus[flow.source], self._gpus[flow.target], round(flow.count)
        sending, receiving = links_between(source, target)
        if not sending:
            with source.changing():
                source.add_pcie_bytes(tx=count)
            with target.changing():
                target.add_pcie_bytes(rx=count)
            self._moved[source.position].append((now, count, 0))
            self._moved[target.position].append((now, 0, count))
            return
        with source.changing():
            for link, part in zip(sending, whole_parts(count, len(sending)), strict=True):
                source.add_nvlink_bytes(link, tx=part)
        with target.changing():
            for link, part in zip(receiving, whole_parts(count, len(receiving)), strict=True):
                target.add_nvlink_bytes(link, rx=part)

    def show_rates(self, gpu: SimulatedGPU, now: float) -> None:
        """The PCIe throughput of a card without NVLink."""
        if gpu.link_count:
            return
        moved = self._moved[gpu.position]
        while moved and now - moved[0][0] > self._window:
            moved.popleft()
        tx, rx = (sum(entry[place] for entry in moved) / self._window for place in (1, 2))
        gpu.set_pcie_throughput(tx=tx, rx=rx)
        if gpu.gpm_supported:
            gpu.set_gpm(Gpm.PCIE_TX_PER_SEC, tx / MEBI)
            gpu.set_gpm(Gpm.PCIE_RX_PER_SEC, rx / MEBI)
