"""Text that others wrote shows in a page as it stands, whatever it is."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from poise.exporter.logs import visible
from poise.testbed.comparison import markdown, report, table

from tests.unit.testbed.bench.runs import shapes_three_times

HOSTILE = "a|b\n\x1b[31m<script>alert(1)</script> ![x](javascript:1) `c` **d** _e_ ~~f~~ $g$ &amp; \\| \u202e"
# As GitHub has it: raw HTML is let through by the parser.
PAGE = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def shown_in_cell(text: str) -> str:
    """What a reader of the table sees in a cell that holds the text."""
    rendered = PAGE.render(markdown.table(["head"], [[text], ["next"]]))
    cells = re.findall(r"<td>(.*?)</td>", rendered, re.DOTALL)
    assert len(cells) == 2, "one row stays one row, one cell one cell"
    assert "<" not in cells[0], "no element but the cell itself"
    return html.unescape(cells[0])


@pytest.mark.parametrize("text", [HOSTILE, "vllm_router", "tiny-qwen2", "0.32.0+cpu", "a*b", "__init__", "x" * 300, "http://h/?a=1&b=2"])
def test_a_cell_shows_the_text(text: str) -> None:
    assert shown_in_cell(text) == visible(text).strip()


@given(st.text(st.characters(exclude_categories=[]), max_size=30))
def test_any_text_is_shown_as_it_stands(text: str) -> None:
    assert shown_in_cell(text) == visible(text).strip(" ")


@given(st.text(alphabet="\\`*_[]<>|~&$!()a \n#", max_size=20))
def test_any_punctuation_is_shown_as_it_stands(text: str) -> None:
    assert shown_in_cell(text) == visible(text).strip(" ")
    rendered = PAGE.render(f"Model {markdown.plain_text(text)}.")
    assert html.unescape(re.sub(r"</?p>", "", rendered)).rstrip("\n") == f"Model {visible(text)}."


def test_ordinary_names_stay_readable_in_the_source() -> None:
    assert markdown.plain_text("vllm_router 0.1.17, torch 2.13.0+cpu; AMD EPYC (2 cores)") == (
        "vllm_router 0.1.17, torch 2.13.0+cpu; AMD EPYC (2 cores)"
    )


def test_a_hostile_shape_model_version_and_id_change_neither_page_nor_terminal() -> None:
    entries = shapes_three_times()
    for entry in entries:
        entry["deployment"]["model"] = entry["versions"]["poise"] = entry["machine"]["processor"] = HOSTILE
        entry["profile"] = {**entry["profile"], "name": HOSTILE, "arrival": HOSTILE}
        entry["cards"] = [{**entry["cards"][0], "name": HOSTILE}]
    for entry in entries[-3:]:
        entry["deployment"]["shape"] = HOSTILE
        entry["id"] = f"{entry['workload']['seed']} {HOSTILE}"
        entry["steps"][0]["observed"]["cards"][0]["engine"] = HOSTILE
    made = table.compare(entries)
    page = report.page(made, "images/comparison.svg")
    assert all(line.isprintable() for line in page.split("\n"))
    rendered = PAGE.render(page)
    allowed = r"</?(h1|p|strong|code|pre|table|thead|tbody|tr|th|td|img)( [^<>]*)?>\n?"
    assert "<" not in re.sub(allowed, "", rendered)
    assert rendered.count("<img ") == 1
    assert rendered.count("<tr>") == 2 * (1 + 3)
    assert rendered.count("<td>") == 3 * (13 + 7)
    assert all(line.isprintable() for line in report.plain(made).split("\n"))
    assert len(report.plain(made).split("\n")) == 1 + 4 + 1 + 3
