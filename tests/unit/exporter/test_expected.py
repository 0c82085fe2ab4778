"""Cards that should be here: configuration first, else NVIDIA display controllers in a sysfs tree."""

from __future__ import annotations

from pathlib import Path

from poise.exporter.expected import expected_gpus


def device(root: Path, address: str, vendor: str, device_class: str) -> None:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{device_class}\n")


def test_configuration_wins(tmp_path: Path) -> None:
    device(tmp_path, "0000:1a:00.0", "0x10de", "0x030200")
    assert expected_gpus(4, tmp_path) == 4
    assert expected_gpus(0, tmp_path) == 0


def test_nvidia_display_controllers_are_counted_and_nothing_else(tmp_path: Path) -> None:
    device(tmp_path, "0000:1a:00.0", "0x10de", "0x030200")  # 3D controller
    device(tmp_path, "0000:2a:00.0", "0x10de", "0x030000")  # VGA controller
    device(tmp_path, "0000:2a:00.1", "0x10de", "0x040300")  # its audio part
    device(tmp_path, "0000:05:00.0", "0x10de", "0x068000")  # NVSwitch bridge
    device(tmp_path, "0000:00:02.0", "0x8086", "0x030000")  # another maker's
    assert expected_gpus(None, tmp_path) == 2


def test_an_unreadable_device_is_not_counted(tmp_path: Path) -> None:
    device(tmp_path, "0000:1a:00.0", "0x10de", "nonsense")
    (tmp_path / "sys/bus/pci/devices/0000:1b:00.0").mkdir()
    assert expected_gpus(None, tmp_path) == 0


def test_without_a_pci_bus_it_is_unknown(tmp_path: Path) -> None:
    assert expected_gpus(None, tmp_path) is None
