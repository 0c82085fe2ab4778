"""Which pages of the exporter count for a step."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from poise.testbed.bench import watch
from poise.testbed.bench.observe import Card, NodePage
from poise.testbed.bench.watch import Watch
from poise.testbed.errors import TestbedError

from tests.unit.testbed.bench.runs import RECORDED


class Node:
    """An exporter whose samples are taken at whole seconds, and a clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.dead = False

    def read(self) -> NodePage:
        if self.dead:
            raise TestbedError("gone")
        return NodePage("", True, {"a": Card(0, "a", "", {"sampled": float(int(self.now))})}, {})

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


def sampled(page: NodePage | None) -> float | None:
    return None if page is None else page.cards["a"].figures["sampled"]


def test_the_window_lies_within_the_step() -> None:
    node = Node()
    watching = Watch(node.read, node.clock)
    node.now = 110.4
    watching.began()
    for node.now in (110.5, 110.6, 111.6, 112.7, 113.8, 114.9):
        watching.look()
    node.now = 115.2
    watching.ended()
    node.now = 117.0
    watching.look()
    pages, settled = watching.settle(lambda before, after: True, node.wait)
    assert settled
    assert (sampled(pages.before), sampled(pages.first), sampled(pages.last), sampled(pages.after)) == (110.0, 111.0, 114.0, 118.0)


def test_counters_that_never_arrive_are_not_waited_for_longer_than_three_rounds() -> None:
    node = Node()
    watching = Watch(node.read, node.clock)
    watching.began()
    watching.ended()
    pages, settled = watching.settle(lambda before, after: False, node.wait)
    assert not settled
    assert node.now == pytest.approx(100.0 + watch.SETTLE_SECONDS, abs=watch.SETTLE_LOOK_SECONDS)
    assert pages.first is None


def test_a_page_that_is_missed_costs_nothing_but_itself() -> None:
    node = Node()
    watching = Watch(node.read, node.clock)
    watching.began()
    node.now, node.dead = 101.5, True
    watching.look()
    node.now, node.dead = 103.0, False
    watching.look()
    watching.ended()
    assert sampled(watching.settle(lambda before, after: True, node.wait)[0].first) == 103.0


def test_an_exporter_that_is_gone_when_a_step_begins_costs_what_it_would_have_shown() -> None:
    node = Node()
    watching = Watch(node.read, node.clock)
    node.dead = True
    watching.began()
    watching.look()
    watching.ended()
    node.dead = False
    with pytest.raises(TestbedError, match="gone"):
        watching.settle(lambda before, after: True, node.wait)


@pytest.fixture
def served() -> Iterator[str]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write((RECORDED / "tp-after.prom").read_bytes())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_page_is_read_over_http(served: str) -> None:
    assert len(watch.reader(served)().cards) == 2


def test_an_exporter_that_is_gone_is_named() -> None:
    with pytest.raises(TestbedError, match=r"the exporter on http://127\.0\.0\.1:1 gave no page"):
        watch.reader("http://127.0.0.1:1")()
