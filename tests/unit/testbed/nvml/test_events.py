"""Event sets: registration, delivery once, order, time-outs, and sets that waited too long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from poise.testbed.nvml.codes import EventType, ReturnCode
from poise.testbed.nvml.state import MAX_EVENTS

from tests.simulated import Simulation

WAIT_MS = 30_000


def registered(n: Any, *indices: int, types: int | None = None) -> Any:
    events = n.nvmlEventSetCreate()
    for index in indices:
        mask = n.nvmlEventTypeXidCriticalError if types is None else types
        n.nvmlDeviceRegisterEvents(n.nvmlDeviceGetHandleByIndex(index), mask, events)
    return events


def test_an_xid_reaches_who_registered_for_its_card(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, node = simulation.pynvml, simulation.node
    n.nvmlInit()
    both, second = registered(n, 0, 1), registered(n, 1)
    node.raise_xid(0, 79)
    node.raise_xid(1, 48)
    received = [n.nvmlEventSetWait(both, WAIT_MS) for _ in range(2)]
    assert [(n.nvmlDeviceGetIndex(event.device), event.eventType, event.eventData) for event in received] == [
        (0, n.nvmlEventTypeXidCriticalError, 79),
        (1, n.nvmlEventTypeXidCriticalError, 48),
    ]
    assert n.nvmlEventSetWait(second, WAIT_MS).eventData == 48
    for events in (both, second):
        with pytest.raises(n.NVMLError_Timeout):
            n.nvmlEventSetWait(events, 0)
        n.nvmlEventSetFree(events)


def test_a_wait_ends_when_the_event_comes(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, node = simulation.pynvml, simulation.node
    n.nvmlInit()
    events = registered(n, 0)
    received: list[int] = []
    waiting = threading.Thread(target=lambda: received.append(n.nvmlEventSetWait(events, WAIT_MS).eventData))
    waiting.start()
    node.raise_xid(0, 63)
    waiting.join(WAIT_MS / 1000)
    assert received == [63]


def test_events_from_before_the_set_are_not_delivered(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, node = simulation.pynvml, simulation.node
    n.nvmlInit()
    node.raise_xid(0, 79)
    with pytest.raises(n.NVMLError_Timeout):
        n.nvmlEventSetWait(registered(n, 0), 0)


def test_only_registered_types_come(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, node = simulation.pynvml, simulation.node
    n.nvmlInit()
    events = registered(n, 0, types=n.nvmlEventTypeDoubleBitEccError | n.nvmlEventTypeXidCriticalError)
    node.raise_event(0, EventType.SINGLE_BIT_ECC_ERROR)
    node.raise_event(0, EventType.DOUBLE_BIT_ECC_ERROR)
    assert n.nvmlEventSetWait(events, WAIT_MS).eventType == n.nvmlEventTypeDoubleBitEccError


def test_one_unsupported_type_fails_the_registration_and_registers_none(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("driver535")
    n, node = simulation.pynvml, simulation.node
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    supported = n.nvmlDeviceGetSupportedEventTypes(handle)
    assert supported & n.nvmlEventTypeXidCriticalError
    assert not supported & n.nvmlEventTypeGpuRecoveryAction
    events = n.nvmlEventSetCreate()
    with pytest.raises(n.NVMLError_NotSupported):
        n.nvmlDeviceRegisterEvents(handle, n.nvmlEventTypeXidCriticalError | n.nvmlEventTypeGpuRecoveryAction, events)
    node.raise_xid(0, 79)
    with pytest.raises(n.NVMLError_Timeout):
        n.nvmlEventSetWait(events, 0)


def test_a_set_that_waited_too_long_gets_the_newest(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, node = simulation.pynvml, simulation.node
    n.nvmlInit()
    events = registered(n, 0)
    for xid in range(1, MAX_EVENTS + 11):
        node.raise_xid(0, xid)
    assert n.nvmlEventSetWait(events, 0).eventData == 11


def test_a_wait_ends_when_the_driver_goes(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, node = simulation.pynvml, simulation.node
    n.nvmlInit()
    events = registered(n, 0)
    failures: list[Any] = []

    def wait() -> None:
        try:
            n.nvmlEventSetWait(events, WAIT_MS)
        except n.NVMLError as error:
            failures.append(error.value)

    waiting = threading.Thread(target=wait)
    waiting.start()
    node.unload_driver()
    waiting.join(WAIT_MS / 1000)
    assert failures == [ReturnCode.UNKNOWN]


def test_what_only_frees_works_after_the_driver_went(simulate: Callable[[str], Simulation]) -> None:
    """Otherwise a program that lives through many reloads would grow by a set and two samples a card with each."""
    simulation = simulate("h100x8")
    n, node = simulation.pynvml, simulation.node
    n.nvmlInit()
    events, sample = registered(n, 0), n.nvmlGpmSampleAlloc()
    node.unload_driver()
    with pytest.raises(n.NVMLError_Unknown):
        n.nvmlDeviceGetCount()
    n.nvmlEventSetFree(events)
    n.nvmlGpmSampleFree(sample)
