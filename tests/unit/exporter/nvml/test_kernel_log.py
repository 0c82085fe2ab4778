"""The kernel log: every form of the driver's lines, whatever else stands there, and following it without ever blocking for good."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.exporter.nvml.kernel_log import KernelLog, KernelXid, bus_address, parse

from tests.waiting import wait_until

HEAD = "4,1234,98765432,-;"


@pytest.mark.parametrize(
    ("text", "bus_id", "code"),
    [
        ("NVRM: Xid (PCI:0000:1a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "0000:1a:00", 79),
        ("NVRM: Xid (PCI:0000:1a:00): 31, pid=4711, name=python3, Ch 00000018, intr 00000000. MMU Fault", "0000:1a:00", 31),
        ("NVRM: Xid (PCI:0000:1A:00.0): 119, pid=1, Timeout after 6s of waiting for RPC response from GPU1 GSP!", "0000:1a:00", 119),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", "0000:03:00", 14),
        ("NVRM: Xid (PCI:0000:c1:00 GPU-I:05): 43, pid=7, name=x, Ch 00000008", "0000:c1:00", 43),
        ("NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 02", "0009:01:00", 149),
        ("NVRM: Xid (PCI:00000000:1A:00): 48, DBE (double bit error) ECC Error", "0000:1a:00", 48),
    ],
)
def test_every_form_of_the_line_is_read(text: str, bus_id: str, code: int) -> None:
    assert parse(HEAD + text) == KernelXid(bus_id, code, 98.765432)
    assert parse(HEAD + text + "\n SUBSYSTEM=pci\n DEVICE=+pci:0000:1a:00.0\n") == KernelXid(bus_id, code, 98.765432)


@pytest.mark.parametrize(
    "record",
    [
        "",
        "6,1,2,-;NVRM: GPU at PCI:0000:1a:00: GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7",
        "6,1,2,-;usb 1-1: new device",
        "6,1,2,-;NVRM: Xid (PCI:0000:1a:00): , pid=1",
        "6,1,2,-;NVRM: Xid (PCI:zz): 79",
        "NVRM: Xid (PCI:0000:1a:00): 79, without the head of a record",
        "6,1,x,-;NVRM: Xid (PCI:0000:1a:00): 79",
        "6,1;NVRM: Xid (PCI:0000:1a:00): 79",
        " NVRM: Xid (PCI:0000:1a:00): 79",
        # Written to /dev/kmsg by a process, which the kernel never lets pass as itself.
        "12,1,2,-;NVRM: Xid (PCI:0000:1a:00): 79, written by a process",
        "x,1,2,-;NVRM: Xid (PCI:0000:1a:00): 79",
        ",1,2,-;NVRM: Xid (PCI:0000:1a:00): 79",
        # What the kernel quotes of any user (who may mount an overlay in a user namespace of his own).
        '3,1,2,-;overlayfs: unrecognized mount option "NVRM: Xid (PCI:0000:1a:00): 79" or missing value',
        '3,1,2,-;overlayfs: unrecognized mount option "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal" or missing value',
    ],
)
def test_anything_else_is_no_xid(record: str) -> None:
    assert parse(record) is None


def test_a_switch_is_told_apart() -> None:
    xid = parse(HEAD + "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)")
    assert xid == KernelXid("0000:c1:00", 28006, 98.765432, switch=True, text="Non-fatal, Link 46 MC TS crumbstore MCTO (First)")


@given(st.text(max_size=200))
def test_no_text_breaks_the_parser(text: str) -> None:
    for record in (text, HEAD + text, f"{HEAD}NVRM: Xid ({text}): 79", f"{HEAD}NVRM: Xid (PCI:0000:1a:00): {text}", f"{text};NVRM: Xid"):
        xid = parse(record)
        assert xid is None or (xid.code >= 0 and len(xid.bus_id) <= 14)


def test_addresses_of_nvml_and_of_the_log_are_the_same() -> None:
    assert bus_address("00000000:1A:00.0") == bus_address("0000:1a:00") == bus_address("0000:1a:00.0") == "0000:1a:00"
    assert bus_address("") == ""


def test_what_stood_there_is_history_and_what_comes_is_not(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    os.write(writer, f"{HEAD}NVRM: Xid (PCI:0000:1a:00): 31, x\n{HEAD}something else\n{HEAD}NVRM: Xid (PCI:0000:1a:00): 13, x\n".encode())
    seen: list[tuple[int, bool]] = []
    log = KernelLog(path, lambda xid, history: seen.append((xid.code, history)))
    assert not log.problem
    log.start()
    try:
        wait_until(lambda: len(seen) == 2, "the beginning is read")
        wait_until(lambda: log.following, "it waits for more")
        os.write(writer, f"{HEAD}NVRM: Xid (PCI:0000:1a:00): 79, x\n".encode())
        wait_until(lambda: len(seen) == 3, "the new line is read")
        assert seen == [(31, True), (13, True), (79, False)]
    finally:
        log.stop()
        log.join(60.0)
        os.close(writer)
    assert not log.is_alive()


def test_it_leaves_at_the_end_of_what_is_no_device(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(f"{HEAD}NVRM: Xid (PCI:0000:1a:00): 79, x\n")
    seen = threading.Event()
    log = KernelLog(path, lambda xid, history: seen.set())
    log.start()
    assert seen.wait(60.0)
    log.stop()
    log.join(60.0)
    assert not log.is_alive()


def test_one_that_cannot_be_opened_says_why_and_ends(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "nothing", lambda xid, history: None)
    assert "No such file" in log.problem
    log.start()
    log.join(60.0)
    log.stop()
    assert not log.is_alive()
