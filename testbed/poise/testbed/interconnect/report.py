"""A measurement in words and figures for a person, and as an object for machines. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from poise.exporter.checks.interconnect_bandwidth import judge
from poise.exporter.checks.result import Status
from poise.exporter.interconnect_results import Measurement, Run, algorithm_bandwidth, bus_bandwidth, latency, one_as_json, peak
from poise.testbed.interconnect.sizes import show_size

_HEADINGS = {
    "on": "with peer-to-peer",
    "off": "without peer-to-peer (NCCL_P2P_DISABLE=1)",
    "none": "through loopback and main memory: this says nothing of any GPU",
}


def text(measurement: Measurement, cards: str) -> str:
    """Tables of all runs and the verdict. `cards`: "GPUs 0 and 1", empty without cards."""
    return "\n".join(_lines(measurement, cards))


def _lines(measurement: Measurement, cards: str) -> Iterator[str]:
    over = f"{cards}, joined by {measurement.path}" if cards else f"{measurement.ranks} processes of the CPU"
    yield f"All-reduce over {over} ({measurement.backend} {measurement.library}, {measurement.ranks} ranks, float32, sums checked)"
    if measurement.nominal is not None:
        yield f"The links of a card to the others carry {measurement.nominal / 1e9:.0f} GB/s in one direction."
    for run in measurement.runs:
        yield ""
        yield _HEADINGS[run.p2p]
        yield from _table(run, measurement.ranks)
    yield ""
    found = judge(measurement, cards)
    yield f"{found.status}: {found.sentence}"
    if found.cause:
        yield f"cause: {found.cause}"
    if found.fix:
        yield f"fix: {found.fix}"


def _table(run: Run, ranks: int) -> Iterator[str]:
    yield f"{'message':>9}  {'median':>10}  {'least':>10}  {'most':>10}  {'algorithm':>11}  {'bus':>11}"
    for size in run.sizes:
        times = "  ".join(f"{seconds * 1e6:>7.0f} µs" for seconds in (size.seconds, size.least, size.most))
        rates = "  ".join(_rate(rate) for rate in (algorithm_bandwidth(size), bus_bandwidth(size, ranks)))
        yield f"{show_size(size.size_bytes):>9}  {times}  {rates}"


def _rate(rate: float) -> str:
    """Bytes per second in powers of ten, as vendors and nccl-tests count."""
    return f"{rate / 1e9:>6.1f} GB/s" if rate >= 1e9 else f"{rate / 1e6:>6.1f} MB/s"


def as_object(measurement: Measurement, cards: str) -> dict[str, object]:
    """The measurement as it stands in the file, with its bandwidths (bytes per second) and the verdict."""
    found = judge(measurement, cards)
    runs = [
        {
            "p2p": run.p2p,
            "latency_seconds": latency(run),
            "peak_bus_bandwidth": peak(run, measurement.ranks)[0],
            "sizes": [
                {
                    **size._asdict(),
                    "algorithm_bandwidth": algorithm_bandwidth(size),
                    "bus_bandwidth": bus_bandwidth(size, measurement.ranks),
                }
                for size in run.sizes
            ],
        }
        for run in measurement.runs
    ]
    verdict = {"status": str(found.status), "sentence": found.sentence, "cause": found.cause, "fix": found.fix}
    return {**one_as_json(measurement), "runs": runs, "verdict": verdict}


def failed(measurement: Measurement) -> bool:
    """Whether the figures condemn the links."""
    return judge(measurement, "the cards").status is Status.FAIL
