"""Measures the history beside Prometheus, on the same series and queries in one run, and with --write puts the figures into docs/benchmarks.md.

Made-up series in the proportions of an exporter's page: what stands still, counters, ratios, measured numbers. Ours get seven days of them: the
old days as chunks at once, the last hour scrape by scrape as pages. Prometheus gets the last day by remote write. Both answer over HTTP.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import bench_page
import numpy as np
import uvicorn
from fastapi import FastAPI
from poise.dashboard.api_prometheus.router import create_router
from poise.history.labelling import Labeller
from poise.history.promql.labels import Labels, labels
from poise.history.querier.embedded import EmbeddedQuerier
from poise.history.scrape import Scrape
from poise.history.store.chunks import by_hour
from poise.history.store.database import Database
from poise.history.store.store import Store
from poise.history.targets import parse_target
from poise.history.text_format import PageReader

GPUS = 16
INTERVAL = 5
TICKS_PER_HOUR = 3600 // INTERVAL
STEP = 120
RUNS, WARM_UP = 30, 3
READY_SECONDS = 120.0
TARGET = parse_target("n1=http://n1:9747")
#: Kinds of families, repeated: of ten five stand still, three are counters, one is a ratio in hundredths, one is measured to a thousandth.
KINDS = ("still", "counter", "still", "ratio", "still", "bytes", "still", "measured", "still", "counter")
#: What the history is to reach (issue 5).
LARGEST_BYTES_PER_SAMPLE = 2.5
LARGEST_PANEL_SECONDS = 0.05
LARGEST_CPU = 0.02


class Series:
    """Made-up series that go on from hour to hour, the same ones in each run."""

    def __init__(self, count: int) -> None:
        self.kinds = [KINDS[number // GPUS % len(KINDS)] for number in range(count)]
        self.own = [self._labels(number) for number in range(count)]
        self._draw = np.random.default_rng(20261130)
        self._level = np.round(self._draw.random(count), 2)

    def _labels(self, number: int) -> dict[str, str]:
        family, gpu = divmod(number, GPUS)
        return {"__name__": f"{self.kinds[number]}_{family}", "gpu": str(gpu), "uuid": f"GPU-{gpu:032x}"}

    def labels(self, number: int) -> Labels:
        """As they are stored."""
        return labels({**self.own[number], **dict(TARGET.labels)})

    def hour(self) -> np.ndarray:
        """The next hour, of shape (series, ticks)."""
        rows = np.empty((len(self.kinds), TICKS_PER_HOUR))
        for number, kind in enumerate(self.kinds):
            before = self._level[number]
            match kind:
                case "still":
                    rows[number] = before
                case "counter":
                    rows[number] = before + np.cumsum(self._draw.integers(0, 30, TICKS_PER_HOUR))
                case "bytes":
                    rows[number] = before + np.cumsum(self._draw.integers(0, 1 << 32, TICKS_PER_HOUR))
                case "ratio":
                    rows[number] = np.round(np.clip(self._draw.normal(0.7, 0.2, TICKS_PER_HOUR), 0, 1), 2)
                case "measured":
                    rows[number] = np.round(self._draw.normal(480, 30, TICKS_PER_HOUR), 3)
        self._level = rows[:, -1]
        return rows


@dataclass(frozen=True)
class Ingest:
    """Samples, wall and CPU seconds."""

    samples: int
    wall: float
    cpu: float


@dataclass(frozen=True)
class Asked:
    """Seconds of one query: median and largest."""

    median: float
    largest: float


# ------------------------------------------------------------------------------------------------------------------------ ours
def fill(path: Path, made: Series, first: int, hours: int, keep: list[np.ndarray]) -> None:
    """Old hours as chunks, beginning at `first` (Unix seconds); the last 24 of all are kept for Prometheus."""
    database = Database(path)
    with database.writing() as writer:
        numbers = writer.add_series(made.labels(number) for number in range(len(made.own)))
    order = [numbers[made.labels(number)] for number in range(len(made.own))]
    for hour in range(hours):
        times = (first + hour * 3600 + np.arange(TICKS_PER_HOUR, dtype=np.int64) * INTERVAL) * 1000
        rows = made.hour()
        with database.writing() as writer:
            for number, row in zip(order, rows, strict=True):
                writer.put_chunks(by_hour(number, times, row))
        if hour >= hours - 23:
            keep.append(rows)
    database.close()


def pages(made: Series, rows: np.ndarray) -> Iterator[bytes]:
    """The pages of an hour, one after the other."""
    heads = [
        own["__name__"] + "{" + ",".join(f'{name}="{value}"' for name, value in own.items() if name != "__name__") + "} "
        for own in made.own
    ]
    for column in rows.T:
        yield "\n".join(head + repr(value) for head, value in zip(heads, column.tolist(), strict=True)).encode() + b"\n"


def scrape_hour(path: Path, made: Series, rows: np.ndarray, first: int) -> Ingest:
    """The last hour, from pages into the store, as in service but for the network."""
    store = Store(path, wall=lambda: float(first))
    reader, labeller = PageReader(), Labeller(TARGET)
    wall = cpu = 0.0
    for tick, page in enumerate(pages(made, rows)):
        began, used = time.perf_counter(), time.process_time()
        at = float(first + tick * INTERVAL)
        store.append(TARGET.key, at, labeller.samples(Scrape(at, 0.01, reader.read(page))))
        wall, cpu = wall + time.perf_counter() - began, cpu + time.process_time() - used
    store.close()
    return Ingest(rows.size, wall, cpu)


def serve(path: Path, now: float, port: int) -> None:
    """Our API over the history, until killed: what `--serve` runs in a process of its own."""
    store = Store(path, wall=lambda: now)
    app = FastAPI()
    app.include_router(create_router(EmbeddedQuerier(store, clock=time.monotonic), now=lambda: now))
    uvicorn.run(app, host="127.0.0.1", port=port, log_config=None, lifespan="off")


def bytes_per_sample(path: Path) -> tuple[float, float, int]:
    """Bytes of a packed sample, bytes of the file for each, samples; as `poise history stats` counts."""
    command = [sys.executable, "-m", "poise.cli", "history", "stats", "--json", "--history", str(path)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found["chunk_bytes"] / found["samples_in_chunks"], found["used_bytes"] / found["samples_in_chunks"], found["samples_in_chunks"]


# ------------------------------------------------------------------------------------------------------------------ Prometheus
def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _field(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(body)) + body


def write_request(made: Series, numbers: Sequence[int], times: np.ndarray, rows: np.ndarray) -> bytes:
    """prometheus.WriteRequest. A sample has 18 bytes, since every time of our days has a varint of six."""
    stamps = np.stack([(times >> shift & 0x7F | (0x80 if shift < 35 else 0)).astype(np.uint8) for shift in range(0, 42, 7)], axis=1)
    samples = np.empty((len(times), 18), dtype=np.uint8)
    samples[:, :3] = (0x12, 16, 0x09)
    samples[:, 11] = 0x10
    samples[:, 12:] = stamps
    out = bytearray()
    for number in numbers:
        samples[:, 3:11] = rows[number].astype("<f8").view(np.uint8).reshape(-1, 8)
        own = b"".join(_field(1, _field(1, name.encode()) + _field(2, value.encode())) for name, value in made.labels(number))
        out += _field(1, own + samples.tobytes())
    return bytes(out)


def _snappy(body: bytes) -> bytes:
    parts = [body[start : start + 60_000] for start in range(0, len(body), 60_000)]
    return _varint(len(body)) + b"".join(b"\xf4" + struct.pack("<H", len(part) - 1) + part for part in parts)


def feed(url: str, pid: int, made: Series, hours: Sequence[np.ndarray], first: int) -> Ingest:
    """A day by remote write, half an hour of all series at a time. Wall and CPU are those of Prometheus' answers, without making the requests."""
    wall, samples, before = 0.0, 0, cpu_seconds(pid)
    half = TICKS_PER_HOUR // 2
    for place in range(2 * len(hours)):
        rows = hours[place // 2][:, (place % 2) * half : (place % 2 + 1) * half]
        times = (first + (place * half + np.arange(half, dtype=np.int64)) * INTERVAL) * 1000
        for start in range(0, len(made.own), 500):
            body = _snappy(write_request(made, range(start, min(start + 500, len(made.own))), times, rows))
            request = urllib.request.Request(f"{url}/api/v1/write", data=body)
            request.add_header("Content-Encoding", "snappy")
            began = time.perf_counter()
            with urllib.request.urlopen(request, timeout=300):
                wall += time.perf_counter() - began
        samples += rows.size
    return Ingest(samples, wall, cpu_seconds(pid) - before)


def chunk_bytes(url: str) -> float:
    """Bytes of a sample in the chunks that Prometheus has compacted, by its own count; without its index and its write-ahead log."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        found = {
            line.split()[0]: float(line.split()[1])
            for line in answer.read().decode().splitlines()
            if not line.startswith("#") and " " in line
        }
    return found["prometheus_tsdb_compaction_chunk_size_bytes_sum"] / found["prometheus_tsdb_compaction_chunk_samples_sum"]


# ------------------------------------------------------------------------------------------------------------------------ both
def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    """Bytes, files that are mapped included."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


@contextlib.contextmanager
def started(command: Sequence[str], url: str, ready: str, log: Path) -> Iterator[int]:
    """A server until the block ends; its pid."""
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            end = time.monotonic() + READY_SECONDS
            while True:
                with contextlib.suppress(OSError), urllib.request.urlopen(url + ready, timeout=5):
                    break
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"{command[0]} does not answer: {log.read_text(errors='replace')[-2000:]}")
                time.sleep(0.1)  # the port of another process offers no event
            yield process.pid
        finally:
            process.terminate()
            process.wait(60)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(url: str, query: str, start: float, end: float, step: float) -> Asked:
    """A range query over HTTP, again and again."""
    form = urllib.parse.urlencode({"query": query, "start": start, "end": end, "step": step})
    taken = []
    for _ in range(WARM_UP + RUNS):
        began = time.perf_counter()
        with urllib.request.urlopen(f"{url}/api/v1/query_range?{form}", timeout=120) as answer:
            document = json.load(answer)
        taken.append(time.perf_counter() - began)
        assert document["data"]["result"], query
    return Asked(statistics.median(taken[WARM_UP:]), max(taken[WARM_UP:]))


def report(found: dict[str, object], arguments: argparse.Namespace) -> str:
    """The section of docs/benchmarks.md."""
    ours, theirs = found["ingest"], found["their_ingest"]
    assert isinstance(ours, Ingest)
    assert isinstance(theirs, Ingest)
    queries = found["queries"]
    assert isinstance(queries, dict)
    packed, in_file, stored = found["bytes"]  # type: ignore[misc]  # three numbers
    cpu = ours.cpu / TICKS_PER_HOUR / INTERVAL
    panel = max(queries[name][0].median for name in ("one series, 24 h", "16 GPUs with rate(), 24 h"))
    rows = "".join(
        f"| {name}: median, largest of {RUNS} | {mine.median * 1e3:.1f} ms, {mine.largest * 1e3:.1f} ms | "
        + (f"{other.median * 1e3:.1f} ms, {other.largest * 1e3:.1f} ms |\n" if other is not None else "|\n")
        for name, (mine, other) in queries.items()
    )

    def judged(reached: bool) -> str:
        return "reached" if reached else "**not reached**"

    return f"""
## The history beside Prometheus

Made by `scripts/bench_history.py` in one run: {os.cpu_count()} cores, Python {platform.python_version()}, {found["version"]}. Load of the machine by others while it
ran: {found["load"]:.1f} (mean of 15 minutes, this run included). {arguments.series:,} made-up series of {GPUS} cards every {INTERVAL} s: half of them stand still,
three in ten are counters, one in ten is a ratio in hundredths, one in ten measured to a thousandth. Poise holds {arguments.days} days of them
({stored / 1e6:.0f} million samples), Prometheus the last day ({theirs.samples / 1e6:.0f} million).

| | Poise | Prometheus |
|-|-:|-:|
| samples taken in per second | {ours.samples / ours.wall:,.0f} | {theirs.samples / theirs.wall:,.0f} |
| CPU for a sample | {ours.cpu / ours.samples * 1e6:.1f} µs | {theirs.cpu / theirs.samples * 1e6:.1f} µs |
| share of a core for these series every {INTERVAL} s | {cpu:.2%} | {theirs.cpu / theirs.samples * arguments.series / INTERVAL:.2%} |
| bytes for a sample, in chunks | {packed:.2f} | {found["their_bytes"]:.2f} |
| bytes for a sample, whole file | {in_file:.2f} | |
{rows}| resident, after these queries | {found["resident"] / 1e6:.0f} MB | {found["their_resident"] / 1e6:.0f} MB |

* *Taken in*: Poise parses {TICKS_PER_HOUR} pages, labels and stores them on disk, each scrape a transaction; Prometheus takes decoded samples by remote write, {TICKS_PER_HOUR // 2}
  of each series at a time, and parses no page. Its CPU includes compaction.
* *Bytes in chunks*: without labels and index; Prometheus' own count over what it has compacted.
* *Queries*: a step of {STEP} s, over HTTP, JSON read. Seven days have a step of {STEP * 7} s.
* *Resident*: of Poise the process that serves these queries with an hour of every series in memory, {arguments.days} days on disk; of Prometheus with its one day,
  mapped files included.

| aim | measured | |
|-|-:|-|
| ≤ {LARGEST_BYTES_PER_SAMPLE} bytes per sample, whole file | {in_file:.2f} | {judged(in_file <= LARGEST_BYTES_PER_SAMPLE)} |
| 24 h panel < {LARGEST_PANEL_SECONDS * 1e3:.0f} ms | {panel * 1e3:.1f} ms | {judged(panel < LARGEST_PANEL_SECONDS)} |
| < {LARGEST_CPU:.0%} of a core for a target of {arguments.series:,} series | {cpu:.2%} | {judged(cpu < LARGEST_CPU)} |
"""


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Everything."""
    made, path = Series(arguments.series), folder / "history.db"
    last = int(time.time()) // 3600 * 3600 - 3600  # the last full hour, which stays in the head
    first, day = last - (arguments.days * 24 - 1) * 3600, last - 23 * 3600
    kept: list[np.ndarray] = []
    print(f"bench: {arguments.days} days of {arguments.series} series", file=sys.stderr)
    fill(path, made, first, arguments.days * 24 - 1, kept)
    rows = made.hour()
    kept.append(rows)
    found: dict[str, object] = {"ingest": scrape_hour(path, made, rows, last)}
    end = float(last + 3600 - INTERVAL)
    one = f'ratio_{KINDS.index("ratio")}{{gpu="3"}}'
    many = f"rate(counter_{KINDS.index('counter')}[5m])"
    asked = {
        "one series, 24 h": (one, end - 86_400 + 3600, STEP),
        "16 GPUs with rate(), 24 h": (many, end - 86_400 + 3600, STEP),
        f"one series, {arguments.days} days": (one, float(first), STEP * 7),
    }
    port = free_port()
    command = [sys.executable, __file__, "--serve", str(path), "--now", str(end), "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    print("bench: our queries", file=sys.stderr)
    with started(command, url, "/api/v1/status/buildinfo", folder / "ours.log") as pid:
        mine = {name: ask(url, query, start, end, step) for name, (query, start, step) in asked.items()}
        found["resident"] = resident(pid)
    found["bytes"] = bytes_per_sample(path)

    print("bench: Prometheus", file=sys.stderr)
    (folder / "prometheus.yml").write_text("{}\n")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        "--web.enable-remote-write-receiver",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with started(command, url, "/-/ready", folder / "prometheus.log") as pid:
        found["their_ingest"] = feed(url, pid, made, kept, day)
        theirs = {name: ask(url, query, start, end, step) if "24 h" in name else None for name, (query, start, step) in asked.items()}
        found["their_resident"] = resident(pid)
        found["their_bytes"] = chunk_bytes(url)
    found["queries"] = {name: (mine[name], theirs[name]) for name in asked}
    version = subprocess.run(["prometheus", "--version"], capture_output=True, text=True, check=True)
    found["version"] = "Prometheus " + (version.stdout or version.stderr).partition("version ")[2].split()[0]
    found["load"] = os.getloadavg()[2]
    return found


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=4000)
    parser.add_argument("--days", type=int, default=7, choices=range(1, 31))
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the section into this page")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--now", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        serve(arguments.serve, arguments.now, arguments.port)
        return 0
    with tempfile.TemporaryDirectory(prefix="poise-bench-") as folder:
        section = report(measure(arguments, Path(folder)), arguments)
    print(section)
    if arguments.write is not None:
        bench_page.put(arguments.write, Path(__file__), section)
    return 0


if __name__ == "__main__":
    sys.exit(main())
