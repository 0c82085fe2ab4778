"""Process lists in a container, by driver: what is known, and what is absent rather than 0 or nobody."""

from __future__ import annotations

import logging

import pytest
from poise.exporter import metrics as m
from poise.exporter.nvml.process_list import Trust, trust
from poise.exporter.nvml.sampler import Sampler
from poise.exporter.pid_namespace import PidNamespace
from poise.exporter.snapshot import GpuProcess, Reason
from poise.testbed.nvml.gpu import Process

from tests.simulated_cards import bench, simulated_library
from tests.waiting import wait_until

HOST, CONTAINER, MIXED = PidNamespace.HOST, PidNamespace.CONTAINER, PidNamespace.MIXED
GIB = 1 << 30


@pytest.mark.parametrize(
    ("namespace", "driver", "pids", "zero_sizes", "complete"),
    [
        (HOST, (470, 57, 2), True, True, True),
        (HOST, (550, 54, 14), True, True, True),
        (HOST, (580, 95, 5), True, True, True),
        (HOST, (), True, True, True),
        (CONTAINER, (525, 60, 13), False, False, False),
        (CONTAINER, (535, 104, 5), False, False, False),
        (CONTAINER, (535, 113, 1), True, False, False),
        (CONTAINER, (535, 183, 1), True, False, False),
        (CONTAINER, (550, 54, 14), True, False, False),
        (CONTAINER, (560, 35, 3), True, False, False),
        (CONTAINER, (565, 57, 1), True, True, False),
        (CONTAINER, (570, 86, 15), True, True, False),
        (CONTAINER, (580, 95, 5), True, True, False),
        (CONTAINER, (), False, False, False),
        (MIXED, (580, 95, 5), False, False, False),
    ],
)
def test_what_a_list_is_worth(namespace: PidNamespace, driver: tuple[int, ...], pids: bool, zero_sizes: bool, complete: bool) -> None:
    worth = trust(namespace, driver)
    assert (worth.pids, worth.zero_sizes, worth.complete) == (pids, zero_sizes, complete)
    assert bool(worth.missing) is not (pids and zero_sizes), "what is missing is said"
    assert trust(HOST, driver) == Trust()


def test_on_the_node_all_is_known_whatever_the_driver() -> None:
    for driver in ("535.104.05", "560.35.03", "580.95.05"):
        with bench("h20x2", driver=driver) as cards:
            cards.node.gpus[0].set_processes([Process(100, 3 * GIB), Process(200, 0)])
            gpu = cards.read()
            assert gpu.processes == (GpuProcess(100, 3 * GIB), GpuProcess(200, 0))
            assert gpu.processes_complete
            assert not {m.GPU_PROCESS_MEMORY, m.GPU_FOREIGN_MEMORY} & set(gpu.absent)


def test_an_old_driver_tells_a_container_the_nodes_pids_so_that_nobody_is_named() -> None:
    with bench("h20x2", driver="535.104.05", pid_namespace=CONTAINER) as cards:
        cards.node.gpus[0].set_processes([Process(100, 3 * GIB)])
        gpu = cards.read()
        assert gpu.processes is None
        assert gpu.absent[m.GPU_PROCESS_MEMORY] is gpu.absent[m.GPU_FOREIGN_MEMORY] is Reason.NOT_SUPPORTED
        assert cards.runs[0]["processes"].success, "an absence is no failure"


@pytest.mark.parametrize("driver", ["535.183.01", "550.54.14", "560.35.03"])
def test_the_size_0_of_these_drivers_in_a_container_is_unknown(driver: str) -> None:
    with bench("h20x2", driver=driver, pid_namespace=CONTAINER) as cards:
        cards.node.gpus[0].set_processes([Process(100, 0), Process(200, 0)])
        gpu = cards.read()
        assert gpu.processes == (GpuProcess(100, None), GpuProcess(200, None)), "who is there is known"
        assert gpu.absent[m.GPU_PROCESS_MEMORY] is Reason.NOT_SUPPORTED
        assert gpu.absent[m.GPU_FOREIGN_MEMORY] is Reason.NOT_SUPPORTED
        assert not gpu.processes_complete


@pytest.mark.parametrize("driver", ["565.57.01", "570.86.15", "580.95.05"])
def test_newer_drivers_tell_a_container_the_size_of_what_it_can_see(driver: str) -> None:
    with bench("h20x2", driver=driver, pid_namespace=CONTAINER) as cards:
        cards.node.gpus[0].set_processes([Process(100, 3 * GIB), Process(200, 0)])
        gpu = cards.read()
        assert gpu.processes == (GpuProcess(100, 3 * GIB), GpuProcess(200, 0))
        assert m.GPU_PROCESS_MEMORY not in gpu.absent
        assert gpu.absent[m.GPU_FOREIGN_MEMORY] is Reason.NOT_SUPPORTED, "others may hold memory unseen"
        assert not gpu.processes_complete


def test_a_proc_of_another_namespace_is_not_joined_with_the_drivers_pids() -> None:
    with bench("h20x2", pid_namespace=MIXED) as cards:
        cards.node.gpus[0].set_processes([Process(100, 3 * GIB)])
        assert cards.read().processes is None


def test_what_is_missing_and_the_way_out_are_logged_once_per_driver(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with simulated_library("h20x2") as (node, library):
        node.load_driver("550.54.14")
        sampler = Sampler((), 0.1, library=library, pid_namespace=CONTAINER)
        sampler.start()
        try:
            wait_until(lambda: bool(sampler.view().driver.driver), "the driver is there")
        finally:
            sampler.stop()
            assert sampler.join(60.0)
    assert caplog.text.count("how much device memory a process holds is not known") == 1
    assert "hostPID: true" in caplog.text
    assert "565.57.01" in caplog.text
