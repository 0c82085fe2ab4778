"""How the cards of the node are joined: best path and peer access of each pair. Static, asked once per pair."""

from __future__ import annotations

import ctypes
from collections import Counter

import pynvml
from poise.exporter.metrics import GPU_PAIR_INFO
from poise.exporter.nvml.card import Card, Collector, Labels, Peer, Read, Tick
from poise.exporter.nvml.fields import FieldBatch
from poise.exporter.nvml.library import REFUSALS, SUCCESS

#: nvmlGpuTopologyLevel_t → the word that `nvidia-smi topo -m` uses.
PATHS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
#: nvmlGpuP2PStatus_t → label.
P2P = {
    0: "ok",
    1: "chipset_not_supported",
    2: "gpu_not_supported",
    3: "topology_not_supported",
    4: "disabled_by_regkey",
    5: "not_supported",
}
# pynvml's NVML_P2P_CAPS_INDEX_READ is a tuple by mistake, so the numbers stand here (nvml.h, nvmlGpuP2PCapsIndex_t).
_CAPABILITY_READ = 0
_CAPABILITY_NVLINK = 2


def prepare(card: Card, fields: FieldBatch) -> Read:
    """Only pairs with cards that answer now: a call about a card that hangs would hang this card's thread as well."""
    ancestor = ctypes.c_int()
    status = ctypes.c_int()
    get_ancestor = card.library.function("nvmlDeviceGetTopologyCommonAncestor")
    get_p2p = card.library.function("nvmlDeviceGetP2PStatus")
    known: dict[str, tuple[str, str, bool]] = {}

    def pair(tick: Tick, peer: Peer) -> tuple[str, str, bool] | None:
        code = get_ancestor(card.handle, peer.handle, ctypes.byref(ancestor))
        if code != SUCCESS and code not in REFUSALS:
            tick.refuse(code, "nvmlDeviceGetTopologyCommonAncestor", GPU_PAIR_INFO)
            return None
        path = PATHS.get(ancestor.value, "") if code == SUCCESS else ""
        code = get_p2p(card.handle, peer.handle, ctypes.c_int(_CAPABILITY_READ), ctypes.byref(status))
        p2p = P2P.get(status.value, "unknown") if code == SUCCESS else "unknown"
        code = get_p2p(card.handle, peer.handle, ctypes.c_int(_CAPABILITY_NVLINK), ctypes.byref(status))
        return path, p2p, code == SUCCESS and status.value == 0

    def read(tick: Tick) -> None:
        found: dict[Labels, float] = {}
        far_ends = Counter(bus_id for bus_id, _ in card.link_peers.values())
        to_switches = sum(kind == "switch" for _, kind in card.link_peers.values())
        for peer in card.peers():
            if peer.uuid not in known:
                answer = pair(tick, peer)
                if answer is None:
                    continue
                known[peer.uuid] = answer
            path, p2p, joined = known[peer.uuid]
            # Links that end at the peer; behind switches all that end at one, where the driver says that NVLink joins the two cards.
            links = far_ends.get(peer.pci_bus_id, 0) or (to_switches if joined else 0)
            path = f"NV{links}" if links else path
            if path:
                found[(str(peer.index), peer.uuid, path, p2p)] = 1.0
        tick.put(GPU_PAIR_INFO, found)
        if found:
            tick.answered = True
            tick.absent.pop(GPU_PAIR_INFO, None)
        elif known:
            tick.refuse(pynvml.NVML_ERROR_NOT_SUPPORTED, "nvmlDeviceGetTopologyCommonAncestor", GPU_PAIR_INFO)

    return read


COLLECTOR = Collector(name="topology", help="paths between the cards", metrics=(GPU_PAIR_INFO,), prepare=prepare, interval=5.0)
