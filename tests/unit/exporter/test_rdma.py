"""InfiniBand and RoCE ports from sysfs trees: whole, partial, strange."""

from __future__ import annotations

from pathlib import Path

from poise.exporter.rdma import read_ports
from poise.exporter.snapshot import RdmaPort


def add_port(root: Path, device: str, number: str, **files: str) -> None:
    """A port with the given files; `sent` and `received` are counters in words of four bytes."""
    folder = root / "sys" / "class" / "infiniband" / device / "ports" / number
    (folder / "counters").mkdir(parents=True)
    names = {"sent": "counters/port_xmit_data", "received": "counters/port_rcv_data"}
    for name, text in files.items():
        (folder / names.get(name, name)).write_text(text)


def test_ports_have_state_layer_rate_and_bytes(tmp_path: Path) -> None:
    add_port(
        tmp_path,
        "mlx5_1",
        "1",
        state="4: ACTIVE\n",
        link_layer="InfiniBand\n",
        rate="400 Gb/sec (4X NDR)\n",
        sent="1000\n",
        received="2500\n",
    )
    add_port(tmp_path, "mlx5_0", "2", state="1: DOWN\n", link_layer="Ethernet\n", rate="100 Gb/sec (4X EDR)\n")
    assert read_ports(tmp_path) == (
        RdmaPort("mlx5_0", 2, "DOWN", "Ethernet", "100 Gb/sec (4X EDR)"),
        RdmaPort("mlx5_1", 1, "ACTIVE", "InfiniBand", "400 Gb/sec (4X NDR)", 4000, 10000),
    )


def test_node_without_devices_has_none_and_one_without_sysfs_is_unknown(tmp_path: Path) -> None:
    assert read_ports(tmp_path) is None
    (tmp_path / "sys" / "class").mkdir(parents=True)
    assert read_ports(tmp_path) == ()
    (tmp_path / "sys" / "class" / "infiniband").mkdir()
    assert read_ports(tmp_path) == ()


def test_strange_files_leave_what_they_cannot_tell_empty(tmp_path: Path) -> None:
    add_port(tmp_path, "x", "1", state="\n", rate="\xff" * 500, sent="-5", received="\u0663")
    add_port(tmp_path, "x", "one", state="4: ACTIVE")
    (port,) = read_ports(tmp_path) or ()
    assert (port.state, port.sent_bytes, port.received_bytes, len(port.rate) <= 64) == ("", None, None, True)


def test_reading_this_machine_gives_ports_or_none() -> None:
    assert read_ports() is None or isinstance(read_ports(), tuple)
