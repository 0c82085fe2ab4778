"""What the card is: name, bus address, architecture, serial, VBIOS, minor number, NUMA node. Static, read again once a minute."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pynvml
from poise.exporter.metrics import GPU_INFO
from poise.exporter.nvml.card import Card, Collector, Read, Tick
from poise.exporter.nvml.fields import FieldBatch
from poise.exporter.nvml.library import SUCCESS
from poise.exporter.snapshot import GpuIdentity

#: nvmlDeviceArchitecture_t of nvml.h (NVML_DEVICE_ARCH_*).
ARCHITECTURES = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
    13: "rubin",
}
#: What the driver answers where no NUMA node is known: (unsigned) -1.
_NO_NUMA_NODE = (-1, 0xFFFFFFFF)
_TEXT_SIZE = 96


def sysfs_bus_id(text: str | bytes) -> str:
    """NVML's bus id ("00000000:1A:00.0") in the form of sysfs ("0000:1a:00.0"); empty for none or for the all-ones id of a switch."""
    # pynvml's structs give their text as str or as bytes, by version.
    text = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    domain, colon, rest = text.strip("\0 ").partition(":")
    if not colon:
        return ""
    try:
        number = int(domain, 16)
    except ValueError:
        return ""
    rest = rest.lower()
    return "" if rest.startswith("ff:ff") else f"{number:04x}:{rest}"


def host_numa_node(sysfs: Path, bus_id: str) -> int:
    """The NUMA node that the card hangs on, -1 where the kernel knows none.

    nvmlDeviceGetNumaNodeId is for platforms on which the card is a node itself (nvml.h), so it comes second.
    """
    try:
        return int((sysfs / "bus/pci/devices" / bus_id / "numa_node").read_text()) if bus_id else -1
    except (OSError, ValueError):
        return -1


def prepare(card: Card, fields: FieldBatch) -> Read:
    """Identity does not fail as a whole: what the driver does not say stays an empty string."""
    texts: dict[str, Any] = {}
    calls = {}
    for key, name in (("serial", "nvmlDeviceGetSerial"), ("vbios", "nvmlDeviceGetVbiosVersion")):
        texts[key] = ctypes.create_string_buffer(_TEXT_SIZE)
        calls[key] = card.call(name, texts[key], ctypes.c_uint(_TEXT_SIZE))
    pci = pynvml.nvmlPciInfo_t()
    calls["pci"] = card.call(("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2"), ctypes.byref(pci))
    numbers: dict[str, Any] = {
        "architecture": ctypes.c_uint(),
        "minor": ctypes.c_uint(),
        "numa_node": ctypes.c_int(),
    }
    for key, name in (
        ("architecture", "nvmlDeviceGetArchitecture"),
        ("minor", "nvmlDeviceGetMinorNumber"),
        ("numa_node", "nvmlDeviceGetNumaNodeId"),
    ):
        calls[key] = card.call(name, ctypes.byref(numbers[key]))

    def read(tick: Tick) -> None:
        given = {key for key, call in calls.items() if tick.ask(call)}
        architecture = numbers["architecture"].value if "architecture" in given else -1
        bus_id = sysfs_bus_id(pci.busId) if "pci" in given else ""
        numa_node = host_numa_node(card.sysfs, bus_id)
        if numa_node in _NO_NUMA_NODE and "numa_node" in given:
            numa_node = numbers["numa_node"].value
        tick.identity = GpuIdentity(
            name=card.name,
            pci_bus_id=bus_id,
            architecture=ARCHITECTURES.get(architecture, ""),
            serial=_text(texts["serial"]) if "serial" in given else "",
            vbios=_text(texts["vbios"]) if "vbios" in given else "",
            minor=str(numbers["minor"].value) if "minor" in given else "",
            numa_node="" if numa_node in _NO_NUMA_NODE else str(numa_node),
        )

    return read


def _text(buffer: Any) -> str:
    return str(buffer.value.decode(errors="replace")).strip()


def architecture_of(card: Card) -> int:
    """nvmlDeviceArchitecture_t of the card, 0 where the driver does not say (NVML_DEVICE_ARCH_UNKNOWN is not 0)."""
    number = ctypes.c_uint()
    return number.value if card.call("nvmlDeviceGetArchitecture", ctypes.byref(number)).run() == SUCCESS else 0


COLLECTOR = Collector(
    name="identity",
    help="name, bus address, serial and VBIOS of each card",
    metrics=(GPU_INFO,),
    prepare=prepare,
    interval=60.0,
    optional=False,
)
