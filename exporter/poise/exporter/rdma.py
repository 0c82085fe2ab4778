"""Reads InfiniBand and RoCE ports of this node from sysfs. A read asks the device's firmware, which may hang: it belongs in a thread of its own (watched.py).

Files: Documentation/ABI/stable/sysfs-class-infiniband. The root is passed in. Knows no engine and no check.
"""

from __future__ import annotations

from pathlib import Path

from poise.exporter.snapshot import RdmaPort

#: How often the ports are read, in seconds.
INTERVAL = 10.0
#: port_xmit_data and port_rcv_data count words of four bytes ("divided by 4").
WORD = 4
#: Ports that are looked at; a node of eight cards has some ten.
MOST_PORTS = 256
#: Longest text of a file that is kept.
_TEXT_LIMIT = 64


def read_ports(root: Path = Path("/")) -> tuple[RdmaPort, ...] | None:
    """All ports in order of device and number; empty without such devices, None when sysfs cannot be read."""
    classes = root / "sys" / "class"
    try:
        if not (classes / "infiniband").is_dir():
            return () if classes.is_dir() else None
        devices = sorted(classes.joinpath("infiniband").iterdir(), key=lambda path: path.name)
        folders = [(device.name, int(port.name), port) for device in devices for port in _listed(device / "ports") if port.name.isdecimal()]
    except OSError:
        return None
    return tuple(_port(device, number, path) for device, number, path in sorted(folders, key=lambda item: item[:2])[:MOST_PORTS])


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _port(device: str, number: int, folder: Path) -> RdmaPort:
    sent, received = (_count(folder / "counters" / name) for name in ("port_xmit_data", "port_rcv_data"))
    # "4: ACTIVE"
    state = _text(folder / "state").partition(":")[2].strip()
    return RdmaPort(device, number, state, _text(folder / "link_layer"), _text(folder / "rate"), sent, received)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_TEXT_LIMIT).decode(errors="replace").strip()
    except OSError:
        return ""


def _count(path: Path) -> int | None:
    text = _text(path)
    return int(text) * WORD if text.isascii() and text.isdecimal() else None
