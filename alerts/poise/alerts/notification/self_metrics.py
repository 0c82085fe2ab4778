"""How it goes with each Alertmanager, as series for the /metrics of the process that tells them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from poise.alerts.notification.notifier import LineStatus
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class NotifierCollector(Collector):
    """Register it with a registry of prometheus_client. `status` is the notifier's."""

    def __init__(self, status: Callable[[], Sequence[LineStatus]]) -> None:
        self._status = status

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering asks nobody."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        sent = CounterMetricFamily("poise_notifier_alerts_sent", "Alerts that an Alertmanager took", labels=["alertmanager"])
        failed = CounterMetricFamily("poise_notifier_alerts_failed", "Alerts of calls that did not succeed", labels=["alertmanager"])
        dropped = CounterMetricFamily(
            "poise_notifier_alerts_dropped",
            "Alerts that were let go: too many waited, they had waited too long, or they were refused",
            labels=["alertmanager"],
        )
        waiting = GaugeMetricFamily("poise_notifier_alerts_waiting", "Alerts that wait for an Alertmanager", labels=["alertmanager"])
        up = GaugeMetricFamily("poise_notifier_alertmanager_up", "Whether the last call succeeded", labels=["alertmanager"])
        for line in self._status():
            own = [line.url]
            sent.add_metric(own, line.sent)
            failed.add_metric(own, line.failed)
            dropped.add_metric(own, line.dropped)
            waiting.add_metric(own, line.waiting)
            if line.sent or line.failed:
                up.add_metric(own, not line.error)
        yield from (sent, failed, dropped, waiting, up)
