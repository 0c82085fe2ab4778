"""How the history itself does, as series for the /metrics of the process that keeps it. Reads the store and the pool; knows no page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from poise.history.scraping import TargetStatus
from poise.history.store.store import StoreStatus
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class HistoryCollector(Collector):
    """Register it with a registry of prometheus_client. `targets` gives how each target does (`ScrapePool.status`)."""

    def __init__(self, store: Callable[[], StoreStatus], targets: Callable[[], Sequence[TargetStatus]]) -> None:
        self._store = store
        self._targets = targets

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering asks neither store nor pool."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        yield from self._of_store(self._store())
        scrapes = CounterMetricFamily("poise_history_scrapes", "Scrapes of each target by result", labels=["job", "instance", "result"])
        missed = CounterMetricFamily(
            "poise_history_scrapes_not_kept",
            "Scrapes that were seen and not stored: the disk still had the one before, or this process lacked something for them",
            labels=["job", "instance"],
        )
        samples = CounterMetricFamily(
            "poise_history_samples_scraped", "Samples of each target given to the store", labels=["job", "instance"]
        )
        for status in self._targets():
            own = [status.target.job, status.target.name]
            scrapes.add_metric([*own, "success"], status.successes)
            scrapes.add_metric([*own, "failure"], status.failures)
            missed.add_metric(own, status.not_kept)
            samples.add_metric(own, status.samples)
        yield from (scrapes, missed, samples)

    @staticmethod
    def _of_store(status: StoreStatus) -> Iterator[Metric]:
        yield GaugeMetricFamily("poise_history_series", "Series in the store", value=status.series)
        yield GaugeMetricFamily("poise_history_samples_in_memory", "Samples that are held in memory", value=status.head_samples)
        yield GaugeMetricFamily("poise_history_chunks", "Chunks on disk", value=status.chunks)
        yield GaugeMetricFamily("poise_history_used_bytes", "Bytes of the file that hold something", value=status.used_bytes)
        yield GaugeMetricFamily(
            "poise_history_writing_failed",
            "1 while the disk takes nothing; what comes is then kept in memory",
            value=float(bool(status.error)),
        )
        yield CounterMetricFamily(
            "poise_history_series_dropped", "Samples of new series over the limit, not kept", value=status.dropped_series
        )
        yield CounterMetricFamily(
            "poise_history_series_postponed",
            "Samples of series that were new and more than one scrape may bring; their series come with a later one",
            value=status.postponed_series,
        )
        for name, text, at in (
            ("oldest", "Time of the oldest sample", status.oldest),
            ("newest", "Time of the newest sample", status.newest),
        ):
            if at is not None:
                yield GaugeMetricFamily(f"poise_history_{name}_sample_timestamp_seconds", text, value=at)
