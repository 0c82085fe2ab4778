"""The verdict: what the exporter's checks say, and "unknown" instead of an old one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from poise.dashboard import verdict as judging
from poise.dashboard.contexts import CheckContext, VerdictContext
from poise.dashboard.freshness import exporter_source
from poise.dashboard.observation import Observation
from poise.dashboard.texts import ENGLISH

from tests.node_scenes import one_visible, tensor_parallel
from tests.unit.dashboard.pages import watched


def verdict(observation: Observation) -> VerdictContext:
    return judging.verdict(observation, exporter_source(observation, ENGLISH), ENGLISH)


def checks(observation: Observation) -> tuple[CheckContext, ...]:
    return judging.checks(observation, exporter_source(observation, ENGLISH), ENGLISH)


def test_a_fault_is_named_with_cause_fix_and_time_worst_first() -> None:
    found = verdict(watched(one_visible()))
    assert (found.state, found.word) == ("problem", "Problem")
    assert [line.state for line in found.lines] == ["problem", "watch"]
    first = found.lines[0]
    assert first.sentence.startswith("GPU 1 idle")
    assert first.cause.startswith("CUDA_VISIBLE_DEVICES=0")
    assert first.fix
    assert first.gpu == "GPU 1"
    assert len(first.since) == len("14:02:11")


def test_all_well_is_one_calm_sentence() -> None:
    found = verdict(watched(tensor_parallel()))
    assert (found.state, found.lines) == ("ok", ())
    assert found.summary == "2 cards, 1 engine; every card that an engine owns does its share"


def test_what_a_screen_reader_hears_has_no_moving_numbers() -> None:
    one = verdict(watched(one_visible())).announced
    scene = one_visible()
    moved = ({**scene.checks[1], "sentence": "GPU 1 idle (0 %) while GPU 0 is saturated (93 %), mean of 60 s"},)
    other = verdict(watched(replace(scene, checks=(scene.checks[0], *moved, *scene.checks[2:])))).announced
    assert one == other
    assert one.startswith("Problem. ")


def test_three_lines_at_most() -> None:
    scene = one_visible()
    many = tuple({**scene.checks[1], "check": f"c{n}"} for n in range(9))
    assert len(verdict(watched(replace(scene, checks=many))).lines) == 3


def test_old_and_missing_checks_give_no_verdict() -> None:
    old = verdict(watched(one_visible(), silent=60))
    assert (old.state, old.lines) == ("unknown", ())
    assert "60" in old.summary
    missing = verdict(replace(watched(one_visible(), checks=False), checks_error="HTTP status 404"))
    assert missing.state == "unknown"
    assert "HTTP status 404" in missing.summary


@pytest.mark.parametrize("off", [-3600.0, 3600.0])
def test_an_exporter_whose_clock_is_off_has_a_verdict(off: float) -> None:
    seen = watched(one_visible())
    assert seen.checks is not None
    assert verdict(replace(seen, checks=replace(seen.checks, time=seen.checks.time + off))).state == "problem"


def test_checks_of_a_snapshot_that_is_not_renewed_give_no_verdict() -> None:
    hangs = verdict(watched(replace(one_visible(), snapshot_age=45.0)))
    assert (hangs.state, hangs.lines) == ("unknown", ())
    assert "45" in hangs.summary


def test_a_silent_exporter_gives_no_verdict_and_no_checklist_at_once() -> None:
    silent = watched(one_visible(), silent=15, error="connection refused")
    assert verdict(silent).state == "unknown"
    assert checks(silent) == ()


def test_the_checklist_has_failures_first_and_counts() -> None:
    found = checks(watched(one_visible()))
    assert [check.status for check in found] == ["fail", "fail", "pass", "pass", "pass"]
    assert judging.counts(found, ENGLISH) == "2 fail · 0 unknown · 3 pass"
    assert judging.counts((), ENGLISH) == "No checks have run."
    assert len({check.key for check in found}) == 5


def test_a_time_that_no_calendar_has_is_left_out() -> None:
    scene = one_visible()
    strange = replace(scene, checks=({**scene.checks[1], "since": 1e300},))
    assert verdict(watched(strange)).lines[0].since == ""


def test_sentences_that_stand_alone_begin_with_a_capital_and_names_are_left_as_they_are() -> None:
    scene = one_visible()
    words = {
        "the engine hangs": "The engine hangs",
        "vLLM ended": "vLLM ended",
        "dmesg | grep": "dmesg | grep",
        "8 cards": "8 cards",
        "": "",
    }
    for written, shown in words.items():
        found = verdict(watched(replace(scene, checks=({**scene.checks[1], "cause": written},)), seconds=5))
        assert found.lines[0].cause == shown
