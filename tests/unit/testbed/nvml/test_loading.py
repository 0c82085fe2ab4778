"""A process loads the simulated library as it would load NVIDIA's, and the node drives it live from another process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from poise.testbed.errors import TestbedError
from poise.testbed.nvml import library
from poise.testbed.nvml.node import SimulatedNode

from tests.simulated import Simulation, run_python

WATCH = """
import sys, pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
for line in sys.stdin:
    print(pynvml.nvmlDeviceGetPowerUsage(handle), flush=True)
"""


def test_another_process_finds_the_library_by_its_soname(make_node: Callable[[str], SimulatedNode]) -> None:
    node = make_node("h20x2")
    printed = run_python(
        node,
        "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount());print(n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByIndex(1)))",
    )
    assert printed.split("\n")[:2] == ["2", "Simulated NVIDIA H20-3e"]


def test_a_value_that_changes_is_seen_by_a_process_that_runs_already(make_node: Callable[[str], SimulatedNode]) -> None:
    node = make_node("h20x2")
    with subprocess.Popen(
        [sys.executable, "-c", WATCH], env=node.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for watts in (100.0, 321.5):
            node.gpus[0].set_power(watts)
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == f"{watts * 1000:.0f}\n"
        process.stdin.close()


def test_pynvml_of_this_process_is_as_before_afterwards(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    simulation.pynvml.nvmlInit()
    assert simulation.pynvml.nvmlDeviceGetCount() == 2


def test_the_library_is_built_once(tmp_path: Path) -> None:
    first = library.build(tmp_path)
    changed = first.stat().st_mtime_ns
    assert library.build(tmp_path) == first
    assert first.stat().st_mtime_ns == changed
    assert [path.name for path in tmp_path.rglob(".building-*")] == []


def test_a_missing_compiler_is_named_with_the_way_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(TestbedError, match=r"looked for cc, gcc, clang\).*apt-get install gcc"):
        library.build(tmp_path / "cache")


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")
    with pytest.raises(TestbedError, match="cannot build the simulated NVML library"):
        library.build(tmp_path)


def test_a_state_of_another_version_is_refused_on_both_sides(make_node: Callable[[str], SimulatedNode]) -> None:
    node = make_node("h20x2")
    environment = node.environment()
    content = bytearray(node.path.read_bytes())
    content[8] += 1  # the layout's number
    node.path.write_bytes(content)
    with pytest.raises(TestbedError, match="written by another version of poise: create it again"):
        SimulatedNode.open(node.path)
    code = "import pynvml as n\ntry: n.nvmlInit()\nexcept n.NVMLError as e: print(e.value)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "18\n"
    assert "written by another version of poise" in done.stderr


def test_a_missing_state_is_a_driver_that_is_not_loaded(make_node: Callable[[str], SimulatedNode]) -> None:
    node = make_node("h20x2")
    environment = node.environment()
    node.path.unlink()
    code = "import pynvml as n\ntry: n.nvmlInit()\nexcept n.NVMLError as e: print(e.value)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "9\n"
    assert str(node.path) in done.stderr
