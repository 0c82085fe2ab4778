"""Whatever any single call answers, at the first tick or a later one: a reason or an error of its collector, never a fault of ours."""

from __future__ import annotations

import logging

import pytest
from poise.exporter.nvml import registry
from poise.exporter.nvml.library import NvmlFailure
from poise.exporter.nvml.reader import CardSilent
from poise.testbed.nvml.codes import ReturnCode
from poise.testbed.nvml.state import functions

from tests.simulated_cards import Bench, bench

#: One of each kind (a refusal, an answer that asks for more room, an error that passes), and whether it comes only once the call has worked.
ANSWERS = (
    (ReturnCode.NOT_SUPPORTED, False),
    (ReturnCode.INSUFFICIENT_SIZE, True),
    (ReturnCode.UNKNOWN, False),
    (ReturnCode.UNKNOWN, True),
)


def called(profile: str) -> list[str]:
    """Every function that reading a card of this profile calls, the ones that are off by default included."""
    with bench(profile, collectors=registry.ALL) as cards:
        before = {name: cards.node.calls(name) for name in functions()}
        cards.prepare()
        cards.read()
        cards.read(after=1.0)
        found = [name for name, count in before.items() if cards.node.calls(name) > count]
        return [name for name in found if "Handle" not in name and not name.endswith(("UUID", "GetName"))]


def ticks(cards: Bench) -> None:
    """Two with all collectors, the second of which GPM can compare."""
    for after in (60.0, 1.0):
        try:
            cards.read(after=after)
        except (NvmlFailure, CardSilent):
            continue


def test_no_answer_of_one_call_is_a_fault_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    names = called("h20x2")
    assert len(names) > 25
    with bench("h20x2") as cards:
        for name in names:
            for code, late in ANSWERS:
                if late:
                    cards.prepare()
                    ticks(cards)
                rule = cards.node.inject(name, error=code, gpu=0 if "Device" in name else None)
                if not late:
                    cards.prepare()
                ticks(cards)
                rule.release()
        assert caplog.text == "", "a fault of ours is logged with its traceback"
        cards.prepare()
        cards.read()
        assert all(run.success for run in cards.runs[0].values()), "nothing of it stays"
