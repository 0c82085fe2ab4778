"""NVLink: bytes per link and card each tick; state, bandwidth and far end of each link more rarely.

Fields 138 and 139 are counters of payload in KiB despite their names (nvml.h), with a scope that sums all links. Where NVLink 5 has no such
counters, fields 202 and 204 count bytes, protocol included.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import pynvml
from poise.exporter.metrics import (
    GPU_NVLINK_BANDWIDTH,
    GPU_NVLINK_PEER_INFO,
    GPU_NVLINK_RX,
    GPU_NVLINK_TOTAL_RX,
    GPU_NVLINK_TOTAL_TX,
    GPU_NVLINK_TX,
    GPU_NVLINK_UP,
)
from poise.exporter.nvml.card import Card, Collector, Labels, Read, Tick
from poise.exporter.nvml.fields import ALL_LINKS, FieldBatch
from poise.exporter.nvml.identity import architecture_of, sysfs_bus_id
from poise.exporter.nvml.library import LOST, NOT_SUPPORTED, REFUSALS, SUCCESS

_KIBI = 1024
#: NVML_FI_DEV_NVLINK_GET_SPEED is MB/s.
_MEGA = 1e6
_DATA_TX: int = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
_DATA_RX: int = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
_BYTES_TX: int = pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES
_BYTES_RX: int = pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES
_SPEED: int = pynvml.NVML_FI_DEV_NVLINK_GET_SPEED
#: nvmlDeviceArchitecture_t from which on NVLink is of the fifth generation.
BLACKWELL: int = pynvml.NVML_DEVICE_ARCH_BLACKWELL
#: nvmlIntNvLinkDeviceType_t → label.
_PEER_TYPES = {0: "gpu", 2: "switch"}
#: No card of today has more (nvml.h, NVML_NVLINK_MAX_LINKS is 36); a larger answer is not believed.
_MOST_LINKS = 72


def link_count(card: Card) -> tuple[int, int]:
    """How many links the card has, and the nvmlReturn_t of asking (field 91, NVML_FI_DEV_NVLINK_LINK_COUNT)."""
    batch = card.fields()
    place = batch.add(pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT)
    code = batch.code(place)
    if code != SUCCESS:
        return 0, code
    return min(int(batch.value(place)), _MOST_LINKS), code


class Links:
    """The links of a card, found at the first tick on which the driver says how many there are."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self.count = 0
        self.code = NOT_SUPPORTED
        self.known = False

    def find(self) -> bool:
        """Whether there are links; asks the driver until it answers."""
        if not self.known:
            self.count, self.code = link_count(self._card)
            self.known = self.code == SUCCESS or self.code in REFUSALS
            if self.known and not self.count:
                self.code = self.code or NOT_SUPPORTED
        return self.count > 0


#: A counter of the driver: field id, and bytes of one count.
_Counter = tuple[int, int]


def _answering(card: Card, candidates: Sequence[_Counter], scopes: Sequence[int]) -> _Counter | None:
    """The first counter that the driver does not refuse for all of these scopes, or None. Two counters count differently, so which one gives
    a series is settled before the first reading."""
    for field, scale in candidates:
        batch = card.fields()
        places = [batch.add(field, scope) for scope in scopes]
        if any(batch.code(place) not in REFUSALS for place in places):
            return field, scale
    return None


def prepare_traffic(card: Card, fields: FieldBatch) -> Read:
    """Counters of one direction each: sent and received by this card."""
    links = Links(card)
    blackwell = architecture_of(card) >= BLACKWELL
    directions = ((GPU_NVLINK_TX, GPU_NVLINK_TOTAL_TX, _DATA_TX, _BYTES_TX), (GPU_NVLINK_RX, GPU_NVLINK_TOTAL_RX, _DATA_RX, _BYTES_RX))
    metrics = tuple(metric for direction in directions for metric in direction[:2])
    keys: list[Labels] = []
    #: By direction: place of the first link and bytes of a count, and the same of the card's sum, None where the links are added up.
    sources: list[tuple[int, int, tuple[int, int] | None]] = []

    def find() -> bool:
        if sources:
            return True
        if not links.find():
            return False
        keys.extend((str(link),) for link in range(links.count))
        for _, _, kibibytes, whole_bytes in directions:
            payload = (kibibytes, _KIBI)
            candidates = (payload, (whole_bytes, 1)) if blackwell else (payload,)
            field, scale = _answering(card, candidates, range(links.count)) or payload
            # The links' fields stand in a row, so that one slice reads them.
            first = min([fields.add(field, link) for link in range(links.count)])
            total = _answering(card, candidates, (ALL_LINKS,))
            sources.append((first, scale, (fields.add(total[0], ALL_LINKS), total[1]) if total else None))
        return True

    def read(tick: Tick) -> None:
        if not find():
            tick.refuse(links.code, "NVML_FI_DEV_NVLINK_LINK_COUNT", *metrics)
            return
        for (per_link_metric, total_metric, _, _), (first, scale, total) in zip(directions, sources, strict=True):
            tick.put_fields(fields, per_link_metric, keys, first, scale)
            if total is not None:
                value = tick.field(fields, total[0], total_metric)
                if value is not None:
                    tick.set(total_metric, value * total[1])
                continue
            given = tick.readings.get(per_link_metric, {})
            if len(given) == links.count:
                tick.set(total_metric, sum(given.values()))
            else:
                # The sum over fewer links would look like a counter that fell.
                tick.refuse(NOT_SUPPORTED, "nvmlDeviceGetFieldValues", total_metric)

    find()
    return read


def prepare_state(card: Card, fields: FieldBatch) -> Read:
    """A link that is not active has no bandwidth; its far end stays known."""
    links = Links(card)
    get_state = card.library.function("nvmlDeviceGetNvLinkState")
    get_type = card.library.function("nvmlDeviceGetNvLinkRemoteDeviceType")
    get_peer = card.library.function("nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemotePciInfo")
    active = ctypes.c_int()
    kind = ctypes.c_int()
    pci = pynvml.nvmlPciInfo_t()
    keys: list[Labels] = []
    speeds: list[int] = []

    def find() -> bool:
        if not links.find():
            return False
        if not speeds:
            keys.extend((str(link),) for link in range(links.count))
            speeds.extend(fields.add(_SPEED, link) for link in range(links.count))
        return True

    def read_peer(link: int) -> None:
        """Latched: what a link is wired to does not change while the card is in its slot, and a link that is down does not tell."""
        known_bus_id, known_type = card.link_peers.get(link, ("", "unknown"))
        if known_bus_id and known_type != "unknown":
            return
        number = ctypes.c_uint(link)
        code = get_peer(card.handle, number, ctypes.byref(pci))
        bus_id = sysfs_bus_id(pci.busId) if code == SUCCESS else known_bus_id
        code = get_type(card.handle, number, ctypes.byref(kind))
        peer_type = _PEER_TYPES.get(kind.value, "unknown") if code == SUCCESS else known_type
        card.link_peers[link] = (bus_id, peer_type)

    def read(tick: Tick) -> None:
        if not find():
            tick.refuse(links.code, "NVML_FI_DEV_NVLINK_LINK_COUNT", GPU_NVLINK_UP, GPU_NVLINK_BANDWIDTH, GPU_NVLINK_PEER_INFO)
            return
        states: dict[Labels, float] = {}
        for link in range(links.count):
            code = get_state(card.handle, ctypes.c_uint(link), ctypes.byref(active))
            if code == SUCCESS:
                tick.answered = True
                states[keys[link]] = float(active.value == pynvml.NVML_FEATURE_ENABLED)
            elif code in LOST or not states:
                tick.refuse(code, "nvmlDeviceGetNvLinkState", GPU_NVLINK_UP)
            read_peer(link)
        if states:
            tick.absent.pop(GPU_NVLINK_UP, None)
        tick.put(GPU_NVLINK_UP, states)
        tick.put_fields(fields, GPU_NVLINK_BANDWIDTH, keys, speeds[0], _MEGA)
        # A link that is down has no speed; some drivers refuse the field then, some say 0.
        bandwidth = tick.readings.get(GPU_NVLINK_BANDWIDTH, {})
        tick.readings[GPU_NVLINK_BANDWIDTH] = {labels: speed for labels, speed in bandwidth.items() if speed > 0}
        uuids = {peer.pci_bus_id: peer.uuid for peer in card.peers()}
        tick.put(
            GPU_NVLINK_PEER_INFO,
            {
                (str(link), "gpu" if bus_id in uuids else peer_type, uuids.get(bus_id, ""), bus_id): 1.0
                for link, (bus_id, peer_type) in sorted(card.link_peers.items())
            },
        )

    find()
    return read


TRAFFIC = Collector(
    name="nvlink",
    help="bytes over NVLink, per link and card",
    metrics=(GPU_NVLINK_TX, GPU_NVLINK_RX, GPU_NVLINK_TOTAL_TX, GPU_NVLINK_TOTAL_RX),
    prepare=prepare_traffic,
)
STATE = Collector(
    name="nvlink_state",
    help="state, bandwidth and far end of each NVLink",
    metrics=(GPU_NVLINK_UP, GPU_NVLINK_BANDWIDTH, GPU_NVLINK_PEER_INFO),
    prepare=prepare_state,
    interval=5.0,
)
