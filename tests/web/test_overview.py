"""The overview in a real browser: with and without JavaScript, live, narrow, dark, hostile, hidden, cut off, by keyboard."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.node_scenes import NodeScene, eight_cards, hostile, idle, one_visible, tensor_parallel
from tests.web.conftest import Watched
from tests.web.serving import PATIENCE, Served

pytestmark = pytest.mark.contract

Serve = Callable[..., Served]
OpenTab = Callable[..., Page]

#: Bytes over the wire for a first visit, and for a page alone (ux: 150 KB).
BUDGET = 150_000

SCENES: dict[str, Callable[[], NodeScene]] = {
    "tensor parallel": tensor_parallel,
    "idle": idle,
    "one visible": one_visible,
    "eight cards": eight_cards,
    "simulated": lambda: replace(tensor_parallel(), simulated=True),
    "hostile": lambda: hostile(one_visible(), "x" * 300),
}

CONTRAST = """
() => {
  const parse = text => { const m = text.match(/[\\d.]+/g).map(Number); return {rgb: m.slice(0, 3), a: m[3] ?? 1}; };
  const luminance = rgb => {
    const [r, g, b] = rgb.map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = element => {
    for (let at = element; at; at = at.parentElement) {
      const {rgb, a} = parse(getComputedStyle(at).backgroundColor);
      if (a === 1) return rgb;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const box = element.getBoundingClientRect();
    if (!walker.currentNode.nodeValue.trim() || box.width < 2 || element.closest('[hidden],.skip,.sr,noscript,svg')) continue;
    const [a, b] = [luminance(parse(getComputedStyle(element).color).rgb), luminance(ground(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${element.className} ${walker.currentNode.nodeValue.trim()}`);
  }
  return poor;
}
"""


def wait_until(condition: Callable[[], bool], what: str, page: Page) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE:g} s"
        page.wait_for_timeout(20)


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize(("width", "dark"), [(1440, False), (1440, True), (390, False), (820, True)])
def test_every_scene_renders_without_errors_and_without_horizontal_scroll(
    serve: Serve, open_tab: OpenTab, name: str, width: int, dark: bool
) -> None:
    page = open_tab(serve(SCENES[name]()).url, width=width, dark=dark)
    expect(page.locator("#verdict .word")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRAST) == []


def test_without_javascript_the_page_is_whole_and_reloads_itself(serve: Serve, open_tab: OpenTab) -> None:
    page = open_tab(serve(one_visible()).url, javascript=False)
    expect(page.locator("#verdict .lines").get_by_text("GPU 1 idle (0 %) while GPU 0 is saturated")).to_be_visible()
    expect(page.get_by_role("heading", name="No engine")).to_be_visible()
    expect(page.locator("meta[http-equiv=refresh]")).to_have_attribute("content", "10")
    page.locator("#checks summary").click()
    expect(page.locator("#checks").get_by_text("CUDA_VISIBLE_DEVICES names all cards")).to_be_visible()


def test_a_change_on_the_node_appears_through_the_stream_without_a_reload(serve: Serve, open_tab: OpenTab) -> None:
    served = serve(tensor_parallel())
    page = open_tab(served.url)
    expect(page.locator("#verdict .word")).to_have_text("OK")
    wait_until(lambda: served.streams == 1, "the stream is open", page)
    page.evaluate("window.mark = document.querySelector('tbody tr')")
    served.show(one_visible())
    expect(page.locator("#verdict .word")).to_have_text("Problem")
    expect(page.get_by_role("status")).to_contain_text("No card idles outside every engine")
    assert page.title() == "Problem · gpu-node-1 · Poise"
    assert page.evaluate("window.mark.isConnected"), "rows are changed in place, not replaced"
    served.show(tensor_parallel())
    expect(page.locator("#verdict .word")).to_have_text("OK")


def test_one_stream_per_tab_closed_while_hidden_and_opened_again(serve: Serve, open_tab: OpenTab) -> None:
    served = serve(tensor_parallel())
    first, second = open_tab(served.url), open_tab(served.url)
    wait_until(lambda: served.streams == 2, "two tabs, two streams", first)
    hide = (
        "Object.defineProperty(document, 'hidden', {value: %s, configurable: true}); document.dispatchEvent(new Event('visibilitychange'))"
    )
    second.evaluate(hide % "true")
    wait_until(lambda: served.streams == 1, "the hidden tab has closed its stream", second)
    served.show(one_visible())
    expect(first.locator("#verdict .word")).to_have_text("Problem")
    second.wait_for_timeout(served.heartbeat * 4_000)
    assert served.streams == 1
    assert second.locator("#verdict .word").inner_text() == "OK"
    second.evaluate(hide % "false")
    expect(second.locator("#verdict .word")).to_have_text("Problem")
    wait_until(lambda: served.streams == 2, "the tab has opened its stream again", second)


def test_a_tab_opened_in_the_background_opens_no_stream_until_it_is_seen(serve: Serve, open_tab: OpenTab) -> None:
    served = serve(tensor_parallel())
    page = open_tab("about:blank")
    page.add_init_script("window.seen = false; Object.defineProperty(document, 'hidden', {get: () => !window.seen, configurable: true})")
    page.goto(served.url)
    page.wait_for_timeout(500)
    assert served.streams == 0
    page.evaluate("window.seen = true; document.dispatchEvent(new Event('visibilitychange'))")
    wait_until(lambda: served.streams == 1, "the stream is open", page)


def test_when_streams_are_held_back_the_page_asks_by_itself(serve: Serve, open_tab: OpenTab, watched: Watched) -> None:
    watched.allowed = ("ERR_FAILED", "Failed to fetch")
    served = serve(tensor_parallel())
    page = open_tab("about:blank")
    page.route("**/events*", lambda route: route.abort())
    page.goto(served.url)
    expect(page.locator("#verdict .word")).to_have_text("OK")
    served.show(one_visible())
    expect(page.locator("#verdict .word")).to_have_text("Problem", timeout=PATIENCE * 1000)
    expect(page.locator("#connection")).to_be_hidden()


def test_a_server_that_is_gone_is_said_and_one_that_returns_is_used(serve: Serve, open_tab: OpenTab, watched: Watched) -> None:
    watched.allowed = (
        "ERR_CONNECTION_REFUSED",
        "Failed to fetch",
        "network error",
        "htmx:sse:error",
        "ERR_INCOMPLETE_CHUNKED",
        "ERR_EMPTY",
    )
    first = Served(tensor_parallel()).start()
    try:
        page = open_tab(first.url)
        wait_until(lambda: first.streams == 1, "the stream is open", page)
    finally:
        first.stop()
    expect(page.locator("#connection")).to_be_visible(timeout=PATIENCE * 1000)
    expect(page.locator("#connection")).to_contain_text("What you see is old")
    served = serve(one_visible(), port=first.port)
    expect(page.locator("#verdict .word")).to_have_text("Problem", timeout=PATIENCE * 1000)
    expect(page.locator("#connection")).to_be_hidden()
    wait_until(lambda: served.streams == 1, "the stream is open again", page)


def test_hostile_labels_do_not_run_and_do_not_break_the_page(serve: Serve, open_tab: OpenTab, watched: Watched) -> None:
    text = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'><svg onload=alert(3)> {{ 7*7 }} <hx-partial hx-get=/x>"
    served = serve(hostile(one_visible(), text))
    page = open_tab(served.url)
    wait_until(lambda: served.streams == 1, "the stream is open", page)
    served.pass_seconds(5)
    served.show(hostile(tensor_parallel(), text))
    expect(page.get_by_role("heading", name="TP 1")).to_have_count(0)
    expect(page.locator(".rank")).to_have_count(2)
    assert page.locator("img").count() == 1
    assert page.locator("script").count() == 2
    assert page.locator("#live script, #live template, #live [onload], #live [onerror]").count() == 0
    assert "alert(1)" in page.locator("#live").inner_text()
    assert watched.dialogs == []


def test_it_works_under_a_prefix(serve: Serve, open_tab: OpenTab) -> None:
    served = serve(tensor_parallel(), root_path="/tools/poise")
    page = open_tab(served.url)
    wait_until(lambda: served.streams == 1, "the stream is open", page)
    served.show(one_visible())
    expect(page.locator("#verdict .word")).to_have_text("Problem")
    assert page.evaluate("document.fonts.check('14px Inter')")
    page.get_by_role("link", name="This page as JSON").click()
    assert '"idle_unowned_card"' in page.content()


def test_it_can_be_used_by_keyboard_and_an_update_takes_nothing_away(serve: Serve, open_tab: OpenTab) -> None:
    served = serve(one_visible())
    page = open_tab(served.url)
    wait_until(lambda: served.streams == 1, "the stream is open", page)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    for _ in range(4):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "SUMMARY":
            break
    page.keyboard.press("Enter")
    expect(page.locator("#checks")).to_have_attribute("open", "")
    served.show(tensor_parallel())
    expect(page.locator("#verdict .word")).to_have_text("OK")
    expect(page.locator("#checks")).to_have_attribute("open", "")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"


def test_light_and_dark_follow_the_preference(serve: Serve, open_tab: OpenTab) -> None:
    served = serve(tensor_parallel())
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light, dark = open_tab(served.url).evaluate(ground), open_tab(served.url, dark=True).evaluate(ground)
    assert sum(int(part) for part in re.findall(r"\d+", light)) > 600
    assert sum(int(part) for part in re.findall(r"\d+", dark)) < 120


def test_tables_have_headers_and_pictures_have_words(serve: Serve, open_tab: OpenTab) -> None:
    page = open_tab(serve(eight_cards()).url)
    assert page.locator("table").count() == page.locator("table caption").count() == page.locator("table:has(thead th[scope=col])").count()
    assert page.locator("tbody tr").count() == page.locator("tbody th[scope=row]").count() == 8
    for label in page.locator("svg[role=img]").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))"):
        assert "last 5 minutes" in label
    assert page.locator("svg:not([role=img]):not([aria-hidden])").count() == 0


def test_a_first_visit_fits_the_budget(serve: Serve, open_tab: OpenTab) -> None:
    served = serve(eight_cards())
    page = open_tab("about:blank")
    sizes: dict[str, float] = {}
    session = page.context.new_cdp_session(page)
    names: dict[str, str] = {}
    session.send("Network.enable")

    def received(event: dict[str, Any]) -> None:
        names[event["requestId"]] = event["response"]["url"]

    def finished(event: dict[str, Any]) -> None:
        sizes[names.get(event["requestId"], "?")] = event["encodedDataLength"]

    session.on("Network.responseReceived", received)
    session.on("Network.loadingFinished", finished)
    page.goto(served.url)
    page.wait_for_timeout(300)
    total = sum(sizes.values())
    seconds = served.live.metrics.registry.get_sample_value("poise_dashboard_page_seconds_sum") or 0.0
    pages = served.live.metrics.registry.get_sample_value("poise_dashboard_page_seconds_count") or 1.0
    document = next(size for url, size in sizes.items() if url == served.url)
    print(f"first visit {total / 1000:.0f} KB, the page itself {document / 1000:.1f} KB, server time {seconds / pages * 1000:.1f} ms")
    assert 0 < total <= BUDGET
