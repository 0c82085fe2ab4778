"""One simulated card, in the units of physics: ratios, bytes, watts, joules, hertz, degrees Celsius.

Owns the way from those to the state's units. Each method changes what its name says and nothing else, except where its
docstring names the exception. Values out of range are a ValueError that says the range. Presence, injection and events are
the node's (node.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from poise.testbed.nvml.codes import (
    BlackwellLinkError,
    Clock,
    EventReason,
    FabricState,
    Gpm,
    LinkError,
    LinkState,
    MemoryPlace,
    Policy,
    ProcessKind,
    ReasonTime,
    RecoveryAction,
    RemoteType,
    ReturnCode,
    SampleKind,
    Threshold,
)
from poise.testbed.nvml.mapping import StateFile
from poise.testbed.nvml.state import (
    MAX_GPM_METRICS,
    MAX_PROCESSES,
    NO_INSTANCE,
    NOT_AVAILABLE,
    SAMPLES_KEPT,
    CardStruct,
    LinkStruct,
    functions,
)
from poise.testbed.nvml.units import (
    KILOBYTE,
    MEGAHERTZ,
    MICRO,
    MILLI,
    NANO,
    clock_named,
    field_number,
    percent,
    scaled,
)

# An NVLink packet carries 128 to 256 bytes behind one or two 16-byte flits: a sixteenth is what bulk transfers cost.
NVLINK_HEADER_SHARE = 1 / 16
NVLINK_PACKET_BYTES = 256


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a card. `memory_bytes` None is "not available"; the ratios are its share, None without a sample."""

    pid: int
    memory_bytes: int | None
    kind: ProcessKind = ProcessKind.COMPUTE
    sm_ratio: float | None = None
    memory_ratio: float = 0.0
    encoder_ratio: float = 0.0
    decoder_ratio: float = 0.0
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """One NVLink as the card tells it: whether it carries data, and what is at its far end."""

    number: int
    up: bool
    remote_type: RemoteType
    remote_bus_id: str


class SimulatedGPU:
    """The card at `position` of a node. Positions do not move when another card vanishes, NVML indices do."""

    def __init__(self, file: StateFile, position: int) -> None:
        self._file = file
        self.position = position

    @contextmanager
    def changing(self) -> Iterator[CardStruct]:
        """Several changes that readers see together: every method called inside belongs to it."""
        with self._file.writing_card(self.position) as card:
            yield card

    @property
    def _card(self) -> CardStruct:
        card: CardStruct = self._file.state.cards[self.position]
        return card

    # ---- identity -------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return str(self._card.name.decode())

    @property
    def uuid(self) -> str:
        return str(self._card.uuid.decode())

    @property
    def serial(self) -> str:
        return str(self._card.serial.decode())

    @property
    def minor(self) -> int:
        return int(self._card.minor)

    @property
    def pci_bus_id(self) -> str:
        """As NVML writes it: eight digits of domain."""
        card = self._card
        return f"{card.pci_domain:08X}:{card.pci_bus:02X}:{card.pci_device:02X}.0"

    @property
    def link_count(self) -> int:
        return int(self._card.link_count)

    @property
    def links(self) -> tuple[Link, ...]:
        card = self._card
        return tuple(
            Link(number, link.state == LinkState.ACTIVE, RemoteType(link.remote_type), link.remote_bus_id.decode())
            for number, link in enumerate(card.links[: card.link_count])
        )

    @property
    def gpm_supported(self) -> bool:
        return bool(self._card.gpm_supported)

    @property
    def remap_pending(self) -> bool:
        return bool(self._card.remap_pending)

    @property
    def memory_total_bytes(self) -> int:
        return int(self._card.memory_total_bytes)

    @property
    def memory_capacity_bytes(self) -> int:
        """What processes can use: total less the part that the driver reserves."""
        return int(self._card.memory_total_bytes - self._card.memory_reserved_bytes)

    def set_identity(self, *, name: str | None = None, uuid: str | None = None, serial: str | None = None) -> None:
        """Another card in the same slot. The name must start with "Simulated "."""
        if name is not None and not name.startswith("Simulated "):
            raise ValueError(f"a simulated card's name must start with 'Simulated ', not {name!r}")
        with self.changing() as card:
            for member, value in (("name", name), ("uuid", uuid), ("serial", serial)):
                if value is not None:
                    setattr(card, member, value.encode())

    # ---- utilization and samples ----------------------------------------------------------------------------------

    def set_utilization(self, ratio: float, memory: float | None = None) -> None:
        """Share of time with a kernel running, and with the memory interface active (unchanged when None)."""
        with self.changing() as card:
            card.gpu_percent = percent("utilization", ratio)
            if memory is not None:
                card.memory_percent = percent("memory utilization", memory)

    def set_engine_utilization(
        self,
        *,
        encoder: float | None = None,
        decoder: float | None = None,
        jpeg: float | None = None,
        ofa: float | None = None,
    ) -> None:
        with self.changing() as card:
            for member, ratio in (("encoder", encoder), ("decoder", decoder), ("jpeg", jpeg), ("ofa", ofa)):
                if ratio is not None:
                    setattr(card, f"{member}_percent", percent(member, ratio))

    def push_utilization(self, ratio: float, at: float) -> None:
        """One sample of the driver's utilization ring, taken at `at` (seconds since 1970)."""
        self.push_sample(SampleKind.GPU_UTILIZATION, percent("utilization", ratio), at)

    def push_sample(self, kind: SampleKind, value: int, at: float) -> None:
        """One sample of any ring: percent, mW or MHz by kind. The oldest of SAMPLES_KEPT goes."""
        with self.changing() as card:
            ring = card.samples[kind]
            entry = ring.entries[ring.written % SAMPLES_KEPT]
            entry.at_us, entry.value = round(at * MICRO), value
            ring.written += 1

    def push_samples(self, at: float) -> None:
        """What the driver does six times a second: one sample of each kind, with the card's present values."""
        with self.changing() as card:
            for kind, value in (
                (SampleKind.TOTAL_POWER, card.power_mw),
                (SampleKind.GPU_UTILIZATION, card.gpu_percent),
                (SampleKind.MEMORY_UTILIZATION, card.memory_percent),
                (SampleKind.ENCODER_UTILIZATION, card.encoder_percent),
                (SampleKind.DECODER_UTILIZATION, card.decoder_percent),
                (SampleKind.PROCESSOR_CLOCK, card.clock_mhz[Clock.SM]),
                (SampleKind.MEMORY_CLOCK, card.clock_mhz[Clock.MEMORY]),
                (SampleKind.JPEG_UTILIZATION, card.jpeg_percent),
                (SampleKind.OFA_UTILIZATION, card.ofa_percent),
            ):
                self.push_sample(kind, value, at)

    # ---- memory ---------------------------------------------------------------------------------------------------

    def set_memory_used(self, count: int) -> None:
        """Bytes in use, without what the driver reserves."""
        if not 0 <= count <= self.memory_capacity_bytes:
            raise ValueError(f"memory used {count} is outside 0 to {self.memory_capacity_bytes} bytes")
        with self.changing() as card:
            card.memory_used_bytes = count

    def set_bar1_used(self, count: int) -> None:
        with self.changing() as card:
            if not 0 <= count <= card.bar1_total_bytes:
                raise ValueError(f"BAR1 used {count} is outside 0 to {card.bar1_total_bytes} bytes")
            card.bar1_used_bytes = count

    # ---- power, energy, temperature, fans -------------------------------------------------------------------------

    def set_power(self, watts: float, instant: float | None = None) -> None:
        """Average power, and the instantaneous one (the same unless given)."""
        with self.changing() as card:
            card.power_mw = scaled("power", watts, MILLI)
            card.power_instant_mw = scaled("power", watts if instant is None else instant, MILLI)

    def add_energy(self, joules: float) -> None:
        with self.changing() as card:
            card.energy_mj += scaled("energy", joules, MILLI)

    def set_power_limit(self, watts: float) -> None:
        """Requested and enforced limit."""
        with self.changing() as card:
            card.limit_requested_mw = card.limit_enforced_mw = scaled("power limit", watts, MILLI)

    def set_temperature(self, celsius: int, memory: int | None = None, hotspot: int | None = None) -> None:
        """Core temperature; the margin to the slowdown threshold follows. Memory and hot spot are unchanged when None."""
        with self.changing() as card:
            card.temperature = celsius
            card.temperature_margin = int(card.threshold[Threshold.SLOWDOWN]) - celsius
            if memory is not None:
                card.temperature_memory = memory
            if hotspot is not None:
                card.temperature_hotspot = hotspot

    def set_temperature_margin(self, celsius: int) -> None:
        with self.changing() as card:
            card.temperature_margin = celsius

    def set_threshold(self, threshold: Threshold, celsius: int) -> None:
        """0 makes it not supported."""
        with self.changing() as card:
            card.threshold[threshold] = celsius

    def set_fans(self, count: int, ratio: float = 0.0) -> None:
        """No fan makes the calls about fans not supported."""
        with self.changing() as card:
            card.fan_count, card.fan_percent = count, percent("fan speed", ratio)

    # ---- clocks ---------------------------------------------------------------------------------------------------

    def set_clock(self, clock: str, hertz: float) -> None:
        """`clock` is graphics, sm, memory or video."""
        with self.changing() as card:
            card.clock_mhz[clock_named(clock)] = scaled("clock", hertz, 1 / MEGAHERTZ)

    def clock_max(self, clock: str) -> int:
        """Hertz."""
        return int(self._card.clock_max_mhz[clock_named(clock)]) * MEGAHERTZ

    def set_performance_state(self, state: int) -> None:
        """0 (fastest) to 15; 32 is unknown."""
        with self.changing() as card:
            card.performance_state = state

    def set_event_reasons(self, reasons: Iterable[str]) -> None:
        """Why clocks are lowered, by the names of EventReason in small letters: {"sw_power_cap", "hw_slowdown"}."""
        mask = EventReason(0)
        for reason in reasons:
            try:
                mask |= EventReason[reason.upper()]
            except KeyError:
                known = ", ".join(member.name.lower() for member in EventReason if member.name)
                raise ValueError(f"clock event reason {reason!r} is not one of {known}") from None
        with self.changing() as card:
            card.event_reasons = mask.value

    def add_policy_time(self, policy: Policy, seconds: float) -> None:
        """Time counters of fields 74 to 81 and of nvmlDeviceGetViolationStatus."""
        with self.changing() as card:
            card.policy_ns[policy] += scaled("time", seconds, NANO)

    def add_reason_time(self, reason: ReasonTime, seconds: float) -> None:
        """Time counters that drivers have since 575."""
        with self.changing() as card:
            card.reason_ns[reason] += scaled("time", seconds, NANO)

    # ---- PCIe -----------------------------------------------------------------------------------------------------

    def set_pcie_link(self, generation: int | None = None, width: int | None = None) -> None:
        """The present link; the maxima stay."""
        with self.changing() as card:
            if generation is not None:
                card.pcie_generation = generation
            if width is not None:
                card.pcie_width = width

    def set_pcie_throughput(self, *, tx: float, rx: float) -> None:
        """Bytes per second from and to the card, as nvmlDeviceGetPcieThroughput measures them."""
        with self.changing() as card:
            card.pcie_tx_kb_per_s = scaled("PCIe tx", tx, 1 / KILOBYTE)
            card.pcie_rx_kb_per_s = scaled("PCIe rx", rx, 1 / KILOBYTE)

    def add_pcie_bytes(self, *, tx: int = 0, rx: int = 0) -> None:
        """Byte counters; the driver's fields show their low 32 bits."""
        with self.changing() as card:
            card.pcie_tx_bytes += tx
            card.pcie_rx_bytes += rx

    def add_pcie_replays(self, count: int = 1) -> None:
        with self.changing() as card:
            card.pcie_replays += count

    # ---- NVLink ---------------------------------------------------------------------------------------------------

    def _link(self, card: CardStruct, number: int) -> LinkStruct:
        if not 0 <= number < card.link_count:
            raise ValueError(f"link {number} is not one of the {card.link_count} links of {self.name}")
        link: LinkStruct = card.links[number]
        return link

    def add_nvlink_bytes(self, link: int, *, tx: int = 0, rx: int = 0) -> None:
        """Payload bytes sent and received. The raw counters grow by protocol overhead as well, the packet counters too."""
        with self.changing() as card:
            here = self._link(card, link)
            here.payload_tx_bytes += tx
            here.payload_rx_bytes += rx
            here.raw_tx_bytes += tx + round(tx * NVLINK_HEADER_SHARE)
            here.raw_rx_bytes += rx + round(rx * NVLINK_HEADER_SHARE)
            here.tx_packets += -(-tx // NVLINK_PACKET_BYTES)
            here.rx_packets += -(-rx // NVLINK_PACKET_BYTES)

    def set_link_up(self, link: int, up: bool) -> None:
        self.set_link_state(link, LinkState.ACTIVE if up else LinkState.INACTIVE)

    def set_link_state(self, link: int, state: LinkState) -> None:
        with self.changing() as card:
            self._link(card, link).state = state

    def add_link_errors(self, link: int, error: LinkError | BlackwellLinkError, count: int = 1) -> None:
        with self.changing() as card:
            here = self._link(card, link)
            if isinstance(error, BlackwellLinkError):
                here.blackwell_errors[error - BlackwellLinkError.MALFORMED_PACKET] += count
            else:
                here.errors[error] += count

    def set_link_bit_error_rate(self, link: int, rate: BlackwellLinkError, mantissa: int, exponent: int) -> None:
        """EFFECTIVE_BER or SYMBOL_BER of a Blackwell link: mantissa x 10^-exponent, as NVML encodes it."""
        if rate not in (BlackwellLinkError.EFFECTIVE_BER, BlackwellLinkError.SYMBOL_BER):
            raise ValueError(f"{rate.name} is a counter, not a bit error rate")
        if not (0 <= mantissa <= 15 and 0 <= exponent <= 255):
            raise ValueError(f"bit error rate {mantissa}e-{exponent}: mantissa is 0 to 15, exponent 0 to 255")
        with self.changing() as card:
            slot = rate - BlackwellLinkError.MALFORMED_PACKET
            self._link(card, link).blackwell_errors[slot] = mantissa << 8 | exponent

    # ---- processes ------------------------------------------------------------------------------------------------

    def set_processes(self, processes: Sequence[Process], at: float | None = None) -> None:
        """Who is on the card. Shares become samples of time `at` (seconds since 1970; now when None). Memory in use of the
        card is another input: set_memory_used."""
        if len(processes) > MAX_PROCESSES:
            raise ValueError(f"{len(processes)} processes, a simulated card holds {MAX_PROCESSES}")
        sampled_us = round((time.time() if at is None else at) * MICRO)
        with self.changing() as card:
            for index, process in enumerate(processes):
                entry = card.processes[index]
                entry.pid, entry.kind = process.pid, process.kind
                entry.used_memory_bytes = NOT_AVAILABLE if process.memory_bytes is None else process.memory_bytes
                entry.gpu_instance = NO_INSTANCE if process.gpu_instance is None else process.gpu_instance
                entry.compute_instance = NO_INSTANCE if process.compute_instance is None else process.compute_instance
                entry.sm_percent = percent("SM share", process.sm_ratio or 0.0)
                entry.memory_percent = percent("memory share", process.memory_ratio)
                entry.encoder_percent = percent("encoder share", process.encoder_ratio)
                entry.decoder_percent = percent("decoder share", process.decoder_ratio)
                entry.utilization_at_us = 0 if process.sm_ratio is None else sampled_us
            card.process_count = len(processes)

    # ---- memory health --------------------------------------------------------------------------------------------

    def set_ecc(self, enabled: bool, pending: bool | None = None) -> None:
        with self.changing() as card:
            card.ecc_current, card.ecc_pending = int(enabled), int(enabled if pending is None else pending)

    def add_ecc_errors(self, count: int = 1, *, uncorrected: bool, place: MemoryPlace = MemoryPlace.DRAM) -> None:
        """Errors since the driver was loaded, and over the card's life: both grow."""
        with self.changing() as card:
            for counter in range(2):
                card.ecc_errors[int(uncorrected)][counter] += count
                card.ecc_errors_by_place[int(uncorrected)][counter][place] += count

    def set_remapped_rows(self, *, correctable: int = 0, uncorrectable: int = 0, pending: bool = False, failed: bool = False) -> None:
        with self.changing() as card:
            card.remapped_correctable, card.remapped_uncorrectable = correctable, uncorrectable
            card.remap_pending, card.remap_failed = int(pending), int(failed)

    def set_retired_pages(self, *, single_bit: int = 0, double_bit: int = 0, pending: bool = False) -> None:
        """Before Ampere; newer cards remap rows."""
        with self.changing() as card:
            card.retired_pages[0], card.retired_pages[1] = single_bit, double_bit
            card.retired_pending[0], card.retired_pending[1] = 0, int(pending)

    def set_recovery_action(self, action: RecoveryAction) -> None:
        with self.changing() as card:
            card.recovery_action = action

    def reset(self) -> None:
        """What `nvidia-smi --gpu-reset` does to memory health: errors since driver load begin at 0, rows that waited to be
        replaced are, and nothing more is asked for. What is counted over the card's life stays."""
        with self.changing() as card:
            self.clear_volatile_errors()
            card.remap_pending = 0
            card.recovery_action = RecoveryAction.NONE

    def clear_volatile_errors(self) -> None:
        """ECC errors since driver load begin at 0."""
        with self.changing() as card:
            for kind in range(2):
                card.ecc_errors[kind][0] = 0
                for place in range(len(card.ecc_errors_by_place[kind][0])):
                    card.ecc_errors_by_place[kind][0][place] = 0

    # ---- modes, fabric --------------------------------------------------------------------------------------------

    def set_persistence(self, enabled: bool) -> None:
        with self.changing() as card:
            card.persistence = int(enabled)

    def set_mig(self, enabled: bool, pending: bool | None = None) -> None:
        with self.changing() as card:
            card.mig_current, card.mig_pending = int(enabled), int(enabled if pending is None else pending)

    def set_fabric(self, state: FabricState, *, status: ReturnCode = ReturnCode.SUCCESS, clique: int = 0, health: int = 0) -> None:
        """`health` is NVML_GPU_FABRIC_HEALTH_SUMMARY_*: 0 not supported, 1 healthy, 2 unhealthy, 3 limited."""
        with self.changing() as card:
            card.fabric_state, card.fabric_status = state, status
            card.fabric_clique, card.fabric_health_summary = clique, health

    # ---- GPM ------------------------------------------------------------------------------------------------------

    def set_gpm(self, metric: Gpm | int, value: float | None) -> None:
        """Value of a GPM metric from now on: percent, or MiB/s for …_PER_SEC. None: this card does not have it."""
        if not 0 < metric < MAX_GPM_METRICS:
            raise ValueError(f"GPM metric {metric} is outside 1 to {MAX_GPM_METRICS - 1}")
        with self.changing() as card:
            entry = card.gpm[metric]
            now = time.monotonic()
            if entry.given:
                entry.integral += entry.value * (now - entry.since_s)
            entry.given, entry.value, entry.since_s = int(value is not None), value or 0.0, now

    # ---- refusals and raw fields ----------------------------------------------------------------------------------

    def refuse(self, function: str, code: ReturnCode | None) -> None:
        """A function that this card answers with `code` always, as a card does that lacks it. None takes that back.
        (For a fault that comes and goes: node.inject.)"""
        names = list(functions())
        if function not in names:
            raise ValueError(f"{function!r} is no NVML function")
        with self.changing() as card:
            card.function_refusal[names.index(function)] = code or 0

    def refuse_field(self, field: int, code: ReturnCode | None) -> None:
        """The same for one field id of nvmlDeviceGetFieldValues."""
        with self.changing() as card:
            card.field_refusal[field_number(field)] = code or 0

    def set_field(self, field: int, bits: int, value_type: int) -> None:
        """A field that nothing else of the card stands behind, e.g. FEC histories (235 to 250); nvmlValueType_t tells how
        the 64 bits are read."""
        with self.changing() as card:
            raw = card.raw_fields[field_number(field)]
            raw.given, raw.value_type, raw.bits = 1, value_type, bits
