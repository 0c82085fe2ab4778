"""What each XID means and what to do about it, as data: the errors that the NVIDIA driver reports by number.

From NVIDIA's public catalogue (docs.nvidia.com/deploy/xid-errors, state of autumn 2025), in our own words. `docs/xid.md` is generated from
it. This file knows no driver and no log.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """What an XID says of the card."""

    FATAL = "fatal"  # the card does no work, or none that can be trusted, until it is reset, restarted or serviced
    APPLICATION = "application"  # the fault lies most often with the program; the card goes on
    INFORMATION = "information"  # nothing to do for this line alone


@dataclass(frozen=True, slots=True)
class Xid:
    """One entry: `name` in a few words, what it means, and what to do."""

    code: int
    name: str
    meaning: str
    action: str
    severity: Severity


#: What NVML gives where the driver does not say which XID it was, and what codes that cannot be are counted as.
UNKNOWN_CODE = 999

_RESET = "drain the card's processes and reset it (`nvidia-smi --gpu-reset`), or restart the node"
_RESTART_APP = "restart the program; look at the card only if it comes back with other programs"
_NVLINK5 = (
    "read the whole line in `dmesg` (it says whether it is fatal); reset the card when it is, and look at the links and the fabric manager"
)
_NONE = "nothing for this line alone; look at the errors around it"
_REPORT = "nothing at once; report it to NVIDIA with `nvidia-bug-report.sh` when it repeats"


def _fatal(code: int, name: str, meaning: str, action: str = _RESET) -> Xid:
    return Xid(code, name, meaning, action, Severity.FATAL)


def _application(code: int, name: str, meaning: str, action: str = _RESTART_APP) -> Xid:
    return Xid(code, name, meaning, action, Severity.APPLICATION)


def _information(code: int, name: str, meaning: str, action: str = _NONE) -> Xid:
    return Xid(code, name, meaning, action, Severity.INFORMATION)


#: Units of which a card has several, each with a code of its own: (name, what the unit does, codes in order of the unit's number).
_UNITS = (
    ("copy engine", "copies memory", (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136))),
    ("video decoder", "decodes video", (68, 83, 84, 88, 89, 96, 97, 98)),
    ("video encoder", "encodes video", (47, 65, 73, 142)),
    ("JPEG decoder", "decodes JPEG", (82, *range(99, 106))),
    ("optical flow unit", "computes optical flow", (86, 139)),
)

#: Parts of the card's NVLink 5 units, by code.
_NVLINK5_PARTS = {144: "SAW", 145: "RLW", 146: "TLW", 147: "TREX", 148: "NVLPW control", 149: "NETIR", 150: "MSE"}

_ENTRIES = (
    _application(8, "no progress", "work on a channel did not end in its time and was stopped"),
    _application(11, "bad command stream", "the stream of commands to the card was invalid or damaged"),
    _application(13, "exception in a kernel", "a kernel accessed memory out of bounds or ran an illegal instruction"),
    _application(25, "bad command stream", "the stream of commands to the card was illegal"),
    _application(31, "page fault", "a program accessed an address that is not mapped on the card"),
    _application(
        32, "bad command stream", "the card's DMA engine met an invalid or damaged stream of commands; also a sign of a bad PCIe link"
    ),
    _information(37, "firmware error", "the driver's firmware met a method that it does not know"),
    _information(38, "firmware error", "the driver's firmware did not answer its watchdog"),
    _application(43, "program stopped", "a program's work was ended after a fault of its own; the card is well"),
    _information(44, "fault at a context switch", "the card met a fault while it changed from one program to another"),
    _application(
        45, "work removed", "a program ended or was killed while it had work on the card; follows every kill and other errors", _NONE
    ),
    _fatal(46, "card stopped", "the card stopped processing and did not recover"),
    _fatal(48, "uncorrectable memory error", "memory of the card held an error that ECC could not correct (double bit)"),
    _fatal(
        54,
        "no auxiliary power",
        "the power connector of the board is not plugged or gives no power",
        "check cables and power supply of the board",
    ),
    _application(60, "security engine exception", "the card's security or video engine met an exception"),
    _fatal(62, "micro-controller halted", "the card's own power micro-controller stopped"),
    _information(
        63,
        "row remapped",
        "a memory row is noted to be replaced by a spare one",
        "reset the card at the next good moment (poise_gpu_remap_pending)",
    ),
    _fatal(64, "row not remapped", "a memory row with errors could not be noted for replacement"),
    _information(66, "illegal access by the driver", "the driver accessed a register that it may not", _REPORT),
    _information(67, "illegal access by the driver", "the driver accessed a register that it may not", _REPORT),
    _application(69, "bad class", "a program used the graphics engine in a way that it does not support"),
    _fatal(
        74,
        "NVLink error",
        "a link to another card or to a switch failed; the other end may be the cause",
        "look at poise_gpu_nvlink_up and its errors on both ends, reset the cards that are joined by it; seat or replace what keeps failing",
    ),
    _information(78, "vGPU did not start", "a virtual GPU could not be started", "bring host and guest driver to versions that fit"),
    _fatal(
        79,
        "card has fallen off the bus",
        "the driver cannot reach the card over PCIe any more",
        "drain the node and restart it; when it comes back, check seating, risers, power and temperature, and have the card replaced",
    ),
    _application(80, "damaged data sent to the card", "the checksum over a stream of commands did not fit"),
    _information(92, "many corrected memory errors", "single-bit errors come at a high rate", _REPORT),
    _information(93, "InfoROM worn", "the card's InfoROM was written more often than planned", _REPORT),
    _application(94, "contained memory error", "an uncorrectable memory error hit one program only, which was ended"),
    _fatal(95, "uncontained memory error", "an uncorrectable memory error may have hit every program on the card"),
    _information(106, "test message", "a message of the management bus, for tests"),
    _information(107, "test message", "a message of the management bus, for tests"),
    _fatal(109, "context switch timed out", "the card could not change from one program to another"),
    _fatal(110, "security fault", "a security unit of the card met a fault"),
    _fatal(119, "GSP does not answer", "the card's system processor (GSP) did not answer the driver in time"),
    _fatal(120, "GSP error", "the firmware of the card's system processor (GSP) failed"),
    _information(121, "C2C link error", "the link between GPU and CPU corrected an error", _REPORT),
    _fatal(136, "link training failed", "a link of the card did not come up"),
    _information(
        137,
        "NVLink access refused",
        "an access over NVLink had no right to its address; follows an error on another card or a program that ended",
    ),
    _fatal(140, "unrecovered memory error", "an ECC error was not recovered"),
    _information(141, "CUDA fast path error", "an error on a fast path of CUDA", _REPORT),
    _fatal(143, "card did not start", "the card could not be initialised"),
    _fatal(151, "key rotation failed", "keys of a confidential virtual machine could not be changed", "restart the virtual machine"),
    _information(152, "DLA memory error", "the deep-learning accelerator met an error of its memory unit", _REPORT),
    _information(153, "DLA timed out", "the deep-learning accelerator did not answer in time", _REPORT),
    _information(
        154,
        "recovery action changed",
        "the driver now asks for another recovery action than before (poise_gpu_recovery_action)",
        "do what poise_gpu_recovery_action asks for",
    ),
    _fatal(155, "NVLink error of the software", "software took a link out of use"),
    _fatal(156, "resource retired", "a unit of the card is taken out of use after errors, from the next reset on"),
    _information(157, "resource not retired", "a unit of the card with errors could not be taken out of use", _REPORT),
    _fatal(158, "fatal timeout", "the card did not answer in time and does not recover"),
    _application(
        159,
        "CHI error",
        "an access between CPU and GPU failed",
        "look at the program's use of managed memory; report it when it comes alone",
    ),
    _information(160, "channel retired", "a memory channel was taken out of use", _REPORT),
    _information(161, "channel not retired", "a memory channel could not be taken out of use", _REPORT),
    _information(162, "power smoothing on", "the power smoothing circuit works again"),
    _information(163, "power smoothing off", "the power smoothing circuit was switched off"),
    _information(164, "power smoothing worn", "little is left of the life of the power smoothing circuit", _REPORT),
    _information(165, "power smoothing worn out", "the life of the power smoothing circuit is over", _REPORT),
    _information(166, "traffic before encryption", "confidential traffic came before the link was set up for it", _REPORT),
    _fatal(167, "PCIe timed out", "a PCIe transaction of the card timed out and cannot be recovered"),
    _information(168, "less memory", "errors in protected memory made the card give up part of its memory", _REPORT),
    _fatal(169, "security processor halted", "the card's security processor stopped"),
    _information(170, "interrupt in confidential mode", "a link interrupt came in confidential computing mode", _REPORT),
    _information(171, "uncorrectable error in DRAM", "says of an XID 48 that the error was in device memory"),
    _information(172, "uncorrectable error in SRAM", "says of an XID 48 that the error was in a cache or register file"),
    _information(UNKNOWN_CODE, "unknown", "the driver did not say which XID it was", "read the lines with Xid in `dmesg`"),
    *(
        _application(code, f"{name} {number}", f"an exception in the unit that {does}")
        for name, does, codes in _UNITS
        for number, code in enumerate(codes)
    ),
    *(
        _fatal(code, f"NVLink error, {part}", f"a part ({part}) of the card's NVLink unit met an error", _NVLINK5)
        for code, part in _NVLINK5_PARTS.items()
    ),
)

#: Code → entry, in order of the codes.
CATALOGUE: dict[int, Xid] = {entry.code: entry for entry in sorted(_ENTRIES, key=lambda entry: entry.code)}

#: Codes whose counters stand at 0 from the start: an alert on their increase must see the first one.
FATAL: tuple[int, ...] = tuple(code for code, entry in CATALOGUE.items() if entry.severity is Severity.FATAL)


def lookup(code: int) -> Xid:
    """The entry of a code; for one that is not in the catalogue an entry that says so."""
    known = CATALOGUE.get(code)
    return known or _information(
        code,
        "not in the catalogue",
        "the driver reported a code that this version of Poise does not know",
        "read the lines with Xid in `dmesg`",
    )
