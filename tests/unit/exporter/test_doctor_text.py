"""The checklist as a terminal shows it."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.exporter.checks.document import document
from poise.exporter.checks.runner import Runner
from poise.exporter.doctor_text import exit_code, render
from poise.exporter.snapshot import NodeSnapshot

from tests.pd_scenes import decode, prefill
from tests.scenes import START, card, engine, node


def doc(scene: NodeSnapshot) -> dict[str, object]:
    return document(scene, Runner().observe(dataclasses.replace(scene, taken_at=START)))


ONE_CARD = node([card(0, busy=0), card(1, busy=0)], [engine(cards=[0], visible=[0, 1], environment="0,1")], expected=2)
HEALTHY = node([card(0, busy=0), card(1, busy=0)], [engine(environment="0,1")], expected=2)
NO_DRIVER = node([], expected=0, driver="")
LOADING = node([card(0, busy=0), card(1, busy=0)], [engine(page=False, start=START - 20)], expected=2)


def test_failing_lines_come_first_in_their_group_with_cause_fix_and_what_was_seen() -> None:
    text = render(doc(ONE_CARD), source="exporter http://127.0.0.1:9747", width=200, colour=False)
    lines = text.splitlines()
    assert lines[0].startswith("Poise doctor · n1 · ")
    assert lines[2].startswith("Problem  qwen-32b on n1:8000 TP=1 · the engine has processes on 1 of its 2 visible GPUs; GPU 1 is unused")
    first = next(index for index, line in enumerate(lines) if line.startswith("FAIL"))
    assert lines[first - 1 : first + 2] == [
        "Engine qwen-32b on n1:8000 TP=1",
        "FAIL     Tensor-parallel size equals the cards in use and the visible ones",
        "         the engine has processes on 1 of its 2 visible GPUs; GPU 1 is unused",
    ]
    assert lines[first + 2].startswith("         cause  tensor_parallel_size=1 but 2 GPUs are visible (CUDA_VISIBLE_DEVICES=0,1)")
    assert lines[first + 3].startswith("         fix    start it with --tensor-parallel-size 2")
    assert lines[-1].startswith("1 failed, ")
    assert not any(line.startswith("FAIL") for line in lines[first + 1 :])


def test_lines_are_grouped_by_node_cards_engines_and_deployments_and_a_passing_one_is_one_line() -> None:
    pair = [prefill(), decode()]
    scene = dataclasses.replace(node([card(0, busy=0), card(1, busy=0)], [engine(environment="0,1"), *pair], expected=2), rdma_ports=())
    lines = render(doc(scene), source="", width=200, colour=False).splitlines()
    headings = [line for line in lines if line.startswith(("Node ", "Cards", "Engine ", "Deployment "))]
    assert headings == [
        "Cards",
        "Engine qwen-32b on n1:8000 TP=2",
        "Engine qwen-32b on n1:8100 prefill TP=1",
        "Engine qwen-32b on n1:8200 decode TP=1",
        "Deployment qwen-pd",
    ]
    assert "PASS     Driver loaded, expected cards there and healthy: driver 570.1, 2 cards of 2 expected answer" in lines
    assert lines.index("PASS     Prefill and decode are both there: 1 prefill engine and 1 decode engine live here") > lines.index(
        "Deployment qwen-pd"
    )


def test_plain_engine_on_one_card_has_a_short_list() -> None:
    page = doc(node([card(0, busy=0)], [engine(cards=[0], environment="0")], expected=1))
    checks = page["checks"]
    assert isinstance(checks, list)
    assert len(checks) <= 10, [item["check"] for item in checks]


def test_no_escape_codes_without_colour_and_some_with_it() -> None:
    assert "\x1b" not in render(doc(ONE_CARD), source="", width=100, colour=False)
    assert "\x1b[31;1mFAIL\x1b[0m" in render(doc(ONE_CARD), source="", width=100, colour=True)


@pytest.mark.parametrize(("scene", "code"), [(HEALTHY, 0), (ONE_CARD, 1), (NO_DRIVER, 2), (LOADING, 2)])
def test_exit_code_tells_pass_fail_and_could_not_look(scene: NodeSnapshot, code: int) -> None:
    runner = Runner()
    for second in range(12):
        page = document(scene, runner.observe(dataclasses.replace(scene, taken_at=START + second)))
    assert exit_code(page) == code


@given(st.integers(40, 200))
def test_no_line_of_words_is_wider_than_the_terminal(width: int) -> None:
    for line in render(doc(ONE_CARD), source="here", width=width, colour=False).splitlines():
        assert len(line) <= width or " " not in line.strip()


def test_control_characters_of_hostile_names_do_not_reach_the_terminal() -> None:
    page = doc(ONE_CARD)
    page["node"] = "n1\x1b]0;owned\x07"
    assert "\x1b" not in render(page, source="", width=80, colour=False)
