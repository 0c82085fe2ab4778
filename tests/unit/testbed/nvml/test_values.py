"""One input moves, and exactly the outputs that stand for it move, by the right amount in the right unit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from poise.testbed.nvml.codes import (
    BlackwellLinkError,
    FabricState,
    LinkError,
    LinkState,
    MemoryPlace,
    Policy,
    ProcessKind,
    ReasonTime,
    RecoveryAction,
    Threshold,
)
from poise.testbed.nvml.gpu import Process, SimulatedGPU

from tests.simulated import Simulation
from tests.unit.testbed.nvml.readings import moved, read_card

GIB = 1 << 30
H20_TOTAL, H20_RESERVED, H20_BAR1 = 150754820096, 671088640, 274877906944  # profiles/h20x2.toml
SCOPES = ("", " link 1", " all")  # a field that has no link answers the same for every scope


def every_scope(field: int, value: Any) -> dict[str, Any]:
    return {f"field {field}{scope}": value for scope in SCOPES}


CASES: dict[str, tuple[Callable[[SimulatedGPU], None], dict[str, Any]]] = {
    "name": (lambda g: g.set_identity(name="Simulated Thing"), {"Name": "Simulated Thing"}),
    "uuid": (lambda g: g.set_identity(uuid="GPU-1"), {"UUID": "GPU-1"}),
    "serial": (lambda g: g.set_identity(serial="42"), {"Serial": "42"}),
    "utilization, percent": (lambda g: g.set_utilization(0.87), {"Utilization.gpu": 87}),
    "memory utilization, percent": (lambda g: g.set_utilization(0.0, memory=0.31), {"Utilization.memory": 31}),
    "encoder, percent": (lambda g: g.set_engine_utilization(encoder=0.4), {"Encoder": 40}),
    "decoder, percent": (lambda g: g.set_engine_utilization(decoder=0.3), {"Decoder": 30}),
    "jpeg, percent": (lambda g: g.set_engine_utilization(jpeg=0.2), {"Jpg": 20}),
    "ofa, percent": (lambda g: g.set_engine_utilization(ofa=0.1), {"Ofa": 10}),
    "memory, bytes; v1 counts the reserved part as used": (
        lambda g: g.set_memory_used(70 * GIB),
        {
            "Memory.used": 70 * GIB,
            "Memory.free": H20_TOTAL - H20_RESERVED - 70 * GIB,
            "MemoryV1.used": 70 * GIB + H20_RESERVED,
            "MemoryV1.free": H20_TOTAL - H20_RESERVED - 70 * GIB,
        },
    ),
    "bar1, bytes": (
        lambda g: g.set_bar1_used(GIB),
        {"Bar1.bar1Used": GIB, "Bar1.bar1Free": H20_BAR1 - GIB},
    ),
    "power, mW; averaged (185) and instantaneous (186)": (
        lambda g: g.set_power(412.345, instant=498.5),
        {
            "PowerUsage": 412345,
            **{f"field 185{scope}": 412345 for scope in ("", " all")},
            **{f"field 186{scope}": 498500 for scope in ("", " all")},
        },
    ),
    "power limit, mW": (
        lambda g: g.set_power_limit(350),
        {
            "EnforcedPowerLimit": 350000,
            "PowerManagementLimit": 350000,
            **every_scope(190, 350000),
            **every_scope(192, 350000),
        },
    ),
    "energy, mJ": (
        lambda g: g.add_energy(1234.567),
        {
            "TotalEnergyConsumption": 1234567,
            **every_scope(83, 1234567),
            "field 191": 1234567,
            "field 191 all": 1234567,
        },
    ),
    "temperature, Celsius; the margin follows": (
        lambda g: g.set_temperature(71),
        {"Temperature": 71, "TemperatureV": 71, "Margin": 92 - 71},
    ),
    "margin below zero": (lambda g: g.set_temperature_margin(-3), {"Margin": -3}),
    "memory temperature": (lambda g: g.set_temperature(30, memory=88), every_scope(82, 88)),
    "threshold": (lambda g: g.set_threshold(Threshold.GPU_MAX, 80), {"Threshold 3": 80}),
    "fans, percent": (lambda g: g.set_fans(2, 0.45), {"NumFans": 2, "FanSpeed": 45}),
    "sm clock, MHz": (lambda g: g.set_clock("sm", 1_755_000_000), {"Clock 1": 1755}),
    "memory clock, MHz": (lambda g: g.set_clock("memory", 2_619_000_000), {"Clock 2": 2619}),
    "performance state": (lambda g: g.set_performance_state(8), {"PerformanceState": 8}),
    "event reasons, mask": (
        lambda g: g.set_event_reasons({"sw_power_cap", "hw_slowdown", "hw_power_brake"}),
        {"CurrentClocksEventReasons": 0x4 | 0x8 | 0x80},
    ),
    "no event reason": (lambda g: g.set_event_reasons(()), {"CurrentClocksEventReasons": 0}),
    "power policy, ns": (
        lambda g: g.add_policy_time(Policy.POWER, 1.5),
        {"Violation 0": 1_500_000_000, **every_scope(74, 1_500_000_000)},
    ),
    "thermal policy, ns": (
        lambda g: g.add_policy_time(Policy.THERMAL, 2),
        {"Violation 1": 2_000_000_000, **every_scope(75, 2_000_000_000)},
    ),
    "base clocks policy, ns": (
        lambda g: g.add_policy_time(Policy.TOTAL_BASE_CLOCKS, 3),
        {"Violation 11": 3_000_000_000, **every_scope(81, 3_000_000_000)},
    ),
    "software thermal slowdown, ns": (
        lambda g: g.add_reason_time(ReasonTime.SW_THERMAL_SLOWDOWN, 0.25),
        every_scope(269, 250_000_000),
    ),
    "power brake, ns": (
        lambda g: g.add_reason_time(ReasonTime.HW_POWER_BRAKE, 0.5),
        every_scope(271, 500_000_000),
    ),
    "PCIe generation": (lambda g: g.set_pcie_link(generation=1), {"CurrPcieLinkGeneration": 1}),
    "PCIe width": (lambda g: g.set_pcie_link(width=8), {"CurrPcieLinkWidth": 8}),
    "PCIe bytes, 32 bits that wrap": (
        lambda g: g.add_pcie_bytes(tx=(1 << 32) + 5, rx=7),
        {**every_scope(197, 5), **every_scope(198, 7)},
    ),
    "PCIe replays": (lambda g: g.add_pcie_replays(3), {"PcieReplayCounter": 3, **every_scope(94, 3)}),
    "NVLink payload sent, KiB": (
        lambda g: g.add_nvlink_bytes(0, tx=16 * GIB),
        {
            **{f"field 138{scope}": 16 * GIB // 1024 for scope in ("", " all")},
            **{f"field 140{scope}": 17 * GIB // 1024 for scope in ("", " all")},
        },
    ),
    "NVLink payload received, KiB; less than one KiB is none": (
        lambda g: g.add_nvlink_bytes(1, rx=1023),
        {f"field 141{scope}": 1 for scope in (" link 1", " all")},  # with headers it is more than 1 KiB
    ),
    "NVLink down: its counters and its far end go": (
        lambda g: g.set_link_up(0, False),
        {
            "Link 0 State": 0,
            "Link 0 RemoteDeviceType": "error 3",
            "field 164": 0,
            "field 84": 0,
            **{f"field 84{scope}": 0 for scope in SCOPES},
            **{f"field {field}": "error 3" for field in (138, 139, 140, 141, 161, 162, 163)},
            "field 165": 0,
        },
    ),
    "NVLink asleep is up": (lambda g: g.set_link_state(0, LinkState.SLEEP), {"field 165": 2}),
    "NVLink replay errors": (
        lambda g: g.add_link_errors(1, LinkError.REPLAY, 9),
        {
            "Link 1 error 0": 9,
            "field 161 link 1": 9,
            "field 161 all": 9,
            **every_scope(47, 9),
            **every_scope(52, 9),
        },
    ),
    "NVLink CRC errors": (
        lambda g: g.add_link_errors(0, LinkError.CRC_FLIT, 4),
        {
            "Link 0 error 2": 4,
            "field 163": 4,
            "field 163 all": 4,
            **every_scope(32, 4),
            **every_scope(38, 4),
        },
    ),
    "processes": (
        lambda g: g.set_processes([Process(1, GIB), Process(2, GIB, kind=ProcessKind.GRAPHICS), Process(3, 5)]),
        {"ComputeProcesses": 2, "GraphicsProcesses": 1},
    ),
    "MPS client": (
        lambda g: g.set_processes([Process(1, GIB, kind=ProcessKind.MPS)]),
        {"MPSComputeProcesses": 1},
    ),
    "corrected ECC errors": (
        lambda g: g.add_ecc_errors(5, uncorrected=False),
        {
            "Ecc 0 0": 5,
            "Ecc 0 1": 5,
            **every_scope(3, 5),
            **every_scope(5, 5),
            **every_scope(11, 5),
            **every_scope(22, 5),
        },
    ),
    "uncorrected ECC errors": (
        lambda g: g.add_ecc_errors(1, uncorrected=True, place=MemoryPlace.REGISTER_FILE),
        {
            "Ecc 1 0": 1,
            "Ecc 1 1": 1,
            **every_scope(4, 1),
            **every_scope(6, 1),
            **every_scope(14, 1),
            **every_scope(25, 1),
        },
    ),
    "ECC off takes its counters away": (
        lambda g: g.set_ecc(False),
        {
            "EccMode.current": 0,
            "EccMode.pending": 0,
            **every_scope(1, 0),
            **every_scope(2, 0),
            **{f"Ecc {kind} {counter}": "error 3" for kind in range(2) for counter in range(2)},
            **{f"field {field}{scope}": "error 3" for field in (*range(3, 29), *range(142, 146)) for scope in SCOPES},
            **{f"Rows.{name}": "error 3" for name in ("correctable", "uncorrectable", "pending", "failed")},
        },
    ),
    "remapped rows": (
        lambda g: g.set_remapped_rows(correctable=2, uncorrectable=1, pending=True, failed=True),
        {
            "Rows.correctable": 2,
            "Rows.uncorrectable": 1,
            "Rows.pending": 1,
            "Rows.failed": 1,
            **every_scope(142, 2),
            **every_scope(143, 1),
            **every_scope(144, 1),
            **every_scope(145, 1),
        },
    ),
    "retired pages are of older cards": (lambda g: g.set_retired_pages(single_bit=3, double_bit=1, pending=True), {}),
    "recovery action": (lambda g: g.set_recovery_action(RecoveryAction.GPU_RESET), every_scope(230, 1)),
    "persistence": (lambda g: g.set_persistence(False), {"PersistenceMode": 0}),
    "a field that nothing stands behind": (lambda g: g.set_field(236, 77, 3), every_scope(236, 77)),
    "a refused field": (lambda g: g.refuse_field(83, 4), every_scope(83, "error 4")),
    "a refused function": (lambda g: g.refuse("nvmlDeviceGetPowerUsage", 3), {"PowerUsage": "error 3"}),
    "fabric state moves nothing of the card": (lambda g: g.set_fabric(FabricState.IN_PROGRESS), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_one_input_moves_exactly_its_outputs(case: str, simulate: Callable[[str], Simulation]) -> None:
    change, expected = CASES[case]
    simulation = simulate("h20x2")
    n = simulation.pynvml
    n.nvmlInit()
    handle, neighbour = (n.nvmlDeviceGetHandleByIndex(index) for index in range(2))
    before, aside = read_card(n, handle), read_card(n, neighbour)
    change(simulation.node.gpus[0])
    assert moved(before, read_card(n, handle)) == expected
    assert moved(aside, read_card(n, neighbour)) == {}


def test_mig_takes_away_what_the_whole_card_cannot_tell(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n = simulation.pynvml
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    before = read_card(n, handle)
    simulation.node.gpus[0].set_mig(True)
    changed = moved(before, read_card(n, handle))
    refused = {name for name, value in changed.items() if value == "error 3"}
    engines = {"Utilization.gpu", "Utilization.memory", "Encoder", "Decoder", "Jpg", "Ofa"}
    rows = {f"Rows.{name}" for name in ("correctable", "uncorrectable", "pending", "failed")}
    rows |= {f"field {field}{scope}" for field in range(142, 146) for scope in SCOPES}
    assert refused == engines | rows
    assert {name: value for name, value in changed.items() if name not in refused} == {
        "MigMode.current": 1,
        "MigMode.pending": 1,
    }


def test_cards_before_ampere_retire_pages_and_remap_no_rows(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("v100x2")
    n, card = simulation.pynvml, simulation.node.gpus[0]
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    before = read_card(n, handle)
    card.set_retired_pages(single_bit=3, double_bit=1, pending=True)
    card.set_remapped_rows(correctable=2)
    assert moved(before, read_card(n, handle)) == {**every_scope(29, 3), **every_scope(30, 1), **every_scope(31, 1), **every_scope(93, 1)}


def test_blackwell_counts_links_by_other_fields(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("blackwell-x8")
    n, card = simulation.pynvml, simulation.node.gpus[5]
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(5)
    before = read_card(n, handle)
    assert before["Link 0 error 0"] == before["field 161"] == before["field 32"] == "error 3"
    card.add_link_errors(1, BlackwellLinkError.SYMBOL, 12)
    card.add_nvlink_bytes(1, tx=4096)
    assert moved(before, read_card(n, handle)) == {
        **{f"field 221{scope}": 12 for scope in (" link 1", " all")},
        **{f"field 138{scope}": 4 for scope in (" link 1", " all")},
        **{f"field 140{scope}": 4 for scope in (" link 1", " all")},  # 4,352 bytes
        **{f"field 201{scope}": 16 for scope in (" link 1", " all")},
        **{f"field 202{scope}": 4352 for scope in (" link 1", " all")},
    }


def test_a_bit_error_rate_is_encoded_and_has_no_sum(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("blackwell-x8")
    n, card = simulation.pynvml, simulation.node.gpus[0]
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    before = read_card(n, handle)
    assert before["field 220 link 1"] == 15 << 8 | 255  # zero
    card.set_link_bit_error_rate(1, BlackwellLinkError.EFFECTIVE_BER, mantissa=3, exponent=14)
    assert moved(before, read_card(n, handle)) == {"field 220 link 1": 3 << 8 | 14}
    assert before["field 220 all"] == "error 2"


def test_pcie_throughput_is_in_kb_per_second_and_blocks_for_its_window(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, card = simulation.pynvml, simulation.node.gpus[0]
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    card.set_pcie_throughput(tx=3_000_000, rx=4_000_000)
    began = time.monotonic()
    assert [n.nvmlDeviceGetPcieThroughput(handle, direction) for direction in range(2)] == [3000, 4000]
    assert time.monotonic() - began >= 0.040


def test_changes_made_together_are_seen_together(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, card = simulation.pynvml, simulation.node.gpus[0]
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    with card.changing() as state:
        odd = state.sequence % 2
        card.set_power(100)
        card.set_utilization(0.5)
        assert state.sequence % 2 == odd == 1
    assert state.sequence % 2 == 0
    assert n.nvmlDeviceGetPowerUsage(handle) == 100_000


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda g: g.set_utilization(1.2), "utilization 1.2 is outside 0 to 1"),
        (lambda g: g.set_memory_used(-1), "memory used -1 is outside 0 to 150083731456 bytes"),
        (lambda g: g.set_memory_used(H20_TOTAL), "is outside 0 to 150083731456 bytes"),
        (lambda g: g.set_power(-5), "power -5 is not 0 or more"),
        (lambda g: g.set_power(float("nan")), "power nan is not 0 or more"),
        (lambda g: g.set_clock("shader", 1), "clock 'shader' is not one of graphics, sm, memory, video"),
        (lambda g: g.set_event_reasons({"hot"}), "clock event reason 'hot' is not one of gpu_idle"),
        (lambda g: g.set_link_up(18, True), "link 18 is not one of the 18 links of Simulated NVIDIA H20-3e"),
        (lambda g: g.set_identity(name="NVIDIA H20"), "must start with 'Simulated '"),
        (lambda g: g.refuse("nvmlDeviceGetPower", 3), "is no NVML function"),
        (lambda g: g.set_gpm(600, 1.0), "GPM metric 600 is outside 1 to 511"),
    ],
)
def test_impossible_inputs_are_refused_and_named(
    change: Callable[[SimulatedGPU], None], complaint: str, simulate: Callable[[str], Simulation]
) -> None:
    simulation = simulate("h20x2")
    with pytest.raises(ValueError, match=complaint):
        change(simulation.node.gpus[0])
