"""Gives the series of one target's pages the labels under which they are kept, and adds what the scraper itself has to say of each scrape.

The rules are Prometheus' (scrape/target.go, mutateSampleLabels and mutateReportSampleLabels; scrape/scrape.go, report). Knows no network, no
clock and no store.
"""

from __future__ import annotations

from collections.abc import Mapping

from poise.history.promql.labels import NAME, Labels, labels
from poise.history.scrape import Scrape
from poise.history.targets import Target
from poise.history.text_format import Series

#: What the label of a page becomes where the target has one of its name.
EXPORTED = "exported_"


class Labeller:
    """The labels of one target's series; those of the page before are not made again."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._own = dict(target.labels)
        self._known: dict[Series, Labels] = {}
        self._reports = {name: labels({**self._own, NAME: name}) for name in REPORTED}

    def samples(self, scrape: Scrape) -> dict[Labels, float]:
        """Every sample of a scrape under its labels, with the reports of REPORTED. Of two that get the same labels the first counts."""
        known = {series: self._known.get(series) or self._labels(series) for series in scrape.samples}
        added = sum(series not in self._known for series in known)
        if scrape.samples:  # over a scrape that fails, and over an empty page, Prometheus remembers what was there before
            self._known = known
        result = dict.fromkeys(self._reports.values(), 0.0)
        reported = len(result)
        for series, value in scrape.samples.items():
            result.setdefault(known[series], value)
        kept = len(result) - reported
        values = (float(scrape.up), scrape.duration, len(scrape.samples), kept, added)
        result.update(zip(self._reports.values(), map(float, values), strict=True))
        return result

    def _labels(self, series: Series) -> Labels:
        own = series.labels
        if self._target.honor_labels:
            return labels({**self._own, **own, NAME: series.name})
        if own.keys().isdisjoint(self._own):
            return labels({**own, **self._own, NAME: series.name})
        moved = {name: value for name, value in own.items() if name not in self._own}
        for name in sorted(own.keys() & self._own.keys(), key=len):
            new = EXPORTED + name
            while new in moved or new in self._own:
                new = EXPORTED + new
            moved[new] = own[name]
        return labels({**moved, **self._own, NAME: series.name})


#: The series that a scraper adds to each scrape, in the order in which `Labeller.samples` fills them.
REPORTED: Mapping[str, str] = {
    "up": "1 where the page was had and understood, else 0",
    "scrape_duration_seconds": "how long that took",
    "scrape_samples_scraped": "samples on the page",
    "scrape_samples_post_metric_relabeling": "samples that were kept of them",
    "scrape_series_added": "series that the page before did not have",
}
