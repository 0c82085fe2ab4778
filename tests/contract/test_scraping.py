"""Our scraping beside the real Prometheus': both scrape one page through what can happen to it, and keep the same."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import yaml
from poise.history.promql.engine import InstantVector, Matrix
from poise.history.promql.labels import Labels, get, labels
from poise.history.querier.door import Querier
from poise.history.querier.embedded import EmbeddedQuerier
from poise.history.querier.prometheus import PrometheusQuerier
from poise.history.scraping import ScrapePool
from poise.history.store.store import Store
from poise.history.targets import parse_target

from tests.http_handler import answering
from tests.monitoring import free_port, started
from tests.needs import needs
from tests.waiting import wait_until

GOOD = b'# HELP a What a is.\n# TYPE a gauge\na{x="1"} 1\na{x="2",instance="mine",job="other"} 2\n# TYPE b counter\nb_total 3\nc 4\n'
LESS = b'# HELP a What a is.\n# TYPE a gauge\na{x="1"} 5\n# TYPE b counter\nb_total 6\n'


class Page:
    """A page whose content can be changed, and who asked for it."""

    def __init__(self) -> None:
        self.body = GOOD
        self.status = 200
        self.port = 0
        self.asked = {"poise": 0, "Prometheus": 0}

    def set(self, body: bytes, status: int = 200) -> None:
        """From now on; returns once both have seen it for both of their targets."""
        self.body, self.status = body, status
        before = dict(self.asked)
        wait_until(lambda: all(self.asked[who] >= count + 6 for who, count in before.items()), "both scrape the page again")


@contextmanager
def serving() -> Iterator[Page]:
    page = Page()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body, status = page.body, page.status
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            page.asked["Prometheus" if "Prometheus" in self.headers["User-Agent"] else "poise"] += 1

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with answering(Handler) as page.port:
        yield page


@contextmanager
def our_scraping(store: Store, port: int) -> Iterator[ScrapePool]:
    """A pool in a thread of its own: the page twice, once with its labels honoured."""
    plain = replace(parse_target(f"n1=http://127.0.0.1:{port}"), interval=0.5, timeout=0.5)
    honoring = replace(plain, labels=labels({"job": "honoring", "instance": "n1"}), honor_labels=True)
    ready, made, loop = threading.Event(), [], asyncio.new_event_loop()
    stop = asyncio.Event()

    async def main() -> None:
        pool = ScrapePool(store, wall_clock=time.time, clock=time.monotonic)
        pool.set_targets([plain, honoring])
        made.append(pool)
        ready.set()
        running = asyncio.create_task(pool.run())
        await stop.wait()
        running.cancel()
        await asyncio.wait([running])

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    assert ready.wait(20)
    try:
        yield made[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def test_a_page_through_its_life_leaves_the_same_series_in_both(tmp_path: Path) -> None:
    store, port = Store(None), free_port()
    with serving() as page:
        static = [{"targets": [f"127.0.0.1:{page.port}"], "labels": {"instance": "n1"}}]
        configuration = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms"},
            "scrape_configs": [
                {"job_name": "poise", "static_configs": static},
                {"job_name": "honoring", "honor_labels": True, "static_configs": static},
            ],
        }
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        command = [
            needs("prometheus"),
            f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        url = f"http://127.0.0.1:{port}"
        with (
            started("prometheus", command, url, "/-/ready", tmp_path / "prometheus.log") as server,
            our_scraping(store, page.port) as pool,
        ):
            ours = EmbeddedQuerier(store, clock=time.monotonic, metadata=lambda: [status.metadata for status in pool.status()])
            theirs = PrometheusQuerier(server.url)
            wait_until(lambda: all(page.asked.values()), "both scrape")
            for body, status in ((GOOD, 200), (LESS, 200), (b"broken {", 200), (GOOD, 200), (b"", 200), (GOOD, 500), (GOOD, 200)):
                page.set(body, status)
                at = time.time()
                mine, real = (_present(asyncio.run(querier.instant('{job=~".+"}', at)).data) for querier in (ours, theirs))
                assert mine == real, (body, status)
            assert asyncio.run(ours.metadata()).data == asyncio.run(theirs.metadata()).data
            assert _added(ours) == _added(theirs)
            asyncio.run(ours.close())


def _added(querier: Querier) -> float:
    """All series that were ever new, which does not depend on how many scrapes there were."""
    found = asyncio.run(querier.instant("scrape_series_added[5m]", time.time())).data
    assert isinstance(found, Matrix)
    return sum(float(row.values.sum()) for row in found.series)


def _present(found: object) -> dict[Labels, float]:
    """Labels and values; without the values of two series, which depend on when each of the two came."""
    assert isinstance(found, InstantVector)
    own = ("scrape_duration_seconds", "scrape_series_added")
    return {sample.labels: -1.0 if get(sample.labels, "__name__") in own else sample.value for sample in found.samples}
