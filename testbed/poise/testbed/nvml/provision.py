"""Writes a profile into a fresh state: idle cards, links up, nothing running.

Owns the way from a profile's words and units to the state's. Knows nothing of files and of what happens to a node later.
"""

from __future__ import annotations

import uuid

from poise.testbed.nvml.codes import (
    Architecture,
    BlackwellLinkError,
    Brand,
    Clock,
    EventReason,
    EventType,
    FabricState,
    Gpm,
    LinkState,
    LinkVersion,
    P2PCapability,
    P2PStatus,
    RemoteType,
    ReturnCode,
    TopologyLevel,
)
from poise.testbed.nvml.profiles import Profile
from poise.testbed.nvml.state import CardStruct, StateStruct, functions

# UUIDs are derived from profile, identity and position, so that a node made twice is the same node.
UUID_SPACE = uuid.UUID("5f0c3c0e-6c0b-5a51-9d0a-706f69736501")

MILLI = 1000

EVENTS_ALWAYS = EventType.SINGLE_BIT_ECC_ERROR | EventType.DOUBLE_BIT_ECC_ERROR | EventType.XID_CRITICAL_ERROR
EVENTS_SINCE_570 = (
    EventType.SINGLE_BIT_ECC_ERROR_STORM
    | EventType.DRAM_RETIREMENT_EVENT
    | EventType.DRAM_RETIREMENT_FAILURE
    | EventType.NON_FATAL_POISON_ERROR
    | EventType.FATAL_POISON_ERROR
    | EventType.GPU_UNAVAILABLE_ERROR
    | EventType.GPU_RECOVERY_ACTION
)
BRANCH_OF_NEWER_EVENTS = 570  # nvml.h of CUDA 12.8

# GPM metrics that a card without load answers with 0; per-link metrics come with the links.
GPM_METRICS = tuple(Gpm)
GPM_FIRST_LINK_METRIC = 62  # NVML_GPM_METRIC_NVLINK_L0_RX_PER_SEC, then TX, then the next link
GPM_LINKS_IN_FIRST_BLOCK = 18

# Mantissa 15 and exponent 255 mean zero (DCGM); see gpu.set_link_bit_error_rate.
BIT_ERROR_RATE_ZERO = 15 << 8 | 255

FABRIC_HEALTHY = 1  # NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY


def write_profile(state: StateStruct, profile: Profile, identity: str) -> None:
    """Fills `state` with the idle node of `profile`; `identity` tells nodes of one profile apart (it goes into UUIDs)."""
    write_driver(state, profile.driver.version, profile.driver.nvml, profile.driver.cuda)
    state.driver_loads = 1
    state.dead_session_error = ReturnCode.UNKNOWN
    state.card_count = len(profile.cards)
    for position in range(len(profile.cards)):
        card = state.cards[position]
        _write_identity(card, profile, position, identity)
        _write_values(card, profile)
        _write_links(card, profile, position)
        _write_refusals(card, profile)
        _write_mig(card, profile, position, identity)
    _write_topology(state, profile)


def write_driver(state: StateStruct, version: str, nvml: str, cuda: int) -> None:
    """Driver versions; the first two numbers of `version` decide what the driver knows."""
    parts = version.split(".")
    state.driver_major, state.driver_minor = int(parts[0]), int(parts[1])
    state.driver_version = version.encode()
    state.nvml_version = nvml.encode()
    state.cuda_version = cuda


def _uuid(profile: Profile, position: int, identity: str, kind: str) -> bytes:
    return f"{kind}-{uuid.uuid5(UUID_SPACE, f'{profile.name}/{identity}/{position}/{kind}')}".encode()


def _write_identity(card: CardStruct, profile: Profile, position: int, identity: str) -> None:
    product, place = profile.product, profile.cards[position]
    major, minor = product.compute_capability.split(".")
    card.present = 1
    card.name = product.name.encode()
    card.uuid = _uuid(profile, position, identity, "GPU")
    # Thirteen digits, as on data centre cards.
    card.serial = f"{uuid.uuid5(UUID_SPACE, card.uuid.decode()).int % 10**13:013d}".encode()
    card.part_number = product.part_number.encode()
    card.vbios = product.vbios.encode()
    card.minor = position
    card.module_id = position + 1
    card.pci_bus = place.pci_bus
    card.pci_device_id, card.pci_subsystem_id = product.pci_device_id, product.pci_subsystem_id
    card.brand = Brand[product.brand.upper()]
    card.architecture = Architecture[product.architecture.upper()]
    card.compute_major, card.compute_minor = int(major), int(minor)
    card.numa_node = place.numa_node
    card.cores, card.memory_bus_bits = product.cores, product.memory_bus_bits


def _write_values(card: CardStruct, profile: Profile) -> None:
    memory, power, temperature, clocks, pcie = (
        profile.memory,
        profile.power,
        profile.temperature,
        profile.clocks,
        profile.pcie,
    )
    card.memory_total_bytes, card.memory_reserved_bytes = memory.total_bytes, memory.reserved_bytes
    card.bar1_total_bytes, card.bar1_used_bytes = memory.bar1_bytes, 0
    card.power_mw = card.power_instant_mw = round(power.idle_watts * MILLI)
    card.limit_min_mw, card.limit_max_mw = round(power.min_limit_watts * MILLI), round(power.max_limit_watts * MILLI)
    card.limit_default_mw = card.limit_requested_mw = card.limit_enforced_mw = round(power.default_limit_watts * MILLI)
    card.temperature = card.temperature_hotspot = temperature.idle
    card.temperature_memory = temperature.memory_idle
    card.temperature_margin = temperature.slowdown - temperature.idle
    for index, celsius in enumerate((temperature.shutdown, temperature.slowdown, temperature.memory_max, temperature.gpu_max)):
        card.threshold[index] = celsius
    card.limit_offset_given = int(bool(temperature.limit_offsets))
    for index, celsius in enumerate(temperature.limit_offsets):
        card.limit_offset[index] = celsius
    card.fan_count = profile.product.fans
    for clock in Clock:
        card.clock_mhz[clock] = clocks.idle_mhz[clock]
        card.clock_max_mhz[clock] = clocks.max_mhz[clock]
        card.clock_application_mhz[clock] = clocks.max_mhz[clock]
    card.event_reasons = EventReason.GPU_IDLE
    card.event_reasons_supported = sum(reason.value for reason in EventReason if reason < EventReason.BOARD_LIMIT)
    card.pcie_generation = pcie.idle_generation
    card.pcie_generation_max, card.pcie_generation_max_gpu = pcie.generation, pcie.generation_gpu
    card.pcie_width = card.pcie_width_max = pcie.width
    card.ecc_current = card.ecc_pending = int(profile.product.ecc)
    card.persistence = 1
    newer = EVENTS_SINCE_570 if profile.driver.branch >= BRANCH_OF_NEWER_EVENTS else EventType(0)
    mig = EventType.MIG_CONFIG_CHANGE if profile.product.mig_devices else EventType(0)
    card.supported_events = (EVENTS_ALWAYS | newer | mig).value


def _write_links(card: CardStruct, profile: Profile, position: int) -> None:
    nvlink = profile.nvlink
    peers = [place.pci_bus for index, place in enumerate(profile.cards) if index != position]
    card.link_count = nvlink.links
    for number in range(nvlink.links):
        link = card.links[number]
        link.state = LinkState.ACTIVE
        link.version = LinkVersion["V" + nvlink.version.replace(".", "_")]
        link.speed_mbps = nvlink.speed_mbps
        link.remote_type = RemoteType[nvlink.remote.upper()]
        link.remote_link = number
        link.blackwell_errors[BlackwellLinkError.EFFECTIVE_BER - BlackwellLinkError.MALFORMED_PACKET] = BIT_ERROR_RATE_ZERO
        link.blackwell_errors[BlackwellLinkError.SYMBOL_BER - BlackwellLinkError.MALFORMED_PACKET] = BIT_ERROR_RATE_ZERO
        if nvlink.remotes:
            link.remote_bus_id = nvlink.remotes[number % len(nvlink.remotes)].encode()
        elif peers:  # the links are divided evenly over the other cards
            link.remote_bus_id = f"00000000:{peers[number * len(peers) // nvlink.links]:02X}:00.0".encode()
    if nvlink.fabric:
        card.fabric_state, card.fabric_health_summary = FabricState.COMPLETED, FABRIC_HEALTHY
    card.gpm_supported = int(profile.product.gpm)
    if profile.product.gpm:
        links = min(nvlink.links, GPM_LINKS_IN_FIRST_BLOCK)
        for metric in (*GPM_METRICS, *range(GPM_FIRST_LINK_METRIC, GPM_FIRST_LINK_METRIC + 2 * links)):
            card.gpm[metric].given = 1


def _write_refusals(card: CardStruct, profile: Profile) -> None:
    numbers = {name: number for number, name in enumerate(functions())}
    for name in profile.functions_not_supported:
        card.function_refusal[numbers[name]] = ReturnCode.NOT_SUPPORTED
    for field in profile.fields_not_supported:
        card.field_refusal[field] = ReturnCode.NOT_SUPPORTED


def _write_mig(card: CardStruct, profile: Profile, position: int, identity: str) -> None:
    card.mig_max_devices = profile.product.mig_devices
    card.mig_current = card.mig_pending = int(bool(profile.mig))
    for index, instance in enumerate(profile.mig):
        device = card.mig_devices[index]
        device.given = 1
        device.gpu_instance, device.compute_instance = instance.gpu_instance, instance.compute_instance
        device.multiprocessors = instance.multiprocessors
        device.memory_total_bytes = instance.memory_bytes
        device.uuid = _uuid(profile, position, f"{identity}/{index}", "MIG")


def _write_topology(state: StateStruct, profile: Profile) -> None:
    topology = profile.topology
    near, far = TopologyLevel[topology.same_socket.upper()], TopologyLevel[topology.other_socket.upper()]
    for a, first in enumerate(profile.cards):
        for b, second in enumerate(profile.cards):
            level = TopologyLevel.INTERNAL if a == b else near if first.socket == second.socket else far
            state.topology[a][b] = level
            for capability in P2PCapability:
                word = topology.p2p_nvlink if capability is P2PCapability.NVLINK else topology.p2p
                state.p2p[a][b][capability] = P2PStatus[word.upper()]
