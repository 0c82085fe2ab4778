"""Registration with the NVLink fabric: every version of the call, every state, and a registration that ended with an error."""

from __future__ import annotations

import logging

import pytest
from poise.exporter import metrics as m
from poise.exporter.nvml import fabric, identity
from poise.exporter.snapshot import Gpu, Reason
from poise.testbed.nvml.codes import FabricState, ReturnCode

from tests.simulated_cards import Bench, bench

COLLECTORS = (identity.COLLECTOR, fabric.COLLECTOR)


def states(gpu: Gpu) -> dict[str, float]:
    return {state: value for (state,), value in gpu.readings[m.GPU_FABRIC_STATE].items()}


def set_states(gpu: Gpu) -> set[str]:
    return {state for state, value in states(gpu).items() if value}


@pytest.mark.parametrize(
    ("driver", "asked"),
    [
        ("535.183.01", {"nvmlDeviceGetGpuFabricInfo": 1}),
        ("550.54.14", {"nvmlDeviceGetGpuFabricInfoV": 2}),  # version 3, then 2
        ("570.172.08", {"nvmlDeviceGetGpuFabricInfoV": 2}),
        ("580.95.05", {"nvmlDeviceGetGpuFabricInfoV": 1}),
    ],
)
def test_every_driver_is_asked_by_the_newest_version_that_it_knows(driver: str, asked: dict[str, int]) -> None:
    with bench("h20x2", driver=driver, collectors=COLLECTORS) as cards:
        assert set_states(cards.read()) == {"completed"}
        for name in ("nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetGpuFabricInfoV"):
            assert cards.node.calls(name, 0) == asked.get(name, 0)
        cards.read_all_tiers()
        assert sum(cards.node.calls(name, 0) for name in asked) == sum(asked.values()) + 1, "what it does not know is not asked again"


@pytest.mark.parametrize("state", list(FabricState))
@pytest.mark.parametrize("driver", ["570.172.08", "580.95.05"])
def test_each_state_is_the_only_one_that_is_set(state: FabricState, driver: str) -> None:
    with bench("h20x2", driver=driver, collectors=COLLECTORS) as cards:
        cards.node.gpus[0].set_fabric(state)
        gpu = cards.read()
        assert set_states(gpu) == {state.name.lower()}
        assert set(states(gpu)) == {"not_supported", "not_started", "in_progress", "completed", "failed"}


def test_a_status_says_something_only_once_the_state_is_complete() -> None:
    """nvml.h: "Must be checked only if state returns complete"."""
    with bench("h20x2", collectors=COLLECTORS) as cards:
        cards.node.gpus[0].set_fabric(FabricState.IN_PROGRESS, status=ReturnCode.NOT_READY)
        assert set_states(cards.read()) == {"in_progress"}


def test_a_registration_that_ended_with_an_error_has_failed_and_says_why_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with bench("h20x2", collectors=COLLECTORS) as cards:
        cards.node.gpus[0].set_fabric(FabricState.COMPLETED, status=ReturnCode.INSUFFICIENT_RESOURCES)
        assert set_states(cards.read()) == {"failed"}
        cards.read_all_tiers()
        cards.prepare()
        cards.read_all_tiers()
        assert caplog.text.count("registration with the NVLink fabric failed") == 1
        assert "(23)" in caplog.text
        assert "nvidia-fabricmanager" in caplog.text
        assert cards.runs[0]["fabric"].success, "it was read"
        cards.node.gpus[0].set_fabric(FabricState.COMPLETED)
        assert set_states(cards.read_all_tiers()) == {"completed"}
        assert "in order again" in caplog.text


@pytest.mark.parametrize(
    ("code", "reason", "success"),
    [
        (ReturnCode.NOT_SUPPORTED, Reason.NOT_SUPPORTED, True),
        (ReturnCode.NO_PERMISSION, Reason.NO_PERMISSION, True),
        (ReturnCode.UNKNOWN, Reason.ERROR, False),
    ],
)
def test_a_refusal_is_an_absence_and_an_error_is_the_collectors(code: ReturnCode, reason: Reason, success: bool) -> None:
    with bench("h20x2", collectors=COLLECTORS) as cards:
        cards.node.inject("nvmlDeviceGetGpuFabricInfoV", error=code)
        gpu = cards.read()
        assert gpu.absent[m.GPU_FABRIC_STATE] is reason
        assert cards.runs[0]["fabric"].success is success


def test_a_library_without_any_of_the_calls_says_so() -> None:
    with bench("v100x2", driver="510.47.03", collectors=COLLECTORS) as cards:
        assert cards.read().absent[m.GPU_FABRIC_STATE] is Reason.FUNCTION_NOT_FOUND


def test_a_reset_card_is_registered_anew() -> None:
    def after(cards: Bench, state: FabricState) -> set[str]:
        cards.node.gpus[0].set_fabric(state)
        return set_states(cards.read_all_tiers())

    with bench("h20x2", collectors=COLLECTORS) as cards:
        assert [after(cards, state) for state in (FabricState.NOT_STARTED, FabricState.IN_PROGRESS, FabricState.COMPLETED)] == [
            {"not_started"},
            {"in_progress"},
            {"completed"},
        ]
