"""Pages of an engine with any values and names, through everything that is made of them: checks, exposition, checklist, terminal."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st
from poise.exporter.checks.document import document
from poise.exporter.checks.runner import Runner
from poise.exporter.doctor_text import render
from poise.exporter.engines import dialects
from poise.exporter.engines.page import PageError, PageParser
from poise.exporter.exposition import Build, Exposition
from poise.exporter.ownership import join
from poise.exporter.snapshot import NodeSnapshot
from poise.history.text_format import PageReader

from tests.full_node import page_engine
from tests.recorded import CAPTURES
from tests.scenes import START, card, node

CAPTURE = "tp2-server-after.prom"
PAGE = (CAPTURES / CAPTURE).read_text()
VALUES = st.sampled_from(["NaN", "+Inf", "-Inf", "-5", "0", "1e308", "-1e308", "5e-324", "1.7976931348623157e308", "9007199254740993"])
NAMES = st.sampled_from(
    ["<script>alert(1)</script>", r"a\nb", r"\"} 1", "\x1b[31m\u202e\x9b", "x" * 8000, "", "\\\\", "\u2028", "ünï", "\ud7ff"]
)


def replaced(page: str, pattern: str, draw: Callable[[], str]) -> str:
    return re.sub(pattern, lambda match: f"{match[1]}{draw()}{match[3]}", page, flags=re.MULTILINE)


def snapshots(page: str) -> tuple[NodeSnapshot, ...]:
    """Two moments ten seconds apart of a node with this engine beside a healthy one."""
    read = dialects.read_page(PageParser(dialects.wanted).parse(page.encode()), "0.32.0", START, 0.01)
    hostile, healthy = dataclasses.replace(page_engine(0, CAPTURE, 2), page=read), page_engine(1, CAPTURE, 1)
    gpus = (card(0, busy=1.0), card(1, busy=2.0))
    joined = join(gpus, (hostile, healthy), lambda pid: "python3")
    scene = dataclasses.replace(node(gpus, expected=2), engines=joined.engines, gpu_process_readings=joined.gpu_readings)
    return scene, dataclasses.replace(scene, taken_at=START + 10)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_a_page_says_all_that_is_made_of_it_stands(data: st.DataObject) -> None:
    values = data.draw(st.lists(VALUES, min_size=1, max_size=8))
    name = data.draw(NAMES)
    turn = iter(range(10**9))
    page = PAGE
    if data.draw(st.booleans()):
        page = replaced(page, r"^((?!#).*[} ])([0-9.e+-]+)()$", lambda: values[next(turn) % len(values)])
    page = replaced(page, r'(model_name=")([^"]*)(")', lambda: name)
    page = replaced(page, r'(finished_reason=")([^"]*)(")', lambda: name + str(next(turn) % 7))
    try:
        scenes = snapshots(page)
    except PageError:
        return  # refused as a whole, and said so
    runner = Runner()
    for scene in scenes:
        outcome = runner.observe(scene)
        assert not [result for result in outcome.results if "the check itself failed" in result.sentence]
        written = document(scene, outcome)
        json.dumps(written, allow_nan=False)
        text = render(written, source="test", width=80, colour=False)
        assert not re.search(r"[^\S\n ]|[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2028]", text)
        samples = PageReader().read(Exposition(Build("1", "3.11")).render(scene, outcome.results, START + 10))
        assert any(series.name == "poise_engine_prompt_tokens_total" and series.label("engine") == "node:8001" for series in samples)
