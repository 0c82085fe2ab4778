"""Numbers that have a field and a call: the field while it is given, the call where it is refused or fails; and slow ways that are not taken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from poise.exporter import metrics as m
from poise.exporter.metrics import Metric
from poise.exporter.nvml import registry
from poise.exporter.nvml.card import Collector
from poise.exporter.nvml.library import NvmlFailure
from poise.exporter.snapshot import Gpu, Reason
from poise.testbed.nvml.codes import Gpm, ReturnCode
from poise.testbed.nvml.gpu import SimulatedGPU

from tests.simulated_cards import bench

#: Metric and its labels, field, the call that stands in, what moves it, and the value that it then has.
Case = tuple[Metric, tuple[str, ...], int, str, Callable[[SimulatedGPU], None], float]
CASES: tuple[Case, ...] = (
    (m.GPU_POWER, (), 185, "nvmlDeviceGetPowerUsage", lambda gpu: gpu.set_power(321.5), 321.5),
    (m.GPU_POWER_LIMIT, (), 190, "nvmlDeviceGetEnforcedPowerLimit", lambda gpu: gpu.set_power_limit(400), 400.0),
    (m.GPU_ENERGY, (), 83, "nvmlDeviceGetTotalEnergyConsumption", lambda gpu: gpu.add_energy(12.5), 12.5),
    (m.GPU_PCIE_REPLAYS, (), 94, "nvmlDeviceGetPcieReplayCounter", lambda gpu: gpu.add_pcie_replays(3), 3),
    (m.GPU_ECC_ERRORS, ("corrected",), 3, "nvmlDeviceGetTotalEccErrors", lambda gpu: gpu.add_ecc_errors(4, uncorrected=False), 4),
    (m.GPU_ECC_ERRORS_LIFETIME, ("uncorrected",), 6, "nvmlDeviceGetTotalEccErrors", lambda gpu: gpu.add_ecc_errors(uncorrected=True), 1),
    (m.GPU_REMAPPED_ROWS, ("correctable",), 142, "nvmlDeviceGetRemappedRows", lambda gpu: gpu.set_remapped_rows(correctable=2), 2),
    (m.GPU_REMAP_FAILED, (), 145, "nvmlDeviceGetRemappedRows", lambda gpu: gpu.set_remapped_rows(failed=True), 1),
)
IDS = [f"{case[0].name}{''.join(case[1])}" for case in CASES]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_number_comes_with_the_other_fields_and_its_call_is_not_made(case: Case) -> None:
    metric, labels, _, call, move, value = case
    with bench("h20x2") as cards:
        move(cards.node.gpus[0])
        assert cards.read().value(metric, *labels) == pytest.approx(value)
        assert cards.node.calls(call) == 0


@pytest.mark.parametrize("code", [ReturnCode.NOT_SUPPORTED, ReturnCode.INVALID_ARGUMENT])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_field_that_is_refused_leaves_it_to_the_call(case: Case, code: ReturnCode) -> None:
    """INVALID_ARGUMENT is how a driver answers an id that is newer than itself."""
    metric, labels, field, call, move, value = case
    with bench("h20x2") as cards:
        cards.node.gpus[0].refuse_field(field, code)
        move(cards.node.gpus[0])
        gpu = cards.read()
        assert gpu.value(metric, *labels) == pytest.approx(value)
        assert metric not in gpu.absent
        assert cards.node.calls(call, 0) > 0


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_what_neither_gives_is_absent_for_the_reason_of_the_call(case: Case) -> None:
    metric, labels, field, call, _, _ = case
    with bench("h20x2") as cards:
        cards.node.gpus[0].refuse_field(field, ReturnCode.NOT_SUPPORTED)
        cards.node.gpus[0].refuse(call, ReturnCode.NO_PERMISSION)
        gpu = cards.read()
        assert gpu.value(metric, *labels) is None
        others = {key for key in gpu.readings.get(metric, {}) if key != labels}
        assert gpu.absent.get(metric) is (None if others else Reason.NO_PERMISSION)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_while_fields_fail_altogether_the_calls_stand_in(case: Case) -> None:
    metric, labels, _, _, move, value = case
    with bench("h20x2") as cards:
        move(cards.node.gpus[0])
        cards.node.inject("nvmlDeviceGetFieldValues", error=ReturnCode.UNKNOWN, gpu=0)
        assert cards.read().value(metric, *labels) == pytest.approx(value)
        cards.node.release()
        asked = cards.node.calls("nvmlDeviceGetPowerUsage", 0)
        assert cards.read_all_tiers().value(metric, *labels) == pytest.approx(value)
        assert cards.node.calls("nvmlDeviceGetPowerUsage", 0) == asked, "an error is no refusal: the field is asked again"


def test_a_lost_card_ends_the_tick_before_any_call_stands_in() -> None:
    with bench("h20x2") as cards:
        cards.read()
        cards.node.inject("nvmlDeviceGetFieldValues", error=ReturnCode.GPU_IS_LOST, gpu=0)
        with pytest.raises(NvmlFailure):
            cards.read(after=1.0)
        assert cards.node.calls("nvmlDeviceGetPowerUsage", 0) == 0


@pytest.mark.parametrize("driver", ["510.47.03", "520.61.05", "525.60.13", "530.30.02", "535.183.01"])
def test_old_drivers_give_the_same_numbers_by_field_or_call(driver: str) -> None:
    """Fields 185 and 190 came with 535; the others are older than all of these."""
    with bench("driver535", driver=driver) as cards:
        for _, _, _, _, move, _ in CASES:
            move(cards.node.gpus[0])
        gpu = cards.read()
        assert gpu.value(m.GPU_POWER) == pytest.approx(321.5)
        assert gpu.value(m.GPU_POWER_LIMIT) == 400.0
        assert gpu.value(m.GPU_ENERGY) == 12.5
        assert gpu.value(m.GPU_ECC_ERRORS, "corrected") == 4
        assert gpu.absent[m.GPU_RECOVERY_ACTION] is Reason.NOT_SUPPORTED
        assert all(run.success for run in cards.runs[0].values())


def test_ecc_off_is_not_supported_by_either_way() -> None:
    with bench("h20x2") as cards:
        cards.node.gpus[0].set_ecc(False)
        gpu = cards.read()
        absent = {m.GPU_ECC_ERRORS, m.GPU_ECC_ERRORS_LIFETIME}
        assert {gpu.absent[metric] for metric in absent} == {Reason.NOT_SUPPORTED}
        assert cards.runs[0]["ecc"].success


# ------------------------------------------------------------------------------------------------------- PCIe throughput
def with_throughput(*names: str) -> tuple[Collector, ...]:
    return tuple(collector for collector in registry.ALL if collector.name in {"identity", "pcie_throughput", *names})


def pcie(gpu: Gpu) -> tuple[object, object]:
    return gpu.value(m.GPU_PCIE_TX), gpu.value(m.GPU_PCIE_RX)


def test_the_call_that_blocks_is_not_made_unless_asked_for() -> None:
    assert "pcie_throughput" not in {collector.name for collector in registry.enabled({})}
    assert "pcie_throughput" in {collector.name for collector in registry.enabled({"pcie_throughput": True})}
    with bench("pcie-x2") as cards:
        assert cards.read().absent[m.GPU_PCIE_TX] is Reason.NOT_SUPPORTED
        assert cards.node.calls("nvmlDeviceGetPcieThroughput") == 0


def test_gpm_wins_where_it_gives_the_throughput() -> None:
    with bench("h20x2", collectors=with_throughput("gpm")) as cards:
        card = cards.node.gpus[0]
        card.set_gpm(Gpm.PCIE_TX_PER_SEC, 2.0)
        card.set_gpm(Gpm.PCIE_RX_PER_SEC, 3.0)
        card.set_pcie_throughput(tx=9_000_000, rx=9_000_000)
        cards.read()
        assert pcie(cards.read(after=1.0)) == (pytest.approx(2 << 20), pytest.approx(3 << 20))
        asked = cards.node.calls("nvmlDeviceGetPcieThroughput", 0)
        for _ in range(10):
            assert pcie(cards.read(after=1.0)) == (pytest.approx(2 << 20), pytest.approx(3 << 20))
        assert cards.node.calls("nvmlDeviceGetPcieThroughput", 0) == asked


@pytest.mark.parametrize("names", [(), ("gpm",)])
def test_without_gpm_the_call_gives_it_and_the_refusal_of_gpm_is_not_told(names: tuple[str, ...]) -> None:
    with bench("h20x2", collectors=with_throughput(*names)) as cards:
        cards.node.inject("nvmlGpmSampleGet", error=ReturnCode.NO_PERMISSION)
        cards.node.gpus[0].set_pcie_throughput(tx=1_000_000, rx=2_000_000)
        for gpu in (cards.read(), cards.read(after=1.0), cards.read(after=5.0)):
            assert pcie(gpu) == (1_000_000, 2_000_000)
            assert m.GPU_PCIE_TX not in gpu.absent
        assert (m.GPU_SM_ACTIVE in gpu.absent) is bool(names)
