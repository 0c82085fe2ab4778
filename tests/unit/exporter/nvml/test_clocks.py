"""Seconds per clock event: the driver's counters under the ids of its version, else the integral of the mask."""

from __future__ import annotations

import pytest
from poise.exporter import metrics as m
from poise.exporter.nvml.clocks import REASONS, EventMeter, counter_fields
from poise.exporter.snapshot import Reason
from poise.testbed.nvml.codes import Policy, ReasonTime, ReturnCode

from tests.simulated_cards import bench

COUNTED_ALWAYS = {"sw_power_cap", "sync_boost"}
COUNTED_SINCE_575 = {*COUNTED_ALWAYS, "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"}


@pytest.mark.parametrize(
    ("driver", "hardware_thermal"),
    [
        ((535, 183, 1), None),
        ((570, 172, 8), None),
        ((575, 51, 3), 252),
        ((580, 65, 6), 252),
        ((580, 76, 5), None),
        ((580, 95, 5), 270),
        ((595, 45, 4), 270),
        ((), None),
    ],
)
def test_ids_of_the_moved_counters_follow_the_driver(driver: tuple[int, ...], hardware_thermal: int | None) -> None:
    fields = counter_fields(driver)
    assert fields.get("hw_thermal_slowdown") == hardware_thermal
    assert (fields["sw_power_cap"], fields["sync_boost"]) == (74, 76)


def test_reasons_without_a_counter_are_integrated_from_the_mask() -> None:
    """Driver 570 counts no thermal slowdown under an id that is safe to ask."""
    with bench("h100x8") as cards:
        gpu = cards.node.gpus[0]
        gpu.set_event_reasons({"hw_thermal_slowdown", "hw_slowdown"})
        cards.read()
        for _ in range(4):
            cards.read(after=1.0)
        gpu.set_event_reasons(set())
        after = cards.read(after=1.0)
        assert after.value(m.GPU_CLOCKS_EVENT_SECONDS, "hw_thermal_slowdown") == pytest.approx(4.0)
        assert after.value(m.GPU_CLOCKS_EVENT_SECONDS, "hw_slowdown") == pytest.approx(4.0)
        assert after.value(m.GPU_CLOCKS_EVENT_SECONDS, "gpu_idle") == 0


def test_the_drivers_counter_wins_over_the_mask() -> None:
    with bench("h20x2") as cards:
        gpu = cards.node.gpus[0]
        gpu.set_event_reasons({"hw_thermal_slowdown"})
        cards.read()
        gpu.add_reason_time(ReasonTime.HW_THERMAL_SLOWDOWN, 0.125)
        assert cards.read(after=1.0).value(m.GPU_CLOCKS_EVENT_SECONDS, "hw_thermal_slowdown") == pytest.approx(0.125)


def test_all_reasons_have_seconds_and_a_state() -> None:
    for profile in ("h20x2", "h100x8", "driver535"):
        with bench(profile) as cards:
            gpu = cards.read()
            assert len(gpu.readings[m.GPU_CLOCKS_EVENT]) == 9
            assert set(gpu.readings[m.GPU_CLOCKS_EVENT_SECONDS]) == set(gpu.readings[m.GPU_CLOCKS_EVENT])


def test_a_gap_is_not_counted() -> None:
    meter = EventMeter()
    meter.advance(0.0, 0x1, 3.0)
    meter.advance(1.0, 0x1, 3.0)
    meter.advance(61.0, 0x1, 3.0)
    meter.advance(62.0, 0x0, 3.0)
    assert meter.seconds["gpu_idle"] == 1.0


@pytest.mark.parametrize(
    ("driver", "counted"),
    [
        ("510.47.03", COUNTED_ALWAYS),
        ("535.183.01", COUNTED_ALWAYS),
        ("550.54.14", COUNTED_ALWAYS),
        ("570.172.08", COUNTED_ALWAYS),
        ("575.51.03", COUNTED_SINCE_575),
        ("580.65.06", COUNTED_SINCE_575),
        ("580.76.05", COUNTED_ALWAYS),  # which ids this build has is not known: integrated
        ("580.82.07", COUNTED_SINCE_575),
        ("580.95.05", COUNTED_SINCE_575),
        ("590.44.01", COUNTED_SINCE_575),
        ("595.45.04", COUNTED_SINCE_575),
        ("610.10.01", COUNTED_SINCE_575),
    ],
)
def test_every_driver_counts_or_the_mask_is_integrated_and_no_other_meaning_of_an_id_is_taken(driver: str, counted: set[str]) -> None:
    """The driver's counters say 100 s each, the mask holds all reasons for 2 s; other fields that had these ids say 7."""
    with bench("h20x2", driver=driver) as cards:
        gpu = cards.node.gpus[0]
        for field in (*range(251, 256), *range(269, 272)):
            gpu.set_field(field, 7, 3)
        for policy in (Policy.POWER, Policy.THERMAL, Policy.SYNC_BOOST):
            gpu.add_policy_time(policy, 100.0)
        for reason in ReasonTime:
            gpu.add_reason_time(reason, 100.0)
        gpu.set_event_reasons(REASONS)
        for _ in range(3):
            card = cards.read(after=1.0)
        seconds = {reason: value for (reason,), value in card.readings[m.GPU_CLOCKS_EVENT_SECONDS].items()}
        assert seconds == pytest.approx({reason: 100.0 if reason in counted else 2.0 for reason in REASONS})
        assert cards.runs[0]["clocks"].success


def test_an_old_library_names_the_mask_by_its_old_symbol() -> None:
    with bench("driver535", driver="530.30.02") as cards:
        cards.node.gpus[0].set_event_reasons({"sw_power_cap"})
        assert cards.read().value(m.GPU_CLOCKS_EVENT, "sw_power_cap") == 1
        assert cards.node.calls("nvmlDeviceGetCurrentClocksThrottleReasons", 0) == 1


def test_counters_that_the_driver_refuses_are_integrated() -> None:
    with bench("h20x2") as cards:
        gpu = cards.node.gpus[0]
        gpu.refuse_field(270, ReturnCode.NOT_SUPPORTED)
        gpu.set_event_reasons({"hw_thermal_slowdown"})
        for _ in range(3):
            card = cards.read(after=1.0)
        assert card.value(m.GPU_CLOCKS_EVENT_SECONDS, "hw_thermal_slowdown") == pytest.approx(2.0)


def test_without_mask_and_counters_the_seconds_are_absent() -> None:
    with bench("h20x2") as cards:
        for field in (74, 76, 269, 270, 271):
            cards.node.gpus[0].refuse_field(field, ReturnCode.NOT_SUPPORTED)
        cards.node.gpus[0].refuse("nvmlDeviceGetCurrentClocksEventReasons", ReturnCode.NO_PERMISSION)
        gpu = cards.read()
        assert gpu.absent[m.GPU_CLOCKS_EVENT_SECONDS] is Reason.NO_PERMISSION
