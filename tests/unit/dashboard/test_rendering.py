"""HTML of the overview: everything escaped, no undefined name, one id each, no inline style or script."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from poise.dashboard import assets
from poise.dashboard.cards import MEAN_WINDOW
from poise.dashboard.contexts import OverviewContext
from poise.dashboard.overview import overview
from poise.dashboard.rendering import Renderer
from poise.dashboard.texts import ENGLISH

from tests.node_scenes import eight_cards, hostile, idle, one_visible, tensor_parallel
from tests.unit.dashboard.pages import page_of
from tests.unit.dashboard.test_overview import RUNNING, Observation, RecentWindow

VOID = {"meta", "link", "img", "br", "hr", "input"}
HOSTILE = "</title><script>alert(1)</script>\"' onload=x {{ 7*7 }} {% raw %} &amp; <img src=x onerror=alert(1)>"

PAGES: dict[str, Callable[[], OverviewContext]] = {
    "tensor parallel": lambda: page_of(tensor_parallel()),
    "idle": lambda: page_of(idle()),
    "one visible": lambda: page_of(one_visible()),
    "eight cards": lambda: page_of(eight_cards()),
    "first scrape": lambda: page_of(tensor_parallel(), seconds=5),
    "stale": lambda: page_of(tensor_parallel(), silent=60, error="connection refused"),
    "waiting": lambda: overview(Observation(1_790_000_001.0, 5.0, RecentWindow(), progress=RUNNING), ENGLISH),
    "simulated": lambda: page_of(replace(tensor_parallel(), simulated=True)),
    "hostile": lambda: page_of(hostile(one_visible(), HOSTILE)),
    "no engine": lambda: page_of(replace(eight_cards(), engines=())),
}


class Reader(HTMLParser):
    """Checks that tags nest and collects what tests look at."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attributes]
        self.ids.update(value or "" for name, value in attributes if name == "id")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> in <{' '.join(self.open)}>"

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parsed(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(ENGLISH, assets.load(), "/poise", 10.0)


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_well_formed_with_unique_ids_and_nothing_inline(renderer: Renderer, name: str) -> None:
    html = renderer.page(PAGES[name](), "v1")
    page = parsed(html)
    assert [one for one, count in page.ids.items() if count > 1] == []
    assert [(tag, attribute) for tag, attribute, _ in page.attributes if attribute == "style" or attribute.startswith("on")] == []
    assert page.tags["style"] == 0
    assert page.tags["script"] == 2
    assert all(attribute != "src" or value.startswith("/poise/static/") for _, attribute, value in page.attributes)
    assert all(attribute != "href" or value.startswith(("/poise/", "#")) for _, attribute, value in page.attributes)
    assert page.tags["h1"] == 1
    for referenced in (value for _, attribute, value in page.attributes if attribute == "aria-labelledby"):
        assert page.ids[referenced] == 1


def test_hostile_labels_are_text_and_nothing_else(renderer: Renderer) -> None:
    html = renderer.page(PAGES["hostile"](), "v1")
    page = parsed(html)
    assert page.tags["script"] == 2
    assert page.tags["img"] == 1
    assert "{{ 7*7 }}" in html
    assert "onload=x" in "".join(page.text)
    assert "\n<title>Problem" in html


def test_the_fragment_is_the_live_part_of_the_page(renderer: Renderer) -> None:
    context = PAGES["one visible"]()
    fragment = renderer.fragment(context)
    title, _, body = fragment.partition("\n")
    assert title == "<title>Problem · gpu-node-1 · Poise</title>"
    assert body.strip() in renderer.page(context, "v1")
    parsed(fragment)


def test_the_order_of_the_page(renderer: Renderer) -> None:
    html = renderer.page(replace(PAGES["one visible"](), simulated=True, progress=PAGES["waiting"]().progress), "v1")
    places = [
        html.index(mark) for mark in ('class="bar"', 'class="simulated"', 'id="progress"', 'id="verdict"', 'id="engine-', 'id="no-engine"')
    ]
    assert places == sorted(places)


def test_words_accompany_every_state(renderer: Renderer) -> None:
    text = " ".join(parsed(renderer.page(PAGES["eight cards"](), "v1")).text)
    for word in ("Problem", "lost", "loading", "live", "pass"):
        assert re.search(rf"\b{word}\b", text), word


def test_a_mean_says_over_how_long_so_that_it_is_not_held_against_a_verdict_of_ten_seconds(renderer: Renderer) -> None:
    html = renderer.fragment(PAGES["one visible"]())
    assert f"{MEAN_WINDOW:.0f} s" in ENGLISH.busy
    assert f">{ENGLISH.busy}</th>" in html, "as the head of its column"
    assert f'data-label="{ENGLISH.busy}"' in html, "and where a narrow screen has no heads"


def test_the_simulated_banner_is_there_only_for_simulated_cards(renderer: Renderer) -> None:
    assert 'class="simulated"' in renderer.page(PAGES["simulated"](), "v1")
    assert 'class="simulated"' not in renderer.page(PAGES["tensor parallel"](), "v1")


def test_a_lost_card_has_its_explanation_and_no_numbers(renderer: Renderer) -> None:
    html = renderer.fragment(PAGES["eight cards"]())
    row = html[html.index("GPU 7</b>") :]
    row = row[: row.index("</tr>")]
    assert "lost this card" in row
    assert "meter" not in row


def test_the_page_is_small(renderer: Renderer) -> None:
    assert len(renderer.page(PAGES["eight cards"](), "v1").encode()) < 80_000


def test_commands_in_sentences_are_shown_as_code_and_stay_text(renderer: Renderer) -> None:
    scene = one_visible()
    check = {**scene.checks[1], "fix": "run `nvidia-smi <b>` and `x", "cause": "`a` b"}
    html = renderer.fragment(page_of(replace(scene, checks=(check,))))
    assert "<dd>run `nvidia-smi &lt;b&gt;` and `x</dd>".replace("run", "Run") in html
    assert "<dd><code>a</code> b</dd>" in html
