"""The mapped state file as ctypes sees it: the mirror of csrc/state.h, and opening such a file.

Owns layout, size, version and the list of functions. Knows nothing of what the values mean. A test compiles state.h and
compares the offset of every member.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from poise.testbed.errors import TestbedError

SOURCES = Path(__file__).parent / "csrc"

MAGIC = 0x31564E4553494F50
LAYOUT = 1

MAX_CARDS = 16
MAX_LINKS = 36
MAX_PROCESSES = 128
MAX_RULES = 64
MAX_EVENTS = 256
SAMPLE_KINDS = 10
SAMPLES_KEPT = 120
MAX_FIELDS = 512
MAX_GPM_METRICS = 512
MAX_FUNCTIONS = 512
MAX_MIG_DEVICES = 8

ANY_FUNCTION = 0xFFFFFFFF
ANY_CARD = -2
NO_CARD = -1
NO_INSTANCE = 0xFFFFFFFF  # gpuInstanceId and computeInstanceId without MIG
NOT_AVAILABLE = 0xFFFFFFFFFFFFFFFF  # usedGpuMemory that the driver does not tell


@cache
def functions() -> Mapping[str, int]:
    """Name of every NVML function to the first driver branch that has it; the position is its number in the state."""
    text = (SOURCES / "functions.def").read_text(encoding="utf-8")
    found = re.findall(r"^FUNCTION\((\w+), (\d+)\)$", text, re.MULTILINE)
    return MappingProxyType({name: int(since) for name, since in found})


_u8, _u32, _i32, _u64, _f64 = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint64, ctypes.c_double


class LinkStruct(ctypes.Structure):
    _fields_ = (
        ("state", _u32),
        ("version", _u32),
        ("speed_mbps", _u32),
        ("remote_type", _u32),
        ("remote_link", _u32),
        ("power_state", _u32),
        ("remote_bus_id", ctypes.c_char * 32),
        ("payload_tx_bytes", _u64),
        ("payload_rx_bytes", _u64),
        ("raw_tx_bytes", _u64),
        ("raw_rx_bytes", _u64),
        ("tx_packets", _u64),
        ("rx_packets", _u64),
        ("errors", _u64 * 5),
        ("blackwell_errors", _u64 * 17),
    )


class ProcessStruct(ctypes.Structure):
    _fields_ = (
        ("pid", _u32),
        ("kind", _u32),
        ("gpu_instance", _u32),
        ("compute_instance", _u32),
        ("used_memory_bytes", _u64),
        ("sm_percent", _u32),
        ("memory_percent", _u32),
        ("encoder_percent", _u32),
        ("decoder_percent", _u32),
        ("jpeg_percent", _u32),
        ("ofa_percent", _u32),
        ("utilization_at_us", _u64),
    )


class SampleStruct(ctypes.Structure):
    _fields_ = (("at_us", _u64), ("value", _u64))


class SampleRingStruct(ctypes.Structure):
    _fields_ = (("written", _u64), ("entries", SampleStruct * SAMPLES_KEPT))


class GpmStruct(ctypes.Structure):
    _fields_ = (("given", _u64), ("value", _f64), ("integral", _f64), ("since_s", _f64))


class RawFieldStruct(ctypes.Structure):
    _fields_ = (("given", _u32), ("value_type", _u32), ("bits", _u64))


class MigDeviceStruct(ctypes.Structure):
    _fields_ = (
        ("given", _u32),
        ("gpu_instance", _u32),
        ("compute_instance", _u32),
        ("multiprocessors", _u32),
        ("memory_total_bytes", _u64),
        ("memory_used_bytes", _u64),
        ("uuid", ctypes.c_char * 96),
    )


class CardStruct(ctypes.Structure):
    _fields_ = (
        ("sequence", _u64),
        # presence
        ("present", _u32),
        ("condition", _u32),
        # identity
        ("name", ctypes.c_char * 96),
        ("uuid", ctypes.c_char * 96),
        ("serial", ctypes.c_char * 32),
        ("part_number", ctypes.c_char * 80),
        ("vbios", ctypes.c_char * 32),
        ("minor", _u32),
        ("module_id", _u32),
        ("pci_domain", _u32),
        ("pci_bus", _u32),
        ("pci_device", _u32),
        ("pci_device_id", _u32),
        ("pci_subsystem_id", _u32),
        ("brand", _u32),
        ("architecture", _u32),
        ("compute_major", _u32),
        ("compute_minor", _u32),
        ("numa_node", _u32),
        ("cores", _u32),
        ("memory_bus_bits", _u32),
        # utilization
        ("gpu_percent", _u32),
        ("memory_percent", _u32),
        ("encoder_percent", _u32),
        ("decoder_percent", _u32),
        ("jpeg_percent", _u32),
        ("ofa_percent", _u32),
        # memory
        ("memory_total_bytes", _u64),
        ("memory_reserved_bytes", _u64),
        ("memory_used_bytes", _u64),
        ("bar1_total_bytes", _u64),
        ("bar1_used_bytes", _u64),
        # power and energy
        ("power_mw", _u32),
        ("power_instant_mw", _u32),
        ("module_power_mw", _u32),
        ("limit_min_mw", _u32),
        ("limit_max_mw", _u32),
        ("limit_default_mw", _u32),
        ("limit_requested_mw", _u32),
        ("limit_enforced_mw", _u32),
        ("energy_mj", _u64),
        ("module_energy_mj", _u64),
        # temperature
        ("temperature", _i32),
        ("temperature_hotspot", _i32),
        ("temperature_memory", _i32),
        ("temperature_margin", _i32),
        ("threshold", _u32 * 8),
        ("limit_offset", _i32 * 4),
        ("limit_offset_given", _u32),
        ("fan_count", _u32),
        ("fan_percent", _u32),
        # clocks
        ("clock_mhz", _u32 * 4),
        ("clock_max_mhz", _u32 * 4),
        ("clock_application_mhz", _u32 * 4),
        ("performance_state", _u32),
        ("event_reasons", _u64),
        ("event_reasons_supported", _u64),
        ("policy_ns", _u64 * 8),
        ("reason_ns", _u64 * 3),
        # PCIe
        ("pcie_generation", _u32),
        ("pcie_generation_max", _u32),
        ("pcie_generation_max_gpu", _u32),
        ("pcie_width", _u32),
        ("pcie_width_max", _u32),
        ("pcie_replays", _u32),
        ("pcie_replay_rollovers", _u32),
        ("pcie_tx_kb_per_s", _u32),
        ("pcie_rx_kb_per_s", _u32),
        ("pcie_tx_bytes", _u64),
        ("pcie_rx_bytes", _u64),
        ("pcie_errors", _u64 * 12),
        # ECC, row remapping, page retirement
        ("ecc_current", _u32),
        ("ecc_pending", _u32),
        ("ecc_errors", _u64 * 2 * 2),
        ("ecc_errors_by_place", _u64 * 8 * 2 * 2),
        ("sram_threshold_exceeded", _u32),
        ("remapped_correctable", _u32),
        ("remapped_uncorrectable", _u32),
        ("remap_pending", _u32),
        ("remap_failed", _u32),
        ("remap_histogram", _u32 * 5),
        ("retired_pages", _u32 * 2),
        ("retired_pending", _u32 * 2),
        # modes
        ("mig_current", _u32),
        ("mig_pending", _u32),
        ("mig_max_devices", _u32),
        ("persistence", _u32),
        ("compute_mode", _u32),
        ("recovery_action", _u32),
        ("supported_events", _u64),
        # fabric
        ("fabric_state", _u32),
        ("fabric_status", _u32),
        ("fabric_clique", _u32),
        ("fabric_health_mask", _u32),
        ("fabric_health_summary", _u32),
        ("fabric_cluster", _u8 * 16),
        # NVLink
        ("link_count", _u32),
        ("links", LinkStruct * MAX_LINKS),
        ("gpm_supported", _u32),
        ("gpm", GpmStruct * MAX_GPM_METRICS),
        ("process_count", _u32),
        ("processes", ProcessStruct * MAX_PROCESSES),
        ("samples", SampleRingStruct * SAMPLE_KINDS),
        ("mig_devices", MigDeviceStruct * MAX_MIG_DEVICES),
        ("raw_fields", RawFieldStruct * MAX_FIELDS),
        ("field_refusal", _u32 * MAX_FIELDS),
        ("function_refusal", _u32 * MAX_FUNCTIONS),
    )


class RuleStruct(ctypes.Structure):
    _fields_ = (
        ("token", _u64),
        ("function", _u32),
        ("card", _i32),
        ("error", _u32),
        ("delay_us", _u32),
        ("hang", _u32),
        ("remaining", _i32),
        ("hits", _u64),
        ("waiting", _u64),
    )


class EventStruct(ctypes.Structure):
    _fields_ = (
        ("type", _u64),
        ("data", _u64),
        ("at_us", _u64),
        ("card", _i32),
        ("gpu_instance", _u32),
        ("compute_instance", _u32),
        ("reserved", _u32),
    )


_HEADER = (
    ("magic", _u64),
    ("layout", _u32),
    ("function_count", _u32),
    ("size", _u64),
    ("driver_major", _u32),
    ("driver_minor", _u32),
)


class HeaderStruct(ctypes.Structure):
    """How a state begins, in every layout."""

    _fields_ = _HEADER


class StateStruct(ctypes.Structure):
    _fields_ = (
        *_HEADER,
        ("cuda_version", _u32),
        ("init_error", _u32),
        ("driver_loads", _u64),
        ("dead_session_error", _u32),
        ("card_count", _u32),
        ("driver_version", ctypes.c_char * 80),
        ("nvml_version", ctypes.c_char * 80),
        ("rule_count", _u64),
        ("rules", RuleStruct * MAX_RULES),
        ("events_written", _u64),
        ("events", EventStruct * MAX_EVENTS),
        ("topology", _u8 * MAX_CARDS * MAX_CARDS),
        ("p2p", _u8 * 5 * MAX_CARDS * MAX_CARDS),
        ("calls", _u64 * (MAX_CARDS + 1) * MAX_FUNCTIONS),
        ("cards", CardStruct * MAX_CARDS),
    )


STATE_BYTES = ctypes.sizeof(StateStruct)


def new_state() -> StateStruct:
    """A state with its header filled and everything else zero, not mapped to a file."""
    state = StateStruct()
    state.magic, state.layout, state.size = MAGIC, LAYOUT, STATE_BYTES
    state.function_count = len(functions())
    return state


def read_header(path: Path) -> HeaderStruct:
    """The checked header of the state file. Raises TestbedError when it is missing or of another version."""
    try:
        with path.open("rb") as file:
            start = file.read(ctypes.sizeof(HeaderStruct))
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise TestbedError(f"poise: simulated node {path}: {error.strerror}; SimulatedNode.create makes one") from error
    header = HeaderStruct.from_buffer_copy(start.ljust(ctypes.sizeof(HeaderStruct), b"\0"))
    if header.magic != MAGIC:
        raise TestbedError(f"poise: {path} is not the state of a simulated node")
    found = (header.layout, header.function_count, header.size, size)
    if found != (LAYOUT, len(functions()), STATE_BYTES, STATE_BYTES):
        raise TestbedError(f"poise: simulated node {path} was written by another version of poise: create it again")
    return header


def map_state(descriptor: int) -> StateStruct:
    """The state in an open file, shared with every process that maps it; the header must have been checked."""
    return StateStruct.from_buffer(mmap.mmap(descriptor, STATE_BYTES))
