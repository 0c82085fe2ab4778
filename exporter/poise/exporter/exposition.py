"""The snapshot as a Prometheus page: generic over the declared metrics, in the text format or in OpenMetrics.

A page is written directly rather than through prometheus_client's classes, which take several times as long for thousands of samples; a test
holds both to the same samples. A value that cannot stand on a page (NaN, infinite, no number, wrong labels) costs its own series only and is
logged once. This file knows no driver, no engine and no socket.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

import prometheus_client
from poise.exporter import metrics
from poise.exporter.checks.result import FAIL_FIRST, CheckResult, Status
from poise.exporter.interconnect_readings import interconnect_readings
from poise.exporter.metrics import Kind, Metric, Owner
from poise.exporter.snapshot import Gpu, Histogram, NodeSnapshot, Readings
from prometheus_client.registry import Collector as LibraryCollector

logger = logging.getLogger(__name__)


class Format(StrEnum):
    """The two exposition formats; the values are the content types."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Build:
    """What runs: version of Poise and of Python."""

    version: str
    python: str


@dataclass(frozen=True, slots=True)
class _Source:
    """Readings with the leading labels of their owner, as text ready for a line (without braces)."""

    leading: str
    readings: Readings


Histograms = Mapping[Metric, Mapping[tuple[str, ...], Histogram]]


# ----------------------------------------------------------------------------------------------------------- what is derived
def node_readings(snapshot: NodeSnapshot, results: Iterable[CheckResult], build: Build, now: float) -> Readings:
    """The series of the node itself: versions, counts, collectors, checks. `now` is Unix seconds."""
    readings: dict[Metric, dict[tuple[str, ...], float]] = {
        metrics.BUILD_INFO: {(build.version, build.python): 1.0},
        metrics.NODE_INFO: {
            (
                snapshot.node,
                snapshot.driver.driver,
                snapshot.driver.nvml,
                snapshot.driver.cuda,
                snapshot.kernel,
                "true" if snapshot.simulated else "false",
            ): 1.0
        },
        metrics.NODE_GPUS_VISIBLE: {(): float(sum(gpu.up for gpu in snapshot.gpus))},
        metrics.SNAPSHOT_AGE: {(): max(0.0, now - snapshot.taken_at)},
    }
    if snapshot.gpus_expected is not None:
        readings[metrics.NODE_GPUS_EXPECTED] = {(): float(snapshot.gpus_expected)}
    for status in snapshot.collectors:
        key = (status.name,)
        values = (
            (metrics.COLLECTOR_SUCCESS, float(status.success)),
            (metrics.COLLECTOR_DURATION, status.duration),
            (metrics.COLLECTOR_INTERVAL, status.interval),
            (metrics.COLLECTOR_LAST_SUCCESS, status.last_success),
            (metrics.COLLECTOR_FAILURES, float(status.failures)),
        )
        for metric, value in values:
            if value is not None:
                readings.setdefault(metric, {})[key] = value
    worst: dict[tuple[str, str, str], Status] = {}
    for result in results:
        subject = (result.check, result.engine, result.uuid)
        # Two deployments of which no engine is known have one series between them.
        worst[subject] = min(worst.get(subject, result.status), result.status, key=FAIL_FIRST.index)
    if worst:
        readings[metrics.CHECK_STATUS] = {
            (check, str(status), engine, uuid): float(holds is status)
            for (check, engine, uuid), holds in worst.items()
            for status in Status
        }
    return readings


def gpu_readings(gpu: Gpu, chosen: Collection[Metric] | None = None) -> Readings:
    """The series of a card that follow from its state rather than from a reading. `chosen`: the metrics whose absence is explained; None: all."""
    identity = gpu.identity
    readings: dict[Metric, dict[tuple[str, ...], float]] = {
        metrics.GPU_INFO: {
            (
                identity.name,
                identity.pci_bus_id,
                identity.architecture,
                identity.serial,
                identity.vbios,
                identity.minor,
                identity.numa_node,
            ): 1.0
        },
        metrics.GPU_UP: {(): float(gpu.up)},
    }
    if gpu.sampled_at is not None:
        readings[metrics.GPU_LAST_SAMPLE] = {(): gpu.sampled_at}
    absent: dict[tuple[str, ...], float] = {
        (metric.name, str(reason)): 1.0 for metric, reason in gpu.absent.items() if chosen is None or metric in chosen
    }
    if absent:
        readings[metrics.GPU_UNSUPPORTED_INFO] = absent
    return readings


# ------------------------------------------------------------------------------------------------------------------ writing
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
#: In help texts a quote is escaped in OpenMetrics only.
_HELP_ESCAPES = {Format.TEXT: str.maketrans({"\\": r"\\", "\n": r"\n"}), Format.OPENMETRICS: _ESCAPES}


def _escaped(text: str) -> str:
    if "\\" in text or '"' in text or "\n" in text:
        text = text.translate(_ESCAPES)
    # What came from another process may hold half a character (a lone surrogate), which no page can carry.
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


#: Nearly all label sets of a page were on the page before: to look their text up takes a fifth of writing it. Four full pages' worth are kept.
@lru_cache(maxsize=16384)
def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    return ",".join([f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)])


def _braced(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


def _number(value: float) -> str:
    """A finite number as both formats and all parsers take it; raises ValueError for anything else."""
    if value.__class__ is float:
        # Counts and bytes are whole: written without a fraction they are shorter, and exact up to 2**53.
        if value.is_integer() and -1e16 < value < 1e16:
            return str(int(value))
        if not math.isfinite(value):
            raise ValueError("not finite")
        return repr(value)
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("no finite number")
    return str(int(value)) if isinstance(value, int) and abs(value) < 1 << 63 else repr(float(value))


class Exposition:
    """Writes pages. Keeps nothing between them but which complaints were logged, and may be used by several threads."""

    #: The most different complaints that are logged in the life of a process.
    MOST_COMPLAINTS = 100

    def __init__(self, build: Build, library_collectors: Iterable[LibraryCollector] = ()) -> None:
        self._build = build
        self._library_collectors = tuple(library_collectors)
        self._complaints: set[tuple[str, str]] = set()
        self._headers = {
            (metric, form): f"# HELP {name} {metric.help.translate(_HELP_ESCAPES[form])}\n# TYPE {name} {metric.kind}\n"
            for metric in metrics.ALL
            for form in Format
            # OpenMetrics names a counter's family without the suffix that its samples carry.
            for name in (metric.name.removesuffix("_total") if form is Format.OPENMETRICS and metric.kind is Kind.COUNTER else metric.name,)
        }

    def render(
        self,
        snapshot: NodeSnapshot,
        results: Iterable[CheckResult],
        now: float,
        form: Format = Format.TEXT,
        chosen: Collection[Metric] | None = None,
    ) -> bytes:
        """The page. Series are in the order of the declaration, then of cards and engines. `now` is Unix seconds. Never raises.

        `chosen`: the metrics that are wanted; all when None.
        """
        sources, histograms = self._sources(snapshot, tuple(results), now, chosen)
        out: list[str] = []
        for metric in metrics.ALL:
            if chosen is not None and metric not in chosen:
                continue
            start = len(out)
            if metric.kind is Kind.HISTOGRAM:
                for leading, found in histograms:
                    if metric in found:
                        self._write_histograms(out, metric, leading, found[metric])
            else:
                for source in sources[metric.owner]:
                    values = source.readings.get(metric)
                    if values:
                        self._write(out, metric, source.leading, values)
            if len(out) > start:
                out.insert(start, self._headers[metric, form])
        for collector in self._library_collectors:
            self._write_library(out, collector, form)
        if form is Format.OPENMETRICS:
            out.append("# EOF\n")
        return "".join(out).encode("utf-8", "replace")

    def _sources(
        self, snapshot: NodeSnapshot, results: tuple[CheckResult, ...], now: float, chosen: Collection[Metric] | None
    ) -> tuple[dict[Owner, list[_Source]], list[tuple[str, Histograms]]]:
        sources: dict[Owner, list[_Source]] = {owner: [] for owner in Owner}
        histograms: list[tuple[str, Histograms]] = []
        for readings in (node_readings(snapshot, results, self._build, now), interconnect_readings(snapshot)):
            sources[Owner.NODE].append(_Source("", readings))
        for gpu in snapshot.gpus:
            leading = _labels(metrics.LEADING_LABELS[Owner.GPU], (str(gpu.index), gpu.uuid))
            for readings in (gpu_readings(gpu, chosen), gpu.readings, snapshot.gpu_process_readings.get(gpu.uuid, {})):
                sources[Owner.GPU].append(_Source(leading, readings))
        for engine in snapshot.engines:
            identity = engine.identity
            labels = (identity.engine, identity.deployment, str(identity.role))
            sources[Owner.ENGINE].append(_Source(_labels(metrics.LEADING_LABELS[Owner.ENGINE], labels), engine.readings))
            for work in engine.observed.page.work if engine.observed.page else ():
                leading = _labels(metrics.LEADING_LABELS[Owner.WORK], (*labels, work.model, work.dp_rank))
                sources[Owner.WORK].append(_Source(leading, work.readings))
                histograms.append((leading, work.histograms))
        for router in snapshot.routers:
            leading = _labels(metrics.LEADING_LABELS[Owner.ROUTER], (router.name, router.deployment))
            sources[Owner.ROUTER].append(_Source(leading, router.readings))
        return sources, histograms

    def _write(self, out: list[str], metric: Metric, leading: str, values: Mapping[tuple[str, ...], float]) -> None:
        name, names = metric.name, metric.labels
        bare = f"{name}{{{leading}}}" if leading else name
        opened = f"{name}{{{leading}," if leading else f"{name}{{"
        for key, value in values.items():
            try:
                if names:
                    out.append(f"{opened}{_labels(names, key)}}} {_number(value)}\n")
                elif not key:
                    out.append(f"{bare} {_number(value)}\n")
                else:
                    raise ValueError(f"labels {key} that are not declared")
            except Exception as error:  # whatever is wrong with a value costs this series only
                self._complain(name, value, error)

    def _write_histograms(self, out: list[str], metric: Metric, leading: str, found: Mapping[tuple[str, ...], Histogram]) -> None:
        name = metric.name
        for key, histogram in found.items():
            try:
                own = _labels(metric.labels, key)
                labels = f"{leading},{own}" if leading and own else leading or own
                opened = f'{name}_bucket{{{labels},le="' if labels else f'{name}_bucket{{le="'
                lines = [f'{opened}{_escaped(bound)}"}} {_number(count)}\n' for bound, count in histogram.buckets]
                lines.append(f"{name}_sum{_braced(labels)} {_number(histogram.sum)}\n")
                lines.append(f"{name}_count{_braced(labels)} {_number(histogram.count)}\n")
            except Exception as error:  # a histogram is whole or not there
                self._complain(name, histogram, error)
            else:
                out.extend(lines)

    def _write_library(self, out: list[str], collector: LibraryCollector, form: Format) -> None:
        """prometheus_client's own collectors: process_… and python_info."""
        try:
            families = list(collector.collect())
        except Exception as error:
            self._complain(type(collector).__name__, None, error)
            return
        for family in families:
            counter = family.type == "counter"
            name = family.name if form is Format.OPENMETRICS or not counter else f"{family.name}_total"
            out.append(f"# HELP {name} {family.documentation.translate(_HELP_ESCAPES[form])}\n# TYPE {name} {family.type}\n")
            for sample in family.samples:
                try:
                    own = _labels(tuple(sample.labels), tuple(sample.labels.values()))
                    out.append(f"{sample.name}{_braced(own)} {_number(sample.value)}\n")
                except Exception as error:
                    self._complain(sample.name, sample.value, error)

    def _complain(self, name: str, value: Any, error: Exception) -> None:
        complaint = (name, type(error).__name__)
        if complaint in self._complaints or len(self._complaints) >= self.MOST_COMPLAINTS:
            return
        self._complaints.add(complaint)
        logger.warning("a series of %s is left out: %s %s", name, repr(value)[:100], error)


def library_collectors() -> tuple[LibraryCollector, ...]:
    """prometheus_client's collectors of this process, registered nowhere else."""
    registry = prometheus_client.CollectorRegistry()
    return (prometheus_client.ProcessCollector(registry=registry), prometheus_client.PlatformCollector(registry=registry))


def negotiate(accept: str) -> Format:
    """OpenMetrics when the header asks for a version of it that we write and prefers it to text; else, whatever stands there, text."""
    best, chosen = 0.0, Format.TEXT
    for item in accept.split(","):
        media, *parameters = (part.strip().lower() for part in item.split(";"))
        values = dict(parameter.partition("=")[::2] for parameter in parameters)
        try:
            quality = float(values.get("q", "1") or "1")
        except ValueError:
            continue
        if not 0 < quality <= 1 or quality <= best:
            continue
        if media == "application/openmetrics-text" and values.get("version", "") in ("1.0.0", "0.0.1", ""):
            best, chosen = quality, Format.OPENMETRICS
        elif media in ("text/plain", "text/*", "*/*"):
            best, chosen = quality, Format.TEXT
    return chosen
