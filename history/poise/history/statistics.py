"""What a history holds: series, samples, room, times, and each target's share. Reads a store's file; prints nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from poise.history.promql.labels import get
from poise.history.store.read_only import ReadOnlyStore


@dataclass(frozen=True, slots=True)
class TargetShare:
    """One target: labels `job` and `instance`, its series and samples, and the time of its newest sample (Unix seconds)."""

    job: str
    instance: str
    series: int
    samples: int
    newest: float | None


@dataclass(frozen=True, slots=True)
class Statistics:
    """A history at one moment. Times in Unix seconds, None where there is no sample; sizes in bytes.

    `samples_in_chunks` are packed for good, `samples_in_ticks` those of the last hour; `bytes_per_sample` is what a packed sample takes, None
    before the first chunk.
    """

    path: str
    file_bytes: int
    journal_bytes: int
    used_bytes: int
    series: int
    chunks: int
    samples_in_chunks: int
    samples_in_ticks: int
    chunk_bytes: int
    bytes_per_sample: float | None
    oldest: float | None
    newest: float | None
    targets: tuple[TargetShare, ...]


def statistics(store: ReadOnlyStore) -> Statistics:
    """Counts everything. Raises ReadFailed."""
    samples: Counter[int] = Counter()
    chunks = chunk_bytes = 0
    for series, count, size in store.reader.sizes():
        samples[series] += count
        chunks += 1
        chunk_bytes += size
    in_chunks = sum(samples.values())
    edges = store.reader.edges(shelved=False)
    first = min((record.times[0] for record in store.head if record.times), default=None)
    newest = store.head.newest
    times = [at for at in (first, newest, *(edges or ())) if at is not None]
    return Statistics(
        path=str(store.path),
        file_bytes=store.path.stat().st_size,
        journal_bytes=_size(store, "-wal"),
        used_bytes=store.reader.used_bytes(),
        series=len(store.head),
        chunks=chunks,
        samples_in_chunks=in_chunks,
        samples_in_ticks=store.head.samples,
        chunk_bytes=chunk_bytes,
        bytes_per_sample=round(chunk_bytes / in_chunks, 3) if in_chunks else None,
        oldest=min(times) / 1000 if times else None,
        newest=max(times) / 1000 if times else None,
        targets=_targets(store, samples),
    )


def _targets(store: ReadOnlyStore, samples: Counter[int]) -> tuple[TargetShare, ...]:
    series: Counter[tuple[str, str]] = Counter()
    counted: Counter[tuple[str, str]] = Counter()
    newest: dict[tuple[str, str], int] = {}
    for record in store.head:
        own = (get(record.labels, "job"), get(record.labels, "instance"))
        series[own] += 1
        counted[own] += len(record.times) + samples[record.number or 0]
        if record.times:
            newest[own] = max(newest.get(own, record.times[-1]), record.times[-1])
    return tuple(TargetShare(*own, series[own], counted[own], newest[own] / 1000 if own in newest else None) for own in sorted(series))


def _size(store: ReadOnlyStore, suffix: str) -> int:
    beside = store.path.with_name(store.path.name + suffix)
    return beside.stat().st_size if beside.exists() else 0
