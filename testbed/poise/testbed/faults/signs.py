"""Whether a sign of a fault is on the exporter's pages: pure arithmetic over pages from before and from during the fault.

Knows no fault and asks nobody for a page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poise.exporter import metrics
from poise.exporter.metrics import Kind, Metric
from poise.history.text_format import PageReader, Series
from poise.testbed.faults.fault import Sign
from poise.testbed.plan import DeploymentPlan

# Rates and means wander under a load that never ends; a fault moves them by far more than this factor (heuristic).
CHANGE = 1.5
# Below this rate a counter stands still: one event in so many seconds (heuristic).
STILL_PER_SECOND = 0.01


@dataclass(frozen=True, slots=True)
class Page:
    """The exporter's page at `time`, seconds of any clock that does not jump."""

    time: float
    samples: Mapping[Series, float]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a sign looked like before and during a fault, in words, and whether it moved as it should."""

    sign: Sign
    before: str
    during: str
    moved: bool

    def __str__(self) -> str:
        return f"{self.sign.subject} {self.before} → {self.during}"


def read(text: str, time: float) -> Page:
    """Raises text_format.PageError."""
    return Page(time, PageReader().read(text.encode()))


def metric_of(sign: Sign) -> Metric:
    """The declaration of its series (a histogram's stands for its three). Raises KeyError when it is not declared."""
    return {metric.name: metric for metric in metrics.ALL}[sign.series]


def look(sign: Sign, plan: DeploymentPlan, before: tuple[Page, Page], during: tuple[Page, Page]) -> Seen:
    """Judges a sign by two pages from before and two from during the fault, each pair some seconds apart."""
    kind, choose = metric_of(sign).kind, _Chooser(sign, plan)
    if kind is Kind.GAUGE:
        old, new, unit = choose.total(before[1], sign.series), choose.total(during[1], sign.series), ""
        least, most = 1.0, 1.0
    elif kind is Kind.COUNTER:
        old, new, unit = choose.rate(before, sign.series), choose.rate(during, sign.series), "/s"
        least, most = CHANGE, 1 / CHANGE
    else:
        old, new, unit = choose.mean(before, sign.series), choose.mean(during, sign.series), ""
        least, most = CHANGE, 1 / CHANGE
    return Seen(sign, _words(old, unit), _words(new, unit), _moved(sign, old, new, least, most))


def _moved(sign: Sign, old: float | None, new: float | None, least: float, most: float) -> bool:
    if sign.movement in ("appears", "goes"):
        return (old is None) is (sign.movement == "appears") and (new is None) is (sign.movement == "goes")
    if sign.movement == "slows" and new is None:
        return old is not None  # the engine that counted it answers no more
    if new is None:
        return False
    base = 0.0 if old is None else old
    if sign.movement == "slows":
        return base > STILL_PER_SECOND and (new <= STILL_PER_SECOND if sign.to == 0 else new <= most * base)
    if sign.to is not None:
        return new == sign.to and new != base
    if sign.movement == "falls":
        return new < most * base
    if sign.movement == "counts":
        return new > STILL_PER_SECOND and new >= least * base
    return new > least * base


@dataclass(frozen=True, slots=True)
class _Chooser:
    """The samples that a sign is about. Those of an engine or router of the deployment that is no part of the sign count too; those of
    others on the machine do not."""

    sign: Sign
    plan: DeploymentPlan

    def total(self, page: Page, name: str) -> float | None:
        """The sum of the chosen samples; None when there is none."""
        found = [value for series, value in page.samples.items() if series.name == name and self._chosen(series)]
        return sum(found) if found else None

    def rate(self, pages: tuple[Page, Page], name: str) -> float | None:
        """Growth per second; None when the later page has no sample. A counter that began anew counts from 0."""
        grown = self._grown(pages, name)
        return None if grown is None else grown / (pages[1].time - pages[0].time)

    def mean(self, pages: tuple[Page, Page], name: str) -> float | None:
        """The mean of what a histogram took in between; None when that is nothing."""
        count, total = self._grown(pages, f"{name}_count"), self._grown(pages, f"{name}_sum")
        return total / count if count and total is not None else None

    def _grown(self, pages: tuple[Page, Page], name: str) -> float | None:
        late, early = (self.total(page, name) for page in reversed(pages))
        if late is None:
            return None
        return late - early if early is not None and early <= late else late

    def _chosen(self, series: Series) -> bool:
        if any(series.label(name) != value for name, value in self.sign.labels):
            return False
        engines = {engine.name: engine.port for engine in self.plan.engines}
        routers = {} if self.plan.router is None else {self.plan.router.name: self.plan.router.port}
        for label, ports in (("engine", engines), ("router", routers)):
            wanted = [port for name, port in ports.items() if self.sign.part in (None, name)]
            if label in series.labels and not series.label(label).endswith(tuple(f":{port}" for port in wanted)):
                return False
            if label not in series.labels and self.sign.part in ports:
                return False
        return True


def _words(value: float | None, unit: str) -> str:
    return "absent" if value is None else f"{value:.4g}{unit}"
