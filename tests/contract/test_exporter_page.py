"""The exporter's page before its real readers: promtool's linter and Prometheus itself, which prefers OpenMetrics."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from poise.exporter.assemble import Published
from poise.exporter.checks.runner import Runner
from poise.exporter.exposition import Build, Exposition, Format, library_collectors
from poise.exporter.pages import Pages, Request, Response
from poise.exporter.server import HttpServer
from poise.exporter.snapshot import NodeSnapshot
from prometheus_client.parser import text_string_to_metric_families

from tests.full_node import page_engine, snapshot_of
from tests.monitoring import prometheus
from tests.needs import needs
from tests.simulated_cards import START, bench
from tests.waiting import wait_until

pytestmark = pytest.mark.contract

PROMTOOL_SECONDS = 60
BUILD = Build("1.2.3", "3.11")


@pytest.mark.parametrize("profile", ["h20x2", "h100x8", "blackwell-x8", "pcie-x2", "driver535", "mig"])
def test_promtool_finds_nothing_to_complain_of(profile: str) -> None:
    with bench(profile) as cards:
        count = 4 if profile == "h100x8" else 1
        snapshot = snapshot_of(cards, [page_engine(number, "tp2-server-after.prom", 2) for number in range(count)])
        page = Exposition(BUILD, library_collectors()).render(snapshot, Runner().observe(snapshot).results, START)
    command = [needs("promtool"), "check", "metrics"]
    done = subprocess.run(command, input=page, capture_output=True, timeout=PROMTOOL_SECONDS, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.fixture
def full() -> Iterator[NodeSnapshot]:
    with bench("h100x8") as cards:
        yield snapshot_of(cards, [page_engine(number, "tp2-server-after.prom", 2) for number in range(4)])


def test_prometheus_takes_every_sample_of_a_full_node(full: NodeSnapshot, tmp_path: Path) -> None:
    exposition = Exposition(BUILD, library_collectors())
    published = Published(full, Runner().observe(full))
    asked: list[Format] = []

    class Listening(Pages):
        """Notes in which format Prometheus wants the page."""

        def answer(self, request: Request) -> Response:
            response = super().answer(request)
            asked.append(Format(response.content_type))
            return response

    server = HttpServer("127.0.0.1", 0, Listening(lambda: published, exposition, "1.2.3"))
    thread = server.serve_in_background()
    try:
        with prometheus(tmp_path, {"n1": f"127.0.0.1:{server.server_port}"}, factor=1.0) as reader:

            def value(expression: str) -> float | None:
                result = reader.get("/api/v1/query", query=expression)["data"]["result"]
                return float(result[0]["value"][1]) if result else None

            wait_until(lambda: value('up{instance="n1"}') == 1, "Prometheus took the page")
            assert published.outcome is not None
            page = exposition.render(full, published.outcome.results, START).decode()
            samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
            assert value('scrape_samples_scraped{instance="n1"}') == len(samples)
            assert value('scrape_samples_post_metric_relabeling{instance="n1"}') == len(samples)
            uuid = full.gpus[0].uuid
            assert value(f'poise_gpu_memory_total_bytes{{uuid="{uuid}"}}') == 85520809984
            assert value('count(poise_engine_time_to_first_token_seconds_bucket{engine="node:8000"})')
            types = reader.get("/api/v1/metadata", metric="poise_gpu_up")["data"]
            assert types["poise_gpu_up"][0]["type"] == "gauge"
        assert Format.OPENMETRICS in asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
