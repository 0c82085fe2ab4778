"""Cards that are slowed by heat or power supply, links that err while they are up, and strangers on an engine's cards."""

from __future__ import annotations

import dataclasses

import pytest
from poise.exporter import metrics as m
from poise.exporter.checks.result import CheckResult, State, Status
from poise.exporter.metrics import Metric
from poise.exporter.snapshot import Gpu, NodeSnapshot

from tests.check_lines import lines
from tests.scenes import GIB, card, engine, node, play

QUIET = {("hw_thermal_slowdown",): 0.0, ("sw_thermal_slowdown",): 0.0, ("hw_power_brake",): 0.0, ("sw_power_cap",): 0.0}
ERRORS = {("3", "recovery"): 7.0, ("3", "replay"): 900.0, ("3", "crc_flit"): 0.0, ("4", "replay"): 1.0}


def found(name: str, second: NodeSnapshot, first: NodeSnapshot, seconds: int) -> list[CheckResult]:
    """What check `name` says after `seconds` in which counters grew from those of `first` to those of `second` evenly."""

    def scene(passed: float) -> NodeSnapshot:
        gpus = []
        for before, after in zip(first.gpus, second.gpus, strict=True):
            between = {
                metric: {labels: start + (after.readings[metric][labels] - start) * passed / seconds for labels, start in values.items()}
                for metric, values in before.readings.items()
            }
            gpus.append(dataclasses.replace(after, readings=between))
        return dataclasses.replace(second, gpus=tuple(gpus))

    return [result for result in play(scene, seconds).results if result.check == name]


def slowed(seconds_of: dict[str, float]) -> NodeSnapshot:
    return node([timed(card(0), {}), timed(card(1), seconds_of)], expected=2)


def timed(gpu: Gpu, seconds_of: dict[str, float]) -> Gpu:
    counted = {**QUIET, **{(reason,): count for reason, count in seconds_of.items()}}
    return dataclasses.replace(gpu, readings={**gpu.readings, m.GPU_CLOCKS_EVENT_SECONDS: counted, m.GPU_TEMPERATURE: {("core",): 94.0}})


@pytest.mark.parametrize(
    ("reason", "lasted", "over", "state", "means"),
    [
        ("hw_thermal_slowdown", 30.0, 60, State.PROBLEM, "halved its clocks"),
        ("hw_power_brake", 7.0, 60, State.PROBLEM, "power supply"),
        ("hw_thermal_slowdown", 12.0, 12, State.WATCH, "slowdown temperature"),
        ("sw_thermal_slowdown", 20.0, 60, State.PROBLEM, "highest operating temperature"),
    ],
)
def test_a_card_that_is_slowed_is_named_with_the_reason(reason: str, lasted: float, over: int, state: State, means: str) -> None:
    (result,) = found("card_slowdown", slowed({reason: lasted}), slowed({}), over)
    assert (result.status, result.state, result.gpu) == (Status.FAIL, state, "1")
    assert means in result.cause
    assert reason in result.evidence
    assert result.evidence["temperature"] == "94 °C"


@pytest.mark.parametrize(
    "seconds_of", [{}, {"sw_power_cap": 60.0}, {"hw_thermal_slowdown": 3.0}, {"sw_thermal_slowdown": 12.0}, {"hw_power_brake": 5.0}]
)
def test_a_power_cap_and_short_episodes_are_no_fault(seconds_of: dict[str, float]) -> None:
    (result,) = found("card_slowdown", slowed(seconds_of), slowed({}), 60)
    assert (result.status, result.sentence) == (Status.PASS, "2 cards run as fast as asked")


def test_hardware_is_named_before_the_driver_when_both_slow_a_card() -> None:
    (result,) = found("card_slowdown", slowed({"sw_thermal_slowdown": 60.0, "hw_thermal_slowdown": 60.0}), slowed({}), 60)
    assert result.sentence == "GPU 1 was slowed for 100 % of the last 60 s (hw_thermal_slowdown and sw_thermal_slowdown)"


def test_what_a_card_was_slowed_before_does_not_count() -> None:
    long_ago = slowed({"hw_thermal_slowdown": 5000.0})
    (result,) = found("card_slowdown", long_ago, long_ago, 60)
    assert result.status is Status.PASS


def test_cards_whose_driver_does_not_count_are_not_judged() -> None:
    plain = node([card(0)], expected=1)
    assert found("card_slowdown", plain, plain, 60) == []
    assert found("nvlink_errors", plain, plain, 60) == []


def test_less_than_ten_seconds_say_nothing() -> None:
    (result,) = found("card_slowdown", slowed({"hw_thermal_slowdown": 5.0}), slowed({}), 5)
    assert (result.status, result.state) == (Status.UNKNOWN, State.OK)


def erring(**grown: float) -> NodeSnapshot:
    first = dataclasses.replace(card(0), readings={**card(0).readings, m.GPU_NVLINK_ERRORS: dict.fromkeys(ERRORS, 0.0)})
    counted = {(link, kind): count + (grown.get(kind, 0.0) if link == "3" else 0.0) for (link, kind), count in ERRORS.items()}
    return node([first, dataclasses.replace(card(1), readings={**card(1).readings, m.GPU_NVLINK_ERRORS: counted})], expected=2)


@pytest.mark.parametrize("grown", [{"recovery": 1.0}, {"replay": 7.0}, {"replay": 4.0, "crc_flit": 4.0}])
def test_links_that_train_anew_or_repeat_much_are_named_with_the_worst(grown: dict[str, float]) -> None:
    (result,) = found("nvlink_errors", erring(**grown), erring(), 60)
    assert (result.status, result.state, result.gpu) == (Status.FAIL, State.WATCH, "1")
    assert result.evidence["most errors since the driver was loaded"] == "link 3"


@pytest.mark.parametrize("grown", [{}, {"replay": 6.0}])
def test_a_few_repeats_and_errors_of_long_ago_are_no_fault(grown: dict[str, float]) -> None:
    (result,) = found("nvlink_errors", erring(**grown), erring(), 60)
    assert (result.status, result.sentence) == (Status.PASS, "no link of 2 cards had to train anew or repeats much")


def strangers(*holders: tuple[str, str, str, float], foreign: float | None) -> NodeSnapshot:
    """An engine on two cards, on the second of which these processes (pid, name, engine) hold so many bytes."""
    scene = node([card(0), card(1)], [engine()], expected=2)
    held = {("104", "VLLM::Worker_TP1", "n1:8000", "1"): 80 * GIB, **{(pid, name, owner, ""): count for pid, name, owner, count in holders}}
    readings = {m.GPU_PROCESS_MEMORY: held, **({} if foreign is None else {m.GPU_FOREIGN_MEMORY: {(): foreign}})}
    empty: dict[Metric, dict[tuple[str, ...], float]] = {} if foreign is None else {m.GPU_FOREIGN_MEMORY: {(): 0.0}}
    return dataclasses.replace(scene, gpu_process_readings={"GPU-0": empty, "GPU-1": readings})


def test_a_program_of_no_engine_on_an_engines_card_is_named() -> None:
    (result,) = lines(strangers(("900", "python3", "", 24 * GIB), ("901", "test", "", 2 * GIB), foreign=26 * GIB), "foreign_process")
    assert (result.status, result.state, result.engine) == (Status.FAIL, State.WATCH, "n1:8000")
    assert result.sentence == "26.0 GiB of GPU 1 belong to a process of no engine"
    assert result.evidence == {"GPU 1": "python3 (pid 900), 24.0 GiB, test (pid 901), 2.0 GiB"}


def test_a_small_context_is_no_stranger_and_an_untold_list_says_nothing() -> None:
    (result,) = lines(strangers(("900", "monitor", "", GIB / 2), foreign=GIB / 2), "foreign_process")
    assert (result.status, result.sentence) == (Status.PASS, "only engines hold memory of GPUs 0 and 1")
    assert lines(strangers(foreign=None), "foreign_process") == []
