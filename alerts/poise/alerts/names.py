"""The names that rules may use: every declared series with its labels, what Prometheus adds, and what recording rules make.

Says which labels a name has; whether an expression uses them rightly is decided in `labels.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from poise.exporter import metrics
from poise.exporter.metrics import LIBRARY_PREFIXES, Kind

#: Labels that the scraper adds to every series.
TARGET_LABELS = frozenset({"instance", "job"})

#: The labels of a name, or None where they are not known.
Labels = frozenset[str] | None
Vocabulary = Mapping[str, Labels]

#: Series that Prometheus makes itself for every target and every alert (`scrape/scrape.go`, `rules/alerting.go`).
_PROMETHEUS: Vocabulary = {
    "up": TARGET_LABELS,
    "scrape_duration_seconds": TARGET_LABELS,
    "scrape_samples_scraped": TARGET_LABELS,
    "ALERTS": None,
    "ALERTS_FOR_STATE": None,
}


def declared() -> dict[str, Labels]:
    """All names that exist without any recording rule."""
    names: dict[str, Labels] = dict(_PROMETHEUS)
    for name, metric in metrics.by_name().items():
        bucket = metric.kind is Kind.HISTOGRAM and name.endswith("_bucket")
        names[name] = frozenset(metric.label_names) | TARGET_LABELS | (frozenset({"le"}) if bucket else frozenset())
    return names


def is_library_name(name: str) -> bool:
    """Whether the name is one of prometheus_client's own, which the page carries undeclared."""
    return name.startswith(LIBRARY_PREFIXES)


def is_ours(name: str) -> bool:
    """Whether the name can only mean a series of Poise."""
    return name.startswith("poise_")


def suggestion(name: str, vocabulary: Vocabulary) -> str:
    """' (did you mean "…"?)' for a name that comes close, else an empty string."""
    close = difflib.get_close_matches(name, vocabulary, n=1, cutoff=0.8)
    return f' (did you mean "{close[0]}"?)' if close else ""
