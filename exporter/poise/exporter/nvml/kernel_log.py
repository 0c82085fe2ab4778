"""The kernel log as a source of XIDs: follows /dev/kmsg and reads the driver's lines, of cards (Xid) and of NVSwitches (SXid).

Reading never blocks the thread for good, and nobody waits for it. Needs CAP_SYSLOG where `kernel.dmesg_restrict` is 1, as most
distributions set it. This file knows no card.
"""

from __future__ import annotations

import logging
import os
import re
import select
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

KERNEL_LOG = Path("/dev/kmsg")
#: One read gives one record, and fails when the record is larger than the buffer; the kernel's largest is 8 KiB.
_RECORD_SIZE = 16384
#: How long to wait at the end of something that is no device (a pipe whose writer left): there is nothing to be woken by.
_END_PAUSE_SECONDS = 0.25

#: The facility stands above the three bits of a priority; what a process writes to the log never has the kernel's (devkmsg_write in
#: kernel/printk/printk.c).
_FACILITY_SHIFT, _KERNEL = 3, 0
#: "NVRM: Xid (PCI:0000:1a:00): 79, pid=…", older "NVRM: Xid (0000:1a:00): 31, Ch …", on newer drivers with a function or a MIG instance
#: behind the address. The device of an NVSwitch writes "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 44 …". Only at the start
#: of a line: further on, the kernel quotes what any user may have said (mount options, names of files).
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})(?:\.[0-7])?[^)]{0,64}\): (\d{1,6})\b")
_SXID = re.compile(
    r"nvidia-nvswitch\d{1,4}: SXid \((?:PCI:)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})(?:\.[0-7])?[^)]{0,64}\): (\d{1,8})\b,? ?(.{0,160})"
)


@dataclass(frozen=True, slots=True)
class KernelXid:
    """An XID as the log has it: `bus_id` without function ("0000:1a:00"), `at` seconds since boot. `text` of a switch's line only."""

    bus_id: str
    code: int
    at: float
    switch: bool = False
    text: str = ""


def bus_address(bus_id: str) -> str:
    """A PCI address as both the log and NVML's are compared: four digits of domain, lower case, no function. "0000:1A:00.0" → "0000:1a:00"."""
    domain, _, rest = bus_id.lower().partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest.partition('.')[0]}"
    except ValueError:
        return ""


def parse(record: str) -> KernelXid | None:
    """One record of /dev/kmsg ("priority,sequence,microseconds,flags;text"), or None when it tells of no XID."""
    if "Xid" not in record:
        return None
    head, semicolon, text = record.partition(";")
    fields = head.split(",")
    if not semicolon or len(fields) < 3 or not fields[2].isascii() or not fields[2].isdigit():
        return None
    if not fields[0].isascii() or not fields[0].isdigit() or int(fields[0][:9]) >> _FACILITY_SHIFT != _KERNEL:
        return None
    at = int(fields[2][:18]) / 1e6
    text = text.partition("\n")[0]
    if match := _XID.match(text):
        return KernelXid(bus_address(match[1]), int(match[2]), at)
    if match := _SXID.match(text):
        return KernelXid(bus_address(match[1]), int(match[2]), at, switch=True, text=match[3].strip())
    return None


class KernelLog(threading.Thread):
    """Reads the log from its beginning and follows it. `report(xid, history)` gets each XID; `history`: it stood there already."""

    def __init__(self, path: Path, report: Callable[[KernelXid, bool], None]) -> None:
        super().__init__(name="kernel-log", daemon=True)
        self._path = path
        self._report = report
        self._leave = threading.Event()
        self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._descriptor = -1
        #: All that stood there was read; what comes now is new.
        self.following = False
        #: Why it cannot be read, in words; "" while it can.
        self.problem = ""
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self.problem = f"{path}: {error.strerror or error}"

    def stop(self) -> None:
        """Tells the thread to leave."""
        self._leave.set()
        os.eventfd_write(self._waker, 1)

    def run(self) -> None:
        if self._descriptor < 0:
            return
        try:
            self._follow()
        except OSError as error:
            self.problem = f"{self._path}: {error.strerror or error}"
            logger.warning("the kernel log is read no longer: %s", self.problem)
        finally:
            os.close(self._descriptor)

    def _follow(self) -> None:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        poll.register(self._waker, select.POLLIN)
        while not self._leave.is_set():
            try:
                data = os.read(self._descriptor, _RECORD_SIZE)
            except BlockingIOError:
                self.following = True
                poll.poll()
                continue
            except BrokenPipeError:
                continue  # records were overwritten before we read them; the next read gives the oldest that is left
            if not data:
                self.following = True
                self._leave.wait(_END_PAUSE_SECONDS)
                continue
            # The device gives a record a read; from a pipe several may come at once.
            for line in data.decode(errors="replace").split("\n"):
                xid = parse(line)
                if xid is not None:
                    self._report(xid, not self.following)
