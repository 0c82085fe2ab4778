"""Cards and drivers that come and go, and drivers that know less."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from poise.testbed.nvml.codes import ReturnCode
from poise.testbed.nvml.node import SimulatedNode
from poise.testbed.nvml.profiles import PROFILES

from tests.simulated import Simulation
from tests.unit.testbed.nvml.readings import field_number

# ---- lost and vanished cards ----


def test_a_lost_card_answers_so_everywhere_and_the_other_goes_on(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n = simulation.pynvml
    n.nvmlInit()
    first, second = (n.nvmlDeviceGetHandleByIndex(index) for index in range(2))
    simulation.node.lose(1)
    for call in (
        lambda: n.nvmlDeviceGetHandleByIndex(1),
        lambda: n.nvmlDeviceGetHandleByUUID(simulation.node.gpus[1].uuid),
        lambda: n.nvmlDeviceGetUtilizationRates(second),
        lambda: n.nvmlDeviceGetFieldValues(second, [83]),
        lambda: n.nvmlDeviceGetComputeRunningProcesses(second),
    ):
        with pytest.raises(n.NVMLError_GpuIsLost):
            call()
    assert n.nvmlDeviceGetCount() == 2
    assert n.nvmlDeviceGetPowerUsage(first) == 75000


def test_a_card_that_returns_answers_through_the_same_handle(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, node = simulation.pynvml, simulation.node
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(1)
    node.gpus[1].add_energy(5)
    node.lose(1, ReturnCode.RESET_REQUIRED)
    with pytest.raises(n.NVMLError_ResetRequired):
        n.nvmlDeviceGetTotalEnergyConsumption(handle)
    node.restore(1)
    assert n.nvmlDeviceGetTotalEnergyConsumption(handle) == 5000


def test_a_vanished_card_leaves_the_count_at_the_next_init_and_indices_move(
    simulate: Callable[[str], Simulation],
) -> None:
    simulation = simulate("h100x8")
    n, node = simulation.pynvml, simulation.node
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(2)
    node.vanish(2)
    assert n.nvmlDeviceGetCount() == 8
    with pytest.raises(n.NVMLError_GpuIsLost):
        n.nvmlDeviceGetName(handle)
    n.nvmlShutdown()
    n.nvmlInit()
    assert n.nvmlDeviceGetCount() == 7
    assert n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(2)) == node.gpus[3].uuid
    assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(node.gpus[7].uuid)) == 6
    assert n.nvmlDeviceGetMinorNumber(n.nvmlDeviceGetHandleByIndex(6)) == 7
    with pytest.raises(n.NVMLError_NotFound):
        n.nvmlDeviceGetHandleByUUID(node.gpus[2].uuid)
    with pytest.raises(n.NVMLError_InvalidArgument):
        n.nvmlDeviceGetHandleByIndex(7)
    node.restore(2)
    n.nvmlShutdown()
    n.nvmlInit()
    assert n.nvmlDeviceGetCount() == 8


# ---- sessions ----


def test_nothing_answers_before_init_and_after_shutdown(simulate: Callable[[str], Simulation]) -> None:
    n = simulate("h20x2").pynvml
    with pytest.raises(n.NVMLError_Uninitialized):
        n.nvmlDeviceGetCount()
    n.nvmlInit()
    n.nvmlInit()
    n.nvmlShutdown()
    assert n.nvmlDeviceGetCount() == 2
    n.nvmlShutdown()
    for call in (n.nvmlDeviceGetCount, n.nvmlShutdown, n.nvmlSystemGetDriverVersion):
        with pytest.raises(n.NVMLError_Uninitialized):
            call()


def test_a_handle_dies_with_its_session(simulate: Callable[[str], Simulation]) -> None:
    n = simulate("h20x2").pynvml
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    n.nvmlShutdown()
    n.nvmlInit()
    with pytest.raises(n.NVMLError_InvalidArgument):
        n.nvmlDeviceGetPowerUsage(handle)
    assert n.nvmlDeviceGetPowerUsage(n.nvmlDeviceGetHandleByIndex(0)) == 75000


@pytest.mark.parametrize("code", [ReturnCode.DRIVER_NOT_LOADED, ReturnCode.LIB_RM_VERSION_MISMATCH])
def test_a_driver_that_is_reloaded_kills_sessions_and_starts_its_counters_again(
    code: ReturnCode, simulate: Callable[[str], Simulation]
) -> None:
    simulation = simulate("h20x2")
    n, node = simulation.pynvml, simulation.node
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    node.gpus[0].add_energy(100)
    node.gpus[0].add_ecc_errors(3, uncorrected=False)
    node.unload_driver(code)
    for call in (lambda: n.nvmlDeviceGetPowerUsage(handle), n.nvmlDeviceGetCount):
        with pytest.raises(n.NVMLError_Unknown):
            call()
    n.nvmlShutdown()
    with pytest.raises(n.NVMLError) as raised:
        n.nvmlInit()
    assert raised.value.value == code
    node.load_driver("580.105.08")
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    assert n.nvmlSystemGetDriverVersion() == "580.105.08"
    assert n.nvmlDeviceGetTotalEnergyConsumption(handle) == 0
    assert n.nvmlDeviceGetTotalEccErrors(handle, 0, n.NVML_VOLATILE_ECC) == 0
    assert n.nvmlDeviceGetTotalEccErrors(handle, 0, n.NVML_AGGREGATE_ECC) == 3


def test_init_that_fails_leaves_sessions_alone(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n = simulation.pynvml
    n.nvmlInit()
    simulation.node.fail_init(ReturnCode.NO_PERMISSION)
    assert n.nvmlDeviceGetCount() == 2
    n.nvmlShutdown()
    with pytest.raises(n.NVMLError_NoPermission):
        n.nvmlInit()


# ---- what a driver branch knows ----


def test_driver_535_lacks_the_symbols_that_came_later(simulate: Callable[[str], Simulation]) -> None:
    n = simulate("driver535").pynvml
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    for call in (
        lambda: n.nvmlDeviceGetTemperatureV(handle, 0),
        lambda: n.nvmlDeviceGetMarginTemperature(handle),
        lambda: n.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(n.c_nvmlGpuFabricInfo_v2_t())),
        lambda: n.nvmlDeviceGetProcessesUtilizationInfo(handle, 0),
    ):
        with pytest.raises(n.NVMLError_FunctionNotFound):
            call()
    assert n.nvmlDeviceGetTemperature(handle, 0) == 30
    assert n.nvmlDeviceGetCurrentClocksEventReasons(handle) == 1
    assert n.nvmlDeviceGetMemoryInfo(handle, version=n.nvmlMemory_v2).total == 85899345920


def test_driver_535_fails_unknown_fields_one_by_one(simulate: Callable[[str], Simulation]) -> None:
    n = simulate("driver535").pynvml
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    values = n.nvmlDeviceGetFieldValues(handle, [83, 186, 230, 251, 269, 91])
    assert [field_number(value) for value in values] == [0, 45000, "error 2", "error 2", "error 2", 12]


@pytest.mark.parametrize(
    ("version", "present", "absent"),
    [
        ("570.172.08", (), (251, 252, 253, 269, 270, 271)),
        ("575.57.08", (251, 252, 253), (269, 270, 271)),
        ("580.65.06", (251, 252, 253), (269, 270, 271)),
        ("580.95.05", (269, 270, 271), (251, 252, 253)),
        ("590.44.01", (269, 270, 271), (251, 252, 253)),
    ],
)
def test_clock_event_counters_stand_where_the_driver_has_them(
    version: str, present: tuple[int, ...], absent: tuple[int, ...], simulate: Callable[[str], Simulation]
) -> None:
    simulation = simulate("h20x2")
    n, node = simulation.pynvml, simulation.node
    node.load_driver(version)
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    answers = {value.fieldId: value.nvmlReturn for value in n.nvmlDeviceGetFieldValues(handle, [*present, *absent])}
    assert {field for field, code in answers.items() if code == 0} == set(present)


def test_links_from_18_on_are_an_argument_error_until_615(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, node = simulation.pynvml, simulation.node
    n.nvmlInit()
    with pytest.raises(n.NVMLError_InvalidArgument):
        n.nvmlDeviceGetNvLinkState(n.nvmlDeviceGetHandleByIndex(0), 18)
    n.nvmlShutdown()
    node.load_driver("615.10.01")
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(n.NVMLError_NotSupported):
        n.nvmlDeviceGetNvLinkState(handle, 18)
    with pytest.raises(n.NVMLError_InvalidArgument):
        n.nvmlDeviceGetNvLinkState(handle, 36)


def test_a_struct_of_another_version_is_told(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n = simulation.pynvml
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(n.NVMLError) as raised:
        n.nvmlDeviceGetMemoryInfo(handle, version=0x1000028)
    assert raised.value.value == n.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    support = n.c_nvmlGpmSupport_t()
    support.version = 7
    assert n.nvmlLib.nvmlGpmQueryDeviceSupport(handle, ctypes.byref(support)) == 25


def test_fabric_info_v3_needs_driver_580(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h100x8")  # driver 570
    n, node = simulation.pynvml, simulation.node
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    older, newer = n.c_nvmlGpuFabricInfo_v2_t(), n.c_nvmlGpuFabricInfo_v3_t()
    with pytest.raises(n.NVMLError) as raised:
        n.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(newer))
    assert raised.value.value == n.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    n.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(older))
    assert (older.state, older.status) == (3, 0)
    node.load_driver("580.95.05")
    n.nvmlShutdown()
    n.nvmlInit()
    n.nvmlDeviceGetGpuFabricInfoV(n.nvmlDeviceGetHandleByIndex(0), ctypes.byref(newer))
    assert (newer.state, newer.healthSummary) == (3, 1)


def test_what_nobody_wrote_is_not_supported_and_counted(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, node = simulation.pynvml, simulation.node
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(1)
    with pytest.raises(n.NVMLError_NotSupported):
        n.nvmlDeviceGetAutoBoostedClocksEnabled(handle)
    assert node.calls("nvmlDeviceGetAutoBoostedClocksEnabled", 1) == 1
    node.lose(1)
    with pytest.raises(n.NVMLError_GpuIsLost):
        n.nvmlDeviceGetAutoBoostedClocksEnabled(handle)


def test_the_soname_resolves_to_a_library_opened_by_its_path(make_node: Callable[[str], SimulatedNode]) -> None:
    """What a program may do that cannot set LD_LIBRARY_PATH in time."""
    node = make_node("h20x2")
    environment = node.environment()
    library = environment.pop("LD_LIBRARY_PATH").split(":")[0] + "/libnvidia-ml.so.1"
    code = f"import ctypes; ctypes.CDLL({library!r}, ctypes.RTLD_GLOBAL)\nimport pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount())"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"


def test_driver_470_lacks_memory_v2_and_process_lists_v3(tmp_path: Path, simulate: Callable[[str], Simulation]) -> None:
    profile = tmp_path / "driver470.toml"
    profile.write_text((PROFILES / "driver535.toml").read_text(encoding="utf-8").replace("535.183.01", "470.256.02"), encoding="utf-8")
    n = simulate(str(profile)).pynvml
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(n.NVMLError_FunctionNotFound):
        n.nvmlDeviceGetMemoryInfo(handle, version=n.nvmlMemory_v2)
    assert n.nvmlDeviceGetMemoryInfo(handle).total == 85899345920
    with pytest.raises(n.NVMLLibraryMismatchError):
        n.nvmlDeviceGetComputeRunningProcesses(handle)
    assert n.nvmlDeviceGetComputeRunningProcesses_v2(handle) == []
    with pytest.raises(n.NVMLError_FunctionNotFound):
        n.nvmlDeviceGetCurrentClocksEventReasons(handle)
    assert n.nvmlDeviceGetCurrentClocksThrottleReasons(handle) == 1
