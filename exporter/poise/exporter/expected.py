"""How many cards should be here: as configured, else the NVIDIA display controllers that the kernel sees on PCI.

Counts what stands in sysfs, so a card that fell off the driver but not off the bus is still expected. Knows no driver.
"""

from __future__ import annotations

from pathlib import Path

NVIDIA_VENDOR = 0x10DE
#: PCI class codes without the programming interface: VGA controller and 3D controller (pci.ids). Bridges and audio parts are others.
DISPLAY_CLASSES = (0x0300, 0x0302)


def expected_gpus(configured: int | None, root: Path = Path("/")) -> int | None:
    """The number of cards, or None where neither the user nor sysfs tells."""
    if configured is not None:
        return configured
    try:
        devices = sorted((root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return None
    return sum(_is_card(device) for device in devices)


def _is_card(device: Path) -> bool:
    return _number(device / "vendor") == NVIDIA_VENDOR and (_number(device / "class") or 0) >> 8 in DISPLAY_CLASSES


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text().strip(), 16)
    except (OSError, ValueError):
        return None
