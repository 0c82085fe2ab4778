"""The series of measured all-reduces: of each group of cards and way the best bandwidth and the shortest time, not one for each size. Pure."""

from __future__ import annotations

from poise.exporter import metrics as m
from poise.exporter.interconnect_results import Measurement, latency, peak
from poise.exporter.metrics import Metric
from poise.exporter.snapshot import NodeSnapshot, Readings


def group_of(snapshot: NodeSnapshot, each: Measurement) -> str:
    """The label `gpus`: "0,1", by today's numbers; empty for what was measured without cards."""
    return ",".join(str(index) for index in sorted(gpu.index for gpu in snapshot.gpus if gpu.uuid in each.cards))


def interconnect_readings(snapshot: NodeSnapshot) -> Readings:
    """At most MOST_MEASUREMENTS groups with two ways each."""
    readings: dict[Metric, dict[tuple[str, ...], float]] = {}
    for each in snapshot.interconnect.measurements:
        group = (each.backend, group_of(snapshot, each))
        readings.setdefault(m.INTERCONNECT_MEASURED, {})[group] = each.measured_at
        for run in each.runs:
            labels = (*group, run.p2p, each.path)
            readings.setdefault(m.INTERCONNECT_BUS_BANDWIDTH, {})[labels] = peak(run, each.ranks)[0]
            readings.setdefault(m.INTERCONNECT_LATENCY, {})[labels] = latency(run)
    return readings
