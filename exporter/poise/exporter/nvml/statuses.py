"""How the collectors are doing, over all cards: the state of each, from the newest run on every card. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from poise.exporter.nvml.card import Collector
from poise.exporter.nvml.reader import Run
from poise.exporter.nvml.worker import CardThread, Record
from poise.exporter.snapshot import CollectorStatus, Gpu, Reason

#: The collector that stands for the driver as a whole.
DRIVER_COLLECTOR = "driver"


def driver_status(run: Run, interval: float, *, hangs: bool, stuck: Sequence[CardThread], threads: Sequence[CardThread]) -> CollectorStatus:
    """The driver: its own error, else the first card that has never been read. `stuck`: threads past their deadline, of `threads`."""
    error = "the driver does not answer" if hangs else run.error
    error = error or next((f"card {thread.index} does not answer and was never seen" for thread in stuck if thread.record is None), "")
    error = error or next((f"card {thread.index}: {thread.failure}" for thread in threads if thread.failure), "")
    return CollectorStatus(DRIVER_COLLECTOR, interval, run.duration, not error, run.last_success, run.failures, error)


def collector_status(collector: Collector, interval: float, shown: Sequence[tuple[Record, Gpu]]) -> CollectorStatus:
    """One collector over the cards that answer: the slowest run, the oldest success, the first error.

    `shown`: each card's record with the card as it is shown. A card that hangs counts for the collector in which it does.
    """
    name = collector.name
    interval = max(collector.interval or 0.0, interval)
    failures = sum(record.runs[name].failures for record, _ in shown if name in record.runs)
    errors = [
        f"card {gpu.index} hangs in it" for record, gpu in shown if gpu.down_reason is Reason.TIMEOUT and record.owner.current == name
    ]
    failures += len(errors)  # a hang is counted in its record once it ends
    runs = []
    for record, gpu in shown:
        if gpu.up and name in record.runs:
            runs.append(record.runs[name])
            if record.runs[name].error:
                errors.append(f"card {gpu.index}: {record.runs[name].error}")
    if not runs:
        last = [record.runs[name].last_success for record, _ in shown if name in record.runs]
        newest = max((at for at in last if at is not None), default=None)
        return CollectorStatus(name, interval, None, False, newest, failures, (errors or ["no card answers"])[0])
    successes = [run.last_success for run in runs]
    return CollectorStatus(
        name,
        interval,
        max(run.duration for run in runs),
        not errors,
        None if None in successes else min(at for at in successes if at is not None),
        failures,
        errors[0] if errors else "",
    )
