"""Seconds per clock event: the driver's counters under the ids of its version, else the integral of the mask."""

from __future__ import annotations

import pytest
from poise.exporter import metrics as m
from poise.exporter.nvml.clocks import EventMeter, counter_fields
from poise.testbed.nvml.codes import ReasonTime

from tests.simulated_cards import bench


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
