"""The labels under which a target's series are kept, and what the scraper adds to each scrape."""

from __future__ import annotations

from dataclasses import replace

from poise.history.labelling import Labeller
from poise.history.promql.labels import Labels, labels
from poise.history.scrape import Scrape
from poise.history.targets import parse_target
from poise.history.text_format import Series, series

TARGET = parse_target("n1=http://n1:9747")


def own(name: str, **more: str) -> Labels:
    return labels({"__name__": name, "instance": "n1", "job": "poise", **more})


def scraped(*samples: tuple[Series, float], error: str = "") -> Scrape:
    return Scrape(100.0, 0.25, dict(samples), error)


def test_instance_and_job_are_put_on_each_series_and_reports_are_added() -> None:
    found = Labeller(TARGET).samples(scraped((series("a", {"gpu": "0"}), 1.0), (series("b", {}), 2.0)))
    assert found == {
        own("a", gpu="0"): 1.0,
        own("b"): 2.0,
        own("up"): 1.0,
        own("scrape_duration_seconds"): 0.25,
        own("scrape_samples_scraped"): 2.0,
        own("scrape_samples_post_metric_relabeling"): 2.0,
        own("scrape_series_added"): 2.0,
    }


def test_a_failed_scrape_brings_its_reports_only() -> None:
    found = Labeller(TARGET).samples(scraped(error="refused"))
    assert found[own("up")] == 0.0
    assert len(found) == 5


def test_series_added_are_those_that_the_page_before_did_not_have() -> None:
    labeller = Labeller(TARGET)
    a, b = series("a", {}), series("b", {})
    added = [
        labeller.samples(scrape)[own("scrape_series_added")]
        for scrape in (scraped((a, 1)), scraped((a, 1), (b, 1)), scraped(error="x"), scraped(), scraped((b, 1)), scraped((a, 1)))
    ]
    assert added == [1, 1, 0, 0, 0, 1]


def test_a_page_cannot_take_the_targets_labels() -> None:
    clash = series("a", {"instance": "other", "exported_instance": "more", "job": "x"})
    (first, *_) = [key for key in Labeller(TARGET).samples(scraped((clash, 1.0))) if dict(key)["__name__"] == "a"]
    assert first == own("a", exported_exported_instance="other", exported_instance="more", exported_job="x")


def test_with_honor_labels_the_page_wins() -> None:
    clash = series("a", {"instance": "other"})
    found = Labeller(replace(TARGET, honor_labels=True)).samples(scraped((clash, 1.0)))
    assert own("a") not in found
    assert found[labels({"__name__": "a", "instance": "other", "job": "poise"})] == 1.0


def test_two_series_that_get_the_same_labels_are_one_the_first() -> None:
    honoring = Labeller(replace(TARGET, honor_labels=True))
    found = honoring.samples(scraped((series("a", {}), 1.0), (series("a", {"instance": "n1"}), 2.0)))
    assert found[own("a")] == 1.0
    assert found[own("scrape_samples_scraped")] == 2.0
    assert found[own("scrape_samples_post_metric_relabeling")] == 1.0
