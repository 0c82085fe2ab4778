"""What the mirror reads of recorded vLLM pages, and the thread that asks for them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from poise.testbed import engine_page
from poise.testbed.engine_page import PageThread, counts_of

from tests.recorded import CAPTURES
from tests.waiting import wait_until

PAGE = 'vllm:generation_tokens_total{engine="0"} 7.0\nvllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 3.0\n'


def recorded(name: str) -> engine_page.PageCounts:
    return counts_of((CAPTURES / name).read_text().splitlines())


def test_tokens_of_a_recorded_page_are_those_of_its_own_counters() -> None:
    counts = recorded("tp2-server-after.prom")
    assert counts.computed_tokens == {0: 20689 + 8288}
    assert counts.transferred_bytes == {}
    assert (counts.cache_tokens, counts.cache_element_bytes) == (1024 * 128, None)


def test_data_parallel_ranks_are_told_apart() -> None:
    counts = recorded("dp2-server-after.prom")
    assert set(counts.computed_tokens) == {0, 1}
    assert min(counts.computed_tokens.values()) > 0


def test_kv_bytes_are_counted_by_the_server_that_pulls_and_not_by_the_one_that_gives() -> None:
    decode, prefill = recorded("hybrid-decode-after.prom"), recorded("hybrid-prefill-after.prom")
    assert decode.transferred_bytes[0] > 0
    assert prefill.transferred_bytes == {0: 0.0}
    assert prefill.prompt_tokens[0] >= decode.prompt_tokens[0] > 0


def test_tokens_from_a_cache_went_through_no_layer() -> None:
    page = [
        'vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 100.0',
        'vllm:prompt_tokens_by_source_total{engine="0",source="local_cache_hit"} 900.0',
        'vllm:generation_tokens_total{engine="0"} 7.0',
        'vllm:generation_tokens_total{engine="1"} 3.0',
    ]
    assert counts_of(page).computed_tokens == {0: 107}


def test_a_page_without_the_counters_gives_no_tokens() -> None:
    assert counts_of([]) == engine_page.PageCounts()
    assert counts_of(["vllm:generation_tokens_total 7.0"]).computed_tokens == {}


def test_a_kv_cache_of_eight_bits_is_told() -> None:
    line = 'vllm:cache_config_info{block_size="16",cache_dtype="fp8_e4m3",engine="0",num_gpu_blocks="10"} 1.0'
    counts = counts_of([line])
    assert (counts.cache_tokens, counts.cache_element_bytes) == (160, 1)
    assert counts_of([line.replace('"10"', '"None"')]).cache_tokens == 0


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(PAGE.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


@pytest.fixture
def server() -> Iterator[int]:
    made = HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=made.serve_forever, args=(0.02,))
    thread.start()
    yield made.server_port
    made.shutdown()
    thread.join()
    made.server_close()


def test_a_server_that_never_answers_costs_the_others_nothing(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_page, "PAGE_SECONDS", 0.02)
    monkeypatch.setattr(engine_page, "PAGE_TIMEOUT_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pages = PageThread()
        try:
            pages.want([silent.getsockname()[1], server])
            wait_until(lambda: pages.latest(server), "a first page")
            first = pages.latest(server)
            assert first is not None
            assert first.counts.computed_tokens == {0: 10}
            wait_until(lambda: (now := pages.latest(server)) is not None and now.number > first.number, "the next page")
            assert pages.latest(silent.getsockname()[1]) is None
        finally:
            pages.close()


def test_nobody_there_is_no_page() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert engine_page.read_page(port) == []
