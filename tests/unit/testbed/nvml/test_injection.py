"""Errors, delays and hangs put into calls, per function and card; and the counting of calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from poise.testbed.nvml.codes import ReturnCode
from poise.testbed.nvml.node import SimulatedNode
from poise.testbed.nvml.state import MAX_RULES

from tests.simulated import Simulation, run_python

DEADLINE = 30.0


def started(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """A thread that appends what `work` returns, or the exception that it raises."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results


def test_an_error_hits_one_function_of_one_card(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, node = simulation.pynvml, simulation.node
    n.nvmlInit()
    first, second = (n.nvmlDeviceGetHandleByIndex(index) for index in range(2))
    rule = node.inject("nvmlDeviceGetPowerUsage", error=ReturnCode.NO_PERMISSION, gpu=1)
    with pytest.raises(n.NVMLError_NoPermission):
        n.nvmlDeviceGetPowerUsage(second)
    assert n.nvmlDeviceGetPowerUsage(first) == 75000
    assert n.nvmlDeviceGetTemperature(second, 0) == 30
    assert rule.hits == 1
    rule.release()
    assert n.nvmlDeviceGetPowerUsage(second) == 75000
    assert not rule.active


@pytest.mark.parametrize("code", [code for code in ReturnCode if code != ReturnCode.SUCCESS])
def test_every_return_code_becomes_pynvmls_exception(code: ReturnCode, simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n = simulation.pynvml
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    simulation.node.inject("nvmlDeviceGetTemperature", error=code)
    with pytest.raises(n.NVMLError) as raised:
        n.nvmlDeviceGetTemperature(handle, 0)
    assert raised.value.value == code


def test_an_error_can_hit_a_number_of_calls(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n = simulation.pynvml
    n.nvmlInit()
    simulation.node.inject("nvmlDeviceGetCount_v2", error=ReturnCode.UNKNOWN, times=2)
    for _ in range(2):
        with pytest.raises(n.NVMLError_Unknown):
            n.nvmlDeviceGetCount()
    assert n.nvmlDeviceGetCount() == 2


def test_a_star_hits_every_function_of_a_card_and_finding_it(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n = simulation.pynvml
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(1)
    simulation.node.inject("*", error=ReturnCode.IRQ_ISSUE, gpu=1)
    for call in (
        lambda: n.nvmlDeviceGetHandleByIndex(1),
        lambda: n.nvmlDeviceGetName(handle),
        lambda: n.nvmlDeviceGetFieldValues(handle, [138]),
        lambda: n.nvmlDeviceGetAutoBoostedClocksEnabled(handle),  # one that only answers NOT_SUPPORTED
    ):
        with pytest.raises(n.NVMLError_IrqIssue):
            call()
    assert n.nvmlDeviceGetCount() == 2
    assert n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByIndex(0)) == "Simulated NVIDIA H20-3e"


@pytest.mark.parametrize("delay", [0.2, 50e-6])
def test_a_delay_passes_before_the_answer(delay: float, simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n = simulation.pynvml
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    simulation.node.inject("nvmlDeviceGetPowerUsage", delay=delay)
    began = time.monotonic()
    assert n.nvmlDeviceGetPowerUsage(handle) == 75000
    assert time.monotonic() - began >= delay


def test_a_hang_holds_its_card_until_released_and_no_other(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, node = simulation.pynvml, simulation.node
    n.nvmlInit()
    first, second = (n.nvmlDeviceGetHandleByIndex(index) for index in range(2))
    rule = node.inject("nvmlDeviceGetFieldValues", hang=True, gpu=1)
    thread, results = started(lambda: n.nvmlDeviceGetFieldValues(second, [83])[0].nvmlReturn)
    rule.wait_until_held(timeout=DEADLINE)
    assert n.nvmlDeviceGetFieldValues(first, [83])[0].nvmlReturn == 0
    assert thread.is_alive()
    rule.release()
    thread.join(DEADLINE)
    assert results == [0]


def test_a_held_call_comes_back_with_the_injected_error(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, node = simulation.pynvml, simulation.node
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    rule = node.inject("nvmlDeviceGetPowerUsage", hang=True, error=ReturnCode.GPU_IS_LOST)
    thread, results = started(lambda: n.nvmlDeviceGetPowerUsage(handle))
    rule.wait_until_held(timeout=DEADLINE)
    node.release()
    thread.join(DEADLINE)
    assert isinstance(results[0], n.NVMLError_GpuIsLost)


def test_a_call_that_was_held_sees_the_card_as_it_is_then(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, node = simulation.pynvml, simulation.node
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    rule = node.inject("nvmlDeviceGetPowerUsage", hang=True)
    thread, results = started(lambda: n.nvmlDeviceGetPowerUsage(handle))
    rule.wait_until_held(timeout=DEADLINE)
    node.lose(0)
    rule.release()
    thread.join(DEADLINE)
    assert isinstance(results[0], n.NVMLError_GpuIsLost)


def test_init_can_hang_and_fail_too(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, node = simulation.pynvml, simulation.node
    rule = node.inject("nvmlInitWithFlags", hang=True)
    thread, results = started(n.nvmlInit)
    rule.wait_until_held(timeout=DEADLINE)
    rule.release()
    thread.join(DEADLINE)
    assert results == [None]
    n.nvmlShutdown()
    node.inject("nvmlInitWithFlags", error=ReturnCode.INSUFFICIENT_RESOURCES)
    with pytest.raises(n.NVMLError_InsufficientResources):
        n.nvmlInit()


def test_a_call_in_another_process_is_held_and_released(make_node: Callable[[str], SimulatedNode]) -> None:
    node = make_node("h20x2")
    rule = node.inject("nvmlDeviceGetCount_v2", hang=True)
    thread, results = started(lambda: run_python(node, "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount())"))
    rule.wait_until_held(timeout=DEADLINE)
    rule.release()
    thread.join(DEADLINE)
    assert results == ["2\n"]


def test_release_takes_away_what_is_named_and_leaves_the_rest(simulate: Callable[[str], Simulation]) -> None:
    node = simulate("h20x2").node
    power = node.inject("nvmlDeviceGetPowerUsage", error=3, gpu=0)
    other_card = node.inject("nvmlDeviceGetPowerUsage", error=3, gpu=1)
    name = node.inject("nvmlDeviceGetName", error=3)
    node.release("nvmlDeviceGetPowerUsage", gpu=1)
    assert (power.active, other_card.active, name.active) == (True, False, True)
    node.release("nvmlDeviceGetName")
    assert (power.active, name.active) == (True, False)
    node.release()
    assert not power.active


def test_calls_are_counted_by_function_and_card(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, node = simulation.pynvml, simulation.node
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(1)
    for _ in range(3):
        n.nvmlDeviceGetPowerUsage(handle)
    assert [node.calls("nvmlDeviceGetPowerUsage", gpu) for gpu in (0, 1, None)] == [0, 3, 3]
    assert node.calls("nvmlDeviceGetHandleByIndex_v2", 1) == 1
    assert node.node_calls("nvmlInitWithFlags") == 1


def test_unknown_functions_and_cards_are_named(simulate: Callable[[str], Simulation]) -> None:
    node = simulate("h20x2").node
    with pytest.raises(ValueError, match="did you mean nvmlDeviceGetPowerUsage"):
        node.inject("nvmlDeviceGetPowerUse", error=3)
    with pytest.raises(ValueError, match="gpu 2 is not one of the 2 cards"):
        node.inject("nvmlDeviceGetPowerUsage", error=3, gpu=2)
    with pytest.raises(ValueError, match="needs an error, a delay or a hang"):
        node.inject("nvmlDeviceGetPowerUsage")


def test_there_is_an_end_to_the_rules(simulate: Callable[[str], Simulation]) -> None:
    node = simulate("h20x2").node
    for _ in range(MAX_RULES):
        node.inject("nvmlDeviceGetPowerUsage", error=3)
    with pytest.raises(ValueError, match=f"{MAX_RULES} rules are in force"):
        node.inject("nvmlDeviceGetPowerUsage", error=3)
    node.release()
    node.inject("nvmlDeviceGetPowerUsage", error=3)
