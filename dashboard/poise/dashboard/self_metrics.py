"""Metrics of the dashboard's own process, for its `/metrics`. The node's series are the exporter's and are never repeated here."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

#: Seconds. The budget for a page of one node is 0.05.
PAGE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


class SelfMetrics:
    """One registry per application, so that two in one process do not meet."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.streams = Gauge("poise_dashboard_event_streams", "Open event streams, one per visible tab", registry=self.registry)
        self.scrapes = Counter("poise_dashboard_scrapes", "Scrapes of the exporter by result", ["result"], registry=self.registry)
        self.scrape_seconds = Gauge("poise_dashboard_scrape_duration_seconds", "Duration of the last scrape", registry=self.registry)
        self.page_seconds = Histogram(
            "poise_dashboard_page_seconds", "Time to build and render a page or fragment", buckets=PAGE_BUCKETS, registry=self.registry
        )
        for result in ("success", "failure"):
            self.scrapes.labels(result)

    def render(self) -> bytes:
        """The page in text format."""
        return generate_latest(self.registry)
