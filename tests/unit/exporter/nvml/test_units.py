"""One input of a simulated card moved at a time: the series that it stands behind move, by the right amount in base units, and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import pytest
from poise.exporter import metrics as m
from poise.exporter.metrics import Metric
from poise.exporter.nvml import registry
from poise.testbed.nvml.codes import (
    FabricState,
    Gpm,
    LinkError,
    LinkState,
    MemoryPlace,
    Policy,
    ReasonTime,
    RecoveryAction,
    ReturnCode,
)
from poise.testbed.nvml.gpu import SimulatedGPU

from tests.simulated_cards import Bench, bench, series

GIB = 1 << 30
MIB = 1 << 20

Move = Callable[[SimulatedGPU], None]
#: A series without and with labels → its value after the move; None: it is gone.
Moved = Mapping[tuple[Metric, tuple[str, ...]], float | None]


def one(metric: Metric, value: float, *labels: str) -> Moved:
    return {(metric, labels): value}


#: One input moved, and every series that this changes, with its new value.
MOVES: dict[str, tuple[Move, Moved]] = {
    "utilization, percent": (
        lambda gpu: gpu.set_utilization(0.37),
        {**one(m.GPU_UTILIZATION, 0.37), **one(m.GPU_UTILIZATION_PEAK, 0.37)},
    ),
    "memory interface, percent": (lambda gpu: gpu.set_utilization(0.0, memory=0.21), one(m.GPU_MEMORY_BUSY, 0.21)),
    "encoder, percent": (lambda gpu: gpu.set_engine_utilization(encoder=0.11), one(m.GPU_ENCODER_UTILIZATION, 0.11)),
    "decoder, percent": (lambda gpu: gpu.set_engine_utilization(decoder=0.12), one(m.GPU_DECODER_UTILIZATION, 0.12)),
    "SMs, percent": (lambda gpu: gpu.set_gpm(Gpm.SM_UTIL, 63.5), one(m.GPU_SM_ACTIVE, 0.635)),
    "SM occupancy, percent": (lambda gpu: gpu.set_gpm(Gpm.SM_OCCUPANCY, 12.5), one(m.GPU_SM_OCCUPANCY, 0.125)),
    "tensor cores, percent": (lambda gpu: gpu.set_gpm(Gpm.ANY_TENSOR_UTIL, 41.0), one(m.GPU_TENSOR_ACTIVE, 0.41)),
    "device memory, percent": (lambda gpu: gpu.set_gpm(Gpm.DRAM_BW_UTIL, 88.0), one(m.GPU_DRAM_ACTIVE, 0.88)),
    "PCIe sent, MiB/s": (lambda gpu: gpu.set_gpm(Gpm.PCIE_TX_PER_SEC, 1500.0), one(m.GPU_PCIE_TX, 1500.0 * MIB)),
    "PCIe received, MiB/s": (lambda gpu: gpu.set_gpm(Gpm.PCIE_RX_PER_SEC, 0.5), one(m.GPU_PCIE_RX, 0.5 * MIB)),
    "other activity is nobody's": (lambda gpu: gpu.set_gpm(Gpm.HMMA_TENSOR_UTIL, 70.0), {}),
    "memory, bytes": (
        lambda gpu: gpu.set_memory_used(10 * GIB),
        {**one(m.GPU_MEMORY_USED, 10 * GIB), **one(m.GPU_MEMORY_FREE, 150754820096 - 671088640 - 10 * GIB)},
    ),
    "BAR1, bytes": (lambda gpu: gpu.set_bar1_used(3 * MIB), one(m.GPU_BAR1_USED, 3 * MIB)),
    "power, mW": (lambda gpu: gpu.set_power(345.678), one(m.GPU_POWER, 345.678)),
    "power is the average": (lambda gpu: gpu.set_power(75.0, instant=400.0), {}),
    "power limit, mW": (lambda gpu: gpu.set_power_limit(450), one(m.GPU_POWER_LIMIT, 450.0)),
    "energy, mJ": (lambda gpu: gpu.add_energy(1234.5), one(m.GPU_ENERGY, 1234.5)),
    "core temperature": (
        lambda gpu: gpu.set_temperature(50),
        {**one(m.GPU_TEMPERATURE, 50, "core"), **one(m.GPU_TEMPERATURE_MARGIN, 42)},
    ),
    "memory temperature": (lambda gpu: gpu.set_temperature(30, memory=71), one(m.GPU_TEMPERATURE, 71, "memory")),
    "margin below zero": (lambda gpu: gpu.set_temperature_margin(-3), one(m.GPU_TEMPERATURE_MARGIN, -3)),
    "fan, percent": (lambda gpu: gpu.set_fans(1, 0.45), one(m.GPU_FAN, 0.45)),
    "performance state": (lambda gpu: gpu.set_performance_state(8), one(m.GPU_PERFORMANCE_STATE, 8)),
    "SM clock, MHz": (lambda gpu: gpu.set_clock("sm", 1.41e9), one(m.GPU_CLOCK, 1.41e9, "sm")),
    "memory clock, MHz": (lambda gpu: gpu.set_clock("memory", 1.5e9), one(m.GPU_CLOCK, 1.5e9, "memory")),
    "video clock, MHz": (lambda gpu: gpu.set_clock("video", 1.2e9), one(m.GPU_CLOCK, 1.2e9, "video")),
    "graphics clock, MHz": (lambda gpu: gpu.set_clock("graphics", 1.3e9), one(m.GPU_CLOCK, 1.3e9, "graphics")),
    "clock events, mask": (
        lambda gpu: gpu.set_event_reasons({"gpu_idle", "sw_power_cap", "hw_slowdown"}),
        {**one(m.GPU_CLOCKS_EVENT, 1, "sw_power_cap"), **one(m.GPU_CLOCKS_EVENT, 1, "hw_slowdown")},
    ),
    "power cap, ns": (lambda gpu: gpu.add_policy_time(Policy.POWER, 12.5), one(m.GPU_CLOCKS_EVENT_SECONDS, 12.5, "sw_power_cap")),
    "sync boost, ns": (lambda gpu: gpu.add_policy_time(Policy.SYNC_BOOST, 1.5), one(m.GPU_CLOCKS_EVENT_SECONDS, 1.5, "sync_boost")),
    "hardware thermal slowdown, ns": (
        lambda gpu: gpu.add_reason_time(ReasonTime.HW_THERMAL_SLOWDOWN, 0.25),
        one(m.GPU_CLOCKS_EVENT_SECONDS, 0.25, "hw_thermal_slowdown"),
    ),
    "software thermal slowdown, ns": (
        lambda gpu: gpu.add_reason_time(ReasonTime.SW_THERMAL_SLOWDOWN, 0.5),
        one(m.GPU_CLOCKS_EVENT_SECONDS, 0.5, "sw_thermal_slowdown"),
    ),
    "power brake, ns": (
        lambda gpu: gpu.add_reason_time(ReasonTime.HW_POWER_BRAKE, 0.75),
        one(m.GPU_CLOCKS_EVENT_SECONDS, 0.75, "hw_power_brake"),
    ),
    "corrected memory errors": (
        lambda gpu: gpu.add_ecc_errors(5, uncorrected=False),
        {**one(m.GPU_ECC_ERRORS, 5, "corrected"), **one(m.GPU_ECC_ERRORS_LIFETIME, 5, "corrected")},
    ),
    "uncorrected memory errors, anywhere": (
        lambda gpu: gpu.add_ecc_errors(2, uncorrected=True, place=MemoryPlace.SRAM),
        {**one(m.GPU_ECC_ERRORS, 2, "uncorrected"), **one(m.GPU_ECC_ERRORS_LIFETIME, 2, "uncorrected")},
    ),
    "remapped rows": (
        lambda gpu: gpu.set_remapped_rows(correctable=3, uncorrectable=1),
        {**one(m.GPU_REMAPPED_ROWS, 3, "correctable"), **one(m.GPU_REMAPPED_ROWS, 1, "uncorrectable")},
    ),
    "a row that waits": (lambda gpu: gpu.set_remapped_rows(pending=True), one(m.GPU_REMAP_PENDING, 1)),
    "a row that failed": (lambda gpu: gpu.set_remapped_rows(failed=True), one(m.GPU_REMAP_FAILED, 1)),
    "recovery action": (lambda gpu: gpu.set_recovery_action(RecoveryAction.NODE_REBOOT), one(m.GPU_RECOVERY_ACTION, 2)),
    "fabric": (
        lambda gpu: gpu.set_fabric(FabricState.IN_PROGRESS),
        {**one(m.GPU_FABRIC_STATE, 0, "completed"), **one(m.GPU_FABRIC_STATE, 1, "in_progress")},
    ),
    "fabric, completed with an error": (
        lambda gpu: gpu.set_fabric(FabricState.COMPLETED, status=ReturnCode.UNKNOWN),
        {**one(m.GPU_FABRIC_STATE, 0, "completed"), **one(m.GPU_FABRIC_STATE, 1, "failed")},
    ),
    "PCIe generation": (lambda gpu: gpu.set_pcie_link(generation=1), one(m.GPU_PCIE_LINK_GENERATION, 1)),
    "PCIe width": (lambda gpu: gpu.set_pcie_link(width=8), one(m.GPU_PCIE_LINK_WIDTH, 8)),
    "PCIe replays": (lambda gpu: gpu.add_pcie_replays(7), one(m.GPU_PCIE_REPLAYS, 7)),
    "PCIe bytes are nobody's: they wrap": (lambda gpu: gpu.add_pcie_bytes(tx=1 << 20, rx=1 << 20), {}),
    "persistence": (lambda gpu: gpu.set_persistence(False), one(m.GPU_PERSISTENCE_MODE, 0)),
    "NVLink sent, KiB": (
        lambda gpu: gpu.add_nvlink_bytes(2, tx=5 * MIB),
        {**one(m.GPU_NVLINK_TX, 5 * MIB, "2"), **one(m.GPU_NVLINK_TOTAL_TX, 5 * MIB)},
    ),
    "NVLink received, KiB": (
        lambda gpu: gpu.add_nvlink_bytes(17, rx=3 * GIB),
        {**one(m.GPU_NVLINK_RX, 3 * GIB, "17"), **one(m.GPU_NVLINK_TOTAL_RX, 3 * GIB)},
    ),
    "NVLink packets sent again": (lambda gpu: gpu.add_link_errors(1, LinkError.REPLAY, 9), one(m.GPU_NVLINK_ERRORS, 9, "1", "replay")),
    "NVLink still active": (lambda gpu: gpu.set_link_state(3, LinkState.ACTIVE), {}),
    "NVLink down": (
        lambda gpu: gpu.set_link_up(4, False),
        {
            **one(m.GPU_NVLINK_UP, 0, "4"),
            (m.GPU_NVLINK_BANDWIDTH, ("4",)): None,
            (m.GPU_NVLINK_TX, ("4",)): None,
            (m.GPU_NVLINK_RX, ("4",)): None,
            **{(m.GPU_NVLINK_ERRORS, ("4", kind)): None for kind in ("replay", "recovery", "crc_flit")},
        },
    ),
}
#: Grow with time alone.
INTEGRALS = {(m.GPU_BUSY_SECONDS, ()), *((m.GPU_CLOCKS_EVENT_SECONDS, (reason,)) for reason in ("gpu_idle", "hw_slowdown"))}
#: Series of what a card is, which no input of a card at work moves, and those that tests of their own move.
STANDING = {
    m.GPU_INFO,
    m.GPU_MEMORY_TOTAL,
    m.GPU_MEMORY_RESERVED,
    m.GPU_BAR1_TOTAL,
    m.GPU_CLOCK_MAX,
    m.GPU_PCIE_LINK_GENERATION_MAX,
    m.GPU_PCIE_LINK_WIDTH_MAX,
    m.GPU_NVLINK_PEER_INFO,  # test_collectors.py
    m.GPU_PAIR_INFO,
    m.GPU_PROCESS_MEMORY,
    m.GPU_FOREIGN_MEMORY,
    m.GPU_BUSY_SECONDS,  # test_utilization.py
    m.GPU_MIG_MODE,  # below
    m.GPU_RETIRED_PAGES,
    m.GPU_XID_ERRORS,  # test_xid.py
    m.GPU_XID_LAST,
}


@pytest.fixture
def h20() -> Iterator[Bench]:
    with bench("h20x2") as cards:
        yield cards


def everything(cards: Bench) -> Mapping[tuple[Metric, tuple[str, ...]], float]:
    """Every series of the first card, all of them read now: the second tick is what GPM needs to compare."""
    cards.read_all_tiers()
    return MappingProxyType(dict(series(cards.read(after=1.0))))


@pytest.mark.parametrize("name", MOVES)
def test_one_input_moves_its_own_series_in_base_units(name: str, h20: Bench) -> None:
    move, expected = MOVES[name]
    gpu, neighbour = h20.node.gpus
    gpu.set_utilization(0.0)
    gpu.set_temperature(30)
    gpu.set_fans(1, 0.0)
    beside = dict(series(h20.read(1)))
    before = everything(h20)
    move(gpu)
    after = everything(h20)
    changed = {key: after.get(key) for key in {**before, **after} if before.get(key) != after.get(key) and key not in INTEGRALS}
    assert changed == pytest.approx(expected)
    assert series(h20.read(1)) == beside
    assert neighbour.uuid != gpu.uuid


def test_every_series_is_moved_by_something() -> None:
    moved = {metric for _, changes in MOVES.values() for metric, _ in changes}
    assert moved | STANDING == {metric for collector in registry.ALL for metric in collector.metrics}
    assert not moved & STANDING


def test_retired_pages_of_an_older_card_by_cause() -> None:
    with bench("v100x2") as cards:
        before = everything(cards)
        cards.node.gpus[0].set_retired_pages(single_bit=3, double_bit=1)
        after = everything(cards)
        changed = {key: value for key, value in after.items() if before[key] != value and key not in INTEGRALS}
        assert changed == {(m.GPU_RETIRED_PAGES, ("single_bit",)): 3, (m.GPU_RETIRED_PAGES, ("double_bit",)): 1}


def test_pcie_throughput_of_the_blocking_call_is_in_kilobytes() -> None:
    """Only for a card without GPM, and only when it is switched on."""
    chosen = tuple(collector for collector in registry.ALL if collector.name in ("identity", "gpm", "pcie_throughput"))
    with bench("pcie-x2", collectors=chosen) as cards:
        cards.node.gpus[0].set_pcie_throughput(tx=3_000_000, rx=4_500_000)
        gpu = cards.read_all_tiers()
        assert (gpu.value(m.GPU_PCIE_TX), gpu.value(m.GPU_PCIE_RX)) == (3_000_000, 4_500_000)
        assert m.GPU_PCIE_TX not in gpu.absent


def test_turning_mig_on_takes_what_the_whole_card_cannot_tell(h20: Bench) -> None:
    before = everything(h20)
    h20.node.gpus[0].set_mig(True)
    h20.prepare()
    after = everything(h20)
    gone = {metric for metric, _ in before} - {metric for metric, _ in after}
    assert after[m.GPU_MIG_MODE, ()] == 1
    assert gone == {
        m.GPU_UTILIZATION,
        m.GPU_UTILIZATION_PEAK,
        m.GPU_BUSY_SECONDS,
        m.GPU_MEMORY_BUSY,
        m.GPU_ENCODER_UTILIZATION,
        m.GPU_DECODER_UTILIZATION,
        m.GPU_REMAPPED_ROWS,
        m.GPU_REMAP_PENDING,
        m.GPU_REMAP_FAILED,
    }
