"""What collectors read where several calls meet, and what a call that fails costs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from poise.exporter import metrics as m
from poise.exporter.metrics import Metric
from poise.exporter.nvml import registry
from poise.exporter.nvml.library import NvmlFailure
from poise.exporter.nvml.processes import OTHERS_SECONDS
from poise.exporter.nvml.reader import CardSilent
from poise.exporter.snapshot import GpuProcess, Reason
from poise.testbed.nvml import profiles
from poise.testbed.nvml.codes import LinkState, ProcessKind, ReturnCode, Threshold
from poise.testbed.nvml.gpu import Process

from tests.simulated_cards import START, Bench, bench


@pytest.fixture
def h20() -> Iterator[Bench]:
    with bench("h20x2") as cards:
        yield cards


@pytest.mark.parametrize("profile", profiles.names())
def test_identity_tells_the_card(profile: str) -> None:
    with bench(profile) as cards:
        for position, simulated in enumerate(cards.node.gpus):
            gpu = cards.read(position)
            assert (gpu.index, gpu.uuid) == (position, simulated.uuid)
            assert gpu.identity.name == simulated.name
            assert gpu.identity.serial == simulated.serial
            assert gpu.identity.minor == str(simulated.minor)
            assert gpu.identity.pci_bus_id == simulated.pci_bus_id.lower()[4:]
            assert gpu.identity.architecture
            assert gpu.simulated
            assert gpu.sampled_at == START


def test_core_temperature_moves_its_margin_too(h20: Bench) -> None:
    before = h20.read()
    margin, core = before.value(m.GPU_TEMPERATURE_MARGIN), before.value(m.GPU_TEMPERATURE, "core")
    assert margin is not None
    assert core is not None
    h20.node.gpus[0].set_temperature(int(core) + 20)
    after = h20.read_all_tiers()
    assert after.value(m.GPU_TEMPERATURE, "core") == core + 20
    assert after.value(m.GPU_TEMPERATURE_MARGIN) == margin - 20


def test_margin_comes_from_the_slowdown_threshold_where_the_driver_does_not_tell_it() -> None:
    with bench("driver535") as cards:
        cards.node.gpus[0].set_threshold(Threshold.SLOWDOWN, 93)
        cards.node.gpus[0].set_temperature(50)
        gpu = cards.read()
        assert not cards.driver.library.has("nvmlDeviceGetMarginTemperature")
        assert gpu.value(m.GPU_TEMPERATURE_MARGIN) == 43


def test_memory_used_and_free_add_up_with_the_reserved_part(h20: Bench) -> None:
    h20.node.gpus[0].set_memory_used(10 << 30)
    gpu = h20.read()
    assert gpu.value(m.GPU_MEMORY_USED) == 10 << 30
    parts = [gpu.value(metric) for metric in (m.GPU_MEMORY_USED, m.GPU_MEMORY_FREE, m.GPU_MEMORY_RESERVED)]
    assert sum(part for part in parts if part is not None) == gpu.value(m.GPU_MEMORY_TOTAL)


def test_a_link_that_is_down_says_so_and_has_no_bandwidth(h20: Bench) -> None:
    up = h20.read()
    assert up.value(m.GPU_NVLINK_UP, "4") == 1
    assert up.value(m.GPU_NVLINK_BANDWIDTH, "4") == pytest.approx(26562e6)
    h20.node.gpus[0].set_link_up(4, False)
    down = h20.read_all_tiers()
    assert down.value(m.GPU_NVLINK_UP, "4") == 0
    assert down.value(m.GPU_NVLINK_UP, "5") == 1
    assert down.value(m.GPU_NVLINK_BANDWIDTH, "4") is None
    assert m.GPU_NVLINK_BANDWIDTH not in down.absent
    assert {key for key in down.readings[m.GPU_NVLINK_PEER_INFO] if key[0] == "4"} == {
        key for key in up.readings[m.GPU_NVLINK_PEER_INFO] if key[0] == "4"
    }


def test_a_sleeping_link_is_up(h20: Bench) -> None:
    h20.node.gpus[0].set_link_state(1, LinkState.SLEEP)
    assert h20.read().value(m.GPU_NVLINK_UP, "1") == 1


def test_two_cards_joined_by_bridges_name_each_other() -> None:
    with bench("driver535") as cards:
        first, second = cards.node.gpus
        gpu = cards.read()
        assert set(gpu.readings[m.GPU_PAIR_INFO]) == {("1", second.uuid, "NV12", "ok")}
        peers = set(gpu.readings[m.GPU_NVLINK_PEER_INFO])
        assert peers == {(str(link), "gpu", second.uuid, second.pci_bus_id.lower()[4:]) for link in range(12)}
        assert set(cards.read(1).readings[m.GPU_PAIR_INFO]) == {("0", first.uuid, "NV12", "ok")}


def test_cards_behind_switches_are_joined_by_all_their_links() -> None:
    with bench("h100x8") as cards:
        gpu = cards.read()
        assert {labels[2:] for labels in gpu.readings[m.GPU_PAIR_INFO]} == {("NV18", "ok")}
        assert len(gpu.readings[m.GPU_PAIR_INFO]) == 7
        assert {labels[1:3] for labels in gpu.readings[m.GPU_NVLINK_PEER_INFO]} == {("switch", "")}


def test_cards_without_links_are_joined_by_their_path_over_pcie() -> None:
    with bench("pcie-x2") as cards:
        (labels,) = cards.read().readings[m.GPU_PAIR_INFO]
        assert labels[2] in ("PIX", "PXB", "PHB", "NODE", "SYS")


def test_pairs_are_asked_once(h20: Bench) -> None:
    h20.read()
    asked = h20.node.calls("nvmlDeviceGetTopologyCommonAncestor", 0)
    h20.read_all_tiers()
    assert h20.node.calls("nvmlDeviceGetTopologyCommonAncestor", 0) == asked == 1


def test_margin_from_the_slowdown_threshold_without_a_core_temperature_is_absent_for_the_same_reason() -> None:
    with bench("driver535") as cards:
        assert cards.read().value(m.GPU_TEMPERATURE_MARGIN) is not None
        cards.node.inject("nvmlDeviceGetTemperature", error=ReturnCode.UNKNOWN, gpu=0)
        gpu = cards.read(after=1.0)
        assert gpu.value(m.GPU_TEMPERATURE_MARGIN) is None
        assert gpu.absent[m.GPU_TEMPERATURE_MARGIN] is Reason.ERROR


def test_processes_without_sizes_say_so(h20: Bench) -> None:
    h20.node.gpus[0].set_processes([Process(100, None), Process(200, None)])
    gpu = h20.read()
    assert gpu.processes == (GpuProcess(100, None), GpuProcess(200, None))
    assert gpu.absent[m.GPU_PROCESS_MEMORY] is Reason.NOT_SUPPORTED


def test_processes_of_all_lists_are_there_once(h20: Bench) -> None:
    h20.node.gpus[0].set_processes(
        [
            Process(300, 5 << 30),
            Process(100, 2 << 30, ProcessKind.GRAPHICS),
            Process(200, None),
        ]
    )
    assert h20.read().processes == (GpuProcess(100, 2 << 30), GpuProcess(200, None), GpuProcess(300, 5 << 30))
    h20.node.gpus[0].set_processes([])
    assert h20.read(after=OTHERS_SECONDS).processes == ()


def test_compute_processes_are_listed_in_every_tick_and_others_more_rarely(h20: Bench) -> None:
    h20.read()
    h20.node.gpus[0].set_processes([Process(300, 5 << 30), Process(100, 2 << 30, ProcessKind.MPS)])
    assert h20.read(after=1.0).processes == (GpuProcess(300, 5 << 30),)
    assert h20.read(after=OTHERS_SECONDS - 1.0).processes == (GpuProcess(100, 2 << 30), GpuProcess(300, 5 << 30))
    h20.node.gpus[0].set_processes([])
    assert h20.read(after=1.0).processes == (GpuProcess(100, 2 << 30),)
    assert h20.read(after=OTHERS_SECONDS - 1.0).processes == ()


def test_more_processes_than_the_buffer_holds_are_all_listed(h20: Bench) -> None:
    h20.node.gpus[0].set_processes([Process(1000 + number, number << 20) for number in range(64)])
    processes = h20.read().processes
    assert processes is not None
    assert [process.pid for process in processes] == list(range(1000, 1064))


def test_an_unknown_process_list_is_none_and_not_empty(h20: Bench) -> None:
    h20.node.inject("nvmlDeviceGetComputeRunningProcesses_v3", error=ReturnCode.NO_PERMISSION)
    gpu = h20.read()
    assert gpu.processes is None
    assert gpu.absent[m.GPU_PROCESS_MEMORY] is Reason.NO_PERMISSION
    assert gpu.value(m.GPU_POWER) is not None


# -------------------------------------------------------------------------------------------------------- failing calls
@pytest.mark.parametrize(
    ("function", "code", "metric", "reason"),
    [
        ("nvmlDeviceGetMemoryInfo_v2", ReturnCode.UNKNOWN, m.GPU_MEMORY_USED, Reason.ERROR),
        ("nvmlDeviceGetMemoryInfo_v2", ReturnCode.TIMEOUT, m.GPU_MEMORY_USED, Reason.TIMEOUT),
        ("nvmlDeviceGetMemoryInfo_v2", ReturnCode.NOT_SUPPORTED, m.GPU_MEMORY_USED, Reason.NOT_SUPPORTED),
        ("nvmlDeviceGetMemoryInfo_v2", ReturnCode.NO_PERMISSION, m.GPU_MEMORY_USED, Reason.NO_PERMISSION),
        ("nvmlDeviceGetMemoryInfo_v2", ReturnCode.FUNCTION_NOT_FOUND, m.GPU_MEMORY_USED, Reason.FUNCTION_NOT_FOUND),
        ("nvmlDeviceGetUtilizationRates", ReturnCode.UNKNOWN, m.GPU_UTILIZATION, Reason.ERROR),
        ("nvmlDeviceGetFieldValues", ReturnCode.UNKNOWN, m.GPU_NVLINK_TX, Reason.ERROR),
        ("nvmlDeviceGetFieldValues", ReturnCode.UNKNOWN, m.GPU_NVLINK_TOTAL_RX, Reason.ERROR),
        ("nvmlDeviceGetNvLinkState", ReturnCode.UNKNOWN, m.GPU_NVLINK_UP, Reason.ERROR),
        ("nvmlDeviceGetClockInfo", ReturnCode.UNKNOWN, m.GPU_CLOCK, Reason.ERROR),
        ("nvmlDeviceGetTemperatureV", ReturnCode.UNKNOWN, m.GPU_TEMPERATURE_MARGIN, None),
    ],
)
def test_a_failing_call_costs_its_own_series_only(
    function: str, code: ReturnCode, metric: Metric, reason: Reason | None, h20: Bench
) -> None:
    before = h20.read()
    injection = h20.node.inject(function, error=code)
    gpu = h20.read_all_tiers()
    assert gpu.absent.get(metric) is reason
    assert (metric in gpu.readings) is (reason is None)
    others = {other for other in before.readings if other not in gpu.readings}
    collectors = [collector for collector in registry.ALL if others & set(collector.metrics)]
    limit = 3 if function == "nvmlDeviceGetFieldValues" else 1
    assert len(collectors) <= limit, "one failing call costs one collector's series at most"
    failed = {name for name, run in h20.runs[0].items() if not run.success}
    assert bool(failed) is (code in (ReturnCode.UNKNOWN, ReturnCode.TIMEOUT))
    injection.release()


def test_a_passing_error_is_gone_with_the_next_tick(h20: Bench) -> None:
    h20.node.inject("nvmlDeviceGetMemoryInfo_v2", error=ReturnCode.UNKNOWN, times=1)
    assert h20.read().value(m.GPU_MEMORY_USED) is None
    run = h20.runs[0]["memory"]
    assert (run.success, run.failures, run.last_success) == (False, 1, None)
    gpu = h20.read(after=1.0)
    assert gpu.value(m.GPU_MEMORY_USED) is not None
    assert m.GPU_MEMORY_USED not in gpu.absent
    run = h20.runs[0]["memory"]
    assert (run.success, run.failures, run.last_success) == (True, 1, START + 1.0)


def test_no_value_of_before_stands_in_for_one_that_fails(h20: Bench) -> None:
    assert h20.read().value(m.GPU_MEMORY_USED) is not None
    h20.node.inject("nvmlDeviceGetMemoryInfo_v2", error=ReturnCode.UNKNOWN)
    assert h20.read(after=1.0).value(m.GPU_MEMORY_USED) is None


def test_a_refused_call_is_not_made_again_until_prepared_anew(h20: Bench) -> None:
    h20.node.gpus[0].refuse("nvmlDeviceGetEncoderUtilization", ReturnCode.NOT_SUPPORTED)
    h20.read_all_tiers()
    asked = h20.node.calls("nvmlDeviceGetEncoderUtilization", 0)
    gpu = h20.read_all_tiers()
    assert h20.node.calls("nvmlDeviceGetEncoderUtilization", 0) == asked
    assert gpu.absent[m.GPU_ENCODER_UTILIZATION] is Reason.NOT_SUPPORTED
    h20.node.gpus[0].refuse("nvmlDeviceGetEncoderUtilization", None)
    h20.prepare()
    assert h20.read_all_tiers().value(m.GPU_ENCODER_UTILIZATION) == 0


@pytest.mark.parametrize("code", [ReturnCode.GPU_IS_LOST, ReturnCode.RESET_REQUIRED])
def test_a_lost_card_ends_the_tick(code: ReturnCode, h20: Bench) -> None:
    h20.read()
    h20.node.lose(0, code)
    with pytest.raises(NvmlFailure) as failure:
        h20.read(after=1.0)
    assert failure.value.code == code
    assert h20.read(1, after=1.0).up


def test_a_card_that_answers_nothing_is_silent_and_not_full_of_absences(h20: Bench) -> None:
    h20.read()
    h20.node.inject("*", error=ReturnCode.UNKNOWN, gpu=0)
    with pytest.raises(CardSilent):
        h20.read(after=1.0)


def test_fast_ticks_leave_slow_collectors_alone(h20: Bench) -> None:
    h20.read()
    asked = h20.node.calls("nvmlDeviceGetMaxClockInfo", 0)
    for _ in range(5):
        assert h20.read(after=1.0).value(m.GPU_CLOCK_MAX, "sm") is not None
    assert h20.node.calls("nvmlDeviceGetMaxClockInfo", 0) == asked


def test_all_fields_of_a_tick_are_asked_in_one_call(h20: Bench) -> None:
    h20.read()
    before = h20.node.calls("nvmlDeviceGetFieldValues", 0)
    h20.read(after=1.0)
    assert h20.node.calls("nvmlDeviceGetFieldValues", 0) == before + 1


def test_nothing_that_blocks_is_called(h20: Bench) -> None:
    for _ in range(3):
        h20.read_all_tiers()
    assert h20.node.calls("nvmlDeviceGetPcieThroughput") == 0
