"""What the card is: bus ids in the form of sysfs, and the NUMA node that it hangs on."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.exporter.nvml.identity import host_numa_node, sysfs_bus_id

from tests.simulated_cards import bench


@pytest.mark.parametrize(
    ("nvml", "sysfs"),
    [
        ("00000000:1A:00.0", "0000:1a:00.0"),
        ("00010000:C3:00.0", "10000:c3:00.0"),
        (b"00000000:05:00.0", "0000:05:00.0"),
        ("FFFFFFFF:FF:FF.0", ""),
        ("", ""),
        ("nonsense", ""),
        ("xyz:00:00.0", ""),
    ],
)
def test_bus_ids_have_the_form_of_sysfs(nvml: str | bytes, sysfs: str) -> None:
    assert sysfs_bus_id(nvml) == sysfs


@given(st.text() | st.binary())
def test_no_bus_id_breaks_the_form(text: str | bytes) -> None:
    assert isinstance(sysfs_bus_id(text), str)


def test_the_numa_node_is_the_kernels_where_it_knows_one(tmp_path: Path) -> None:
    device = tmp_path / "bus/pci/devices/0000:1a:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    assert host_numa_node(tmp_path, "0000:1a:00.0") == 1
    (device / "numa_node").write_text("-1\n")
    assert host_numa_node(tmp_path, "0000:1a:00.0") == -1
    assert host_numa_node(tmp_path, "0000:1b:00.0") == -1
    assert host_numa_node(tmp_path, "") == -1


def test_the_kernels_numa_node_wins_over_the_drivers(tmp_path: Path) -> None:
    with bench("h100x8") as cards:
        reader = cards.readers[0]
        bus_id = cards.read().identity.pci_bus_id
        assert cards.read_all_tiers().identity.numa_node == "0", "the driver's, for there is no such device here"
        device = tmp_path / "bus/pci/devices" / bus_id
        device.mkdir(parents=True)
        (device / "numa_node").write_text("3\n")
        reader.card.sysfs = tmp_path
        assert cards.read_all_tiers().identity.numa_node == "3"
