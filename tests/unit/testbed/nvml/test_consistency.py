"""Readers in other processes never see half of a change, and writers do not undo each other."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from poise.testbed.nvml.node import SimulatedNode

from tests.simulated import Simulation

GIB = 1 << 30
WRITES = 2000

# Reads until stdin closes; prints how often, and every reading in which the parts do not fit together.
READER = """
import sys, threading, pynvml as n
n.nvmlInit()
handle = n.nvmlDeviceGetHandleByIndex(0)
done = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
print("ready", flush=True)
reads, torn = 0, []
while not done.is_set():
    reads += 1
    memory = n.nvmlDeviceGetMemoryInfo(handle, version=n.nvmlMemory_v2)
    if memory.used and memory.total != memory.reserved + memory.used + memory.free:
        torn.append("memory")
    tx, rx, total = (v.value.ullVal for v in n.nvmlDeviceGetFieldValues(handle, [(138, 0), (139, 0), (138, 0xffffffff)]))
    if tx != rx or total != 2 * tx:
        torn.append((tx, rx, total))
    pids = {p.pid for p in n.nvmlDeviceGetComputeRunningProcesses_v3(handle)} if reads % 7 == 0 else {1}
    if len(pids) > 1:
        torn.append(pids)
print(reads, torn[:5])
"""


def test_what_is_changed_together_is_read_together(make_node: Callable[[str], SimulatedNode]) -> None:
    node = make_node("h20x2")
    card = node.gpus[0]
    with subprocess.Popen(
        [sys.executable, "-c", READER], env=node.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        for number in range(WRITES):
            with card.changing():
                card.set_memory_used((number % 60) * GIB)
                for link in range(2):
                    card.add_nvlink_bytes(link, tx=1 << 20)
                    card.add_nvlink_bytes(link, rx=1 << 20)
        reader.stdin.close()
        reads, torn = reader.stdout.read().strip().split(" ", 1)
    assert int(reads) > 0
    assert torn == "[]"


def _add_energy(path: Path, times: int) -> None:
    with SimulatedNode.open(path) as node:
        for _ in range(times):
            node.gpus[0].add_energy(1)


def test_two_processes_and_two_threads_add_up(make_node: Callable[[str], SimulatedNode]) -> None:
    node = make_node("h20x2")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_add_energy, args=(node.path, 500)) for _ in range(2)]
    threads = [threading.Thread(target=_add_energy, args=(node.path, 500)) for _ in range(2)]
    for worker in (*workers, *threads):
        worker.start()
    for worker in (*workers, *threads):
        worker.join(60)
    with node.gpus[0].changing() as card:
        assert card.energy_mj == 4 * 500 * 1000


KILLED_WRITER = """
import os, sys
from pathlib import Path
from poise.testbed.nvml.node import SimulatedNode
with SimulatedNode.open(Path(sys.argv[1])).gpus[0].changing() as card:
    card.power_mw = 99_000
    os._exit(9)
"""


def test_a_writer_that_dies_half_way_holds_nobody_up(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, node = simulation.pynvml, simulation.node
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    done = subprocess.run([sys.executable, "-c", KILLED_WRITER, str(node.path)], check=False)
    assert done.returncode == 9
    assert n.nvmlDeviceGetMemoryInfo(handle).used == 671088640
    assert n.nvmlDeviceGetPowerUsage(handle) == 99_000
    node.gpus[0].set_power(100)
    assert n.nvmlDeviceGetPowerUsage(handle) == 100_000


SLOW_WRITER = """
import sys
from pathlib import Path
from poise.testbed.nvml.node import SimulatedNode
card = SimulatedNode.open(Path(sys.argv[1])).gpus[0]
with card.changing() as state:
    state.memory_used_bytes = 1
    print("half", flush=True)
    sys.stdin.readline()
    state.memory_used_bytes = 2
"""


def test_a_reader_waits_for_a_writer_that_is_slow(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, node = simulation.pynvml, simulation.node
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    read: list[int] = []
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_WRITER, str(node.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == "half\n"
        reader = threading.Thread(target=lambda: read.append(n.nvmlDeviceGetMemoryInfo(handle, version=n.nvmlMemory_v2).used))
        reader.start()
        writer.stdin.write("\n")
        writer.stdin.close()
        reader.join(60)
    assert read == [2]
