"""Process lists in their three versions, and utilization by process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from poise.testbed.nvml.codes import ProcessKind, ReturnCode
from poise.testbed.nvml.gpu import Process
from poise.testbed.nvml.state import MAX_PROCESSES

from tests.simulated import Simulation

GIB = 1 << 30
START = 1_800_000_000


def test_a_list_has_pid_and_bytes_and_none_where_the_driver_tells_none(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n = simulation.pynvml
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    simulation.node.gpus[0].set_processes([Process(4242, 70 * GIB), Process(77, None)])
    for wrapper in (n.nvmlDeviceGetComputeRunningProcesses, n.nvmlDeviceGetComputeRunningProcesses_v2):
        assert [(entry.pid, entry.usedGpuMemory, entry.gpuInstanceId) for entry in wrapper(handle)] == [
            (4242, 70 * GIB, 0xFFFFFFFF),
            (77, None, 0xFFFFFFFF),
        ]
    simulation.node.gpus[0].set_processes([])
    assert n.nvmlDeviceGetComputeRunningProcesses(handle) == []


def test_a_missing_v3_is_pynvmls_library_mismatch(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n = simulation.pynvml
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    simulation.node.inject("nvmlDeviceGetComputeRunningProcesses_v3", error=ReturnCode.FUNCTION_NOT_FOUND)
    with pytest.raises(n.NVMLLibraryMismatchError):
        n.nvmlDeviceGetComputeRunningProcesses(handle)


def test_a_process_without_a_newer_sample_has_no_utilization(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, card = simulation.pynvml, simulation.node.gpus[0]
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(n.NVMLError_NotFound):
        n.nvmlDeviceGetProcessUtilization(handle, 0)
    card.set_processes([Process(1, GIB, sm_ratio=0.55, memory_ratio=0.2), Process(2, GIB)], at=START)
    samples = n.nvmlDeviceGetProcessUtilization(handle, 0)
    assert [(sample.pid, sample.timeStamp, sample.smUtil, sample.memUtil) for sample in samples] == [(1, START * 1_000_000, 55, 20)]
    with pytest.raises(n.NVMLError_NotFound):
        n.nvmlDeviceGetProcessUtilization(handle, START * 1_000_000)


def test_the_three_kinds_are_three_lists(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n = simulation.pynvml
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    simulation.node.gpus[0].set_processes([Process(index, 1, kind=kind) for index, kind in enumerate(ProcessKind)])
    assert [entry.pid for entry in n.nvmlDeviceGetComputeRunningProcesses(handle)] == [0]
    assert [entry.pid for entry in n.nvmlDeviceGetGraphicsRunningProcesses(handle)] == [1]
    assert [entry.pid for entry in n.nvmlDeviceGetMPSComputeRunningProcesses(handle)] == [2]


def test_a_card_holds_so_many_processes_and_no_more(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, card = simulation.pynvml, simulation.node.gpus[0]
    n.nvmlInit()
    card.set_processes([Process(pid, 1) for pid in range(MAX_PROCESSES)])
    assert len(n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(0))) == MAX_PROCESSES
    with pytest.raises(ValueError, match=f"a simulated card holds {MAX_PROCESSES}"):
        card.set_processes([Process(pid, 1) for pid in range(MAX_PROCESSES + 1)])
