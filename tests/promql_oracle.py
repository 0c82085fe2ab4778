"""The real Prometheus as the judge of our PromQL engine: one set of series, given to both.

    with prometheus(tmp_path, series()) as url:
        compare(url, "sum by (job) (rate(requests_total[2m]))", at)

Samples go in by remote write, because that alone carries stale markers. Sample times end in 3 ms, evaluation times in 7 ms: no sample lies on
the edge of a range, where Prometheus 2 and 3 differ.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import socket
import struct
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from poise.history.promql.engine import Engine, InstantVector, Matrix, ScalarValue, StringValue
from poise.history.promql.errors import QueryError
from poise.history.promql.evaluate import Semantics, Settings
from poise.history.promql.labels import Labels, labels
from poise.history.promql.series import STALE, MemoryStorage, StoredSeries
from poise.history.store.store import Store

from tests.needs import needs
from tests.waiting import wait_until

#: Milliseconds: a round hour some years ago, and half an hour of samples from there (within Prometheus' window for samples out of order).
BASE = 1_700_000_000_000 // 3_600_000 * 3_600_000
LENGTH = 30 * 60_000

RELATIVE, ABSOLUTE = 1e-9, 1e-12


# ------------------------------------------------------------------------------------------------------------------- series
def series(seed: int = 20261130) -> list[StoredSeries]:
    """Counters with resets, gauges, histograms; with gaps, ends marked stale, late beginnings, NaN and infinities. The same for one seed."""
    draw = random.Random(seed)
    made: list[StoredSeries] = []
    for job in ("api", "batch"):
        for instance in ("a", "b", "c"):
            own = {"job": job, "instance": instance}
            made.append(_series(draw, {"__name__": "requests_total", **own}, _counter(draw)))
            made.append(_series(draw, {"__name__": "depth", **own}, _walk(draw)))
            made.append(_series(draw, {"__name__": "ratio", **own, "zone": draw.choice("xyz")}, _ratio(draw)))
            made.append(_series(draw, {"__name__": "odd", **own}, _odd(draw), gaps=0.3))
        made.append(_series(draw, {"__name__": "limit", "job": job}, _walk(draw)))
        for bound in ("0.1", "0.5", "1", "2.5", "+Inf"):
            rise = {"0.1": 1, "0.5": 2, "1": 3, "2.5": 4, "+Inf": 5}[bound]
            made.append(_series(draw, {"__name__": "latency_bucket", "job": job, "le": bound}, _steady(rise), gaps=0.0))
    made.append(_series(draw, {"__name__": "info", "job": "api", "instance": "a", "version": "1.2"}, lambda: 1.0))
    made.append(_series(draw, {"__name__": "info", "job": "api", "instance": "b", "version": "1.3"}, lambda: 1.0))
    made.append(_series(draw, {"__name__": "info", "job": "batch", "instance": "a", "version": "1.3", "ü": 'ä\n"\\'}, lambda: 1.0))
    return made


def _series(draw: random.Random, own: Mapping[str, str], value: object, gaps: float = 0.1) -> StoredSeries:
    times, values = [], []
    at = BASE + draw.randrange(0, 15_000, 10) + 3
    if draw.random() < 0.3:
        at += draw.randrange(0, LENGTH // 2, 10)
    while at < BASE + LENGTH:
        chance = draw.random()
        now = value()  # type: ignore[operator]  # a function without arguments; the counters go on through gaps
        if chance < gaps / 10:
            times.append(at)
            values.append(STALE)
            at += draw.randrange(10_000, 400_000, 10)
        elif chance >= gaps:
            times.append(at)
            values.append(now)
        at += 15_000 + draw.randrange(-500, 500, 10)
    return StoredSeries(labels(own), np.array(times, dtype=np.int64), np.array(values))


def _counter(draw: random.Random) -> object:
    total = float(draw.randrange(0, 1000))

    def value() -> float:
        nonlocal total
        total = float(draw.randrange(0, 20)) if draw.random() < 0.04 else total + draw.choice((0, 0, 1, 7, 30, 0.25))
        return total

    return value


def _walk(draw: random.Random) -> object:
    level = draw.uniform(-50, 50)

    def value() -> float:
        nonlocal level
        level += draw.choice((-7.5, -1, 0, 0, 1.25, 6))
        return level

    return value


def _ratio(draw: random.Random) -> object:
    return lambda: draw.random()


def _odd(draw: random.Random) -> object:
    return lambda: draw.choice((math.nan, math.inf, -math.inf, 0.0, -0.0, 1e300, -2.5, 3.0, 1e-300))


def _steady(rise: int) -> object:
    total = 0.0

    def value() -> float:
        nonlocal total
        total += rise
        return total

    return value


# ------------------------------------------------------------------------------------------------------------- remote write
def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(body)) + body


def _write_request(several: Iterable[StoredSeries]) -> bytes:
    """prometheus.WriteRequest: timeseries = 1 {labels = 1 {name = 1, value = 2}, samples = 2 {value = 1 (double), timestamp = 2}}."""
    out = b""
    for one in several:
        body = b"".join(_field(1, _field(1, name.encode()) + _field(2, value.encode())) for name, value in one.labels)
        for at, value in zip(one.times.tolist(), one.values, strict=True):
            body += _field(2, b"\x09" + struct.pack("<d", value) + b"\x10" + _varint(at))
        out += _field(1, body)
    return out


def _snappy(body: bytes) -> bytes:
    """Snappy's block format, of literals only."""
    out = _varint(len(body))
    for start in range(0, len(body), 60_000):
        part = body[start : start + 60_000]
        out += b"\xf4" + struct.pack("<H", len(part) - 1) + part
    return out


@contextlib.contextmanager
def prometheus(folder: Path, stored: Sequence[StoredSeries]) -> Iterator[str]:
    """A real Prometheus that holds these series; its address."""
    program = needs("prometheus")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "prometheus.yml").write_text("{}\n", encoding="utf-8")
    command = [
        program,
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        "--storage.tsdb.retention.time=100y",
        "--web.enable-remote-write-receiver",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    url = f"http://127.0.0.1:{port}"
    with (folder / "prometheus.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            wait_until(lambda: _ready(url), "Prometheus answers")
            request = urllib.request.Request(f"{url}/api/v1/write", data=_snappy(_write_request(stored)), method="POST")
            request.add_header("Content-Encoding", "snappy")
            request.add_header("Content-Type", "application/x-protobuf")
            request.add_header("X-Prometheus-Remote-Write-Version", "0.1.0")
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert answer.status in (200, 204)
            yield url
        finally:
            process.terminate()
            process.wait(20)


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


# --------------------------------------------------------------------------------------------------------------- comparison
@dataclass(frozen=True)
class Difference(AssertionError):
    """Where the two disagree."""

    query: str
    at: str
    theirs: object
    ours: object

    def __str__(self) -> str:
        return f"{self.query}\n  {self.at}\n  Prometheus: {self.theirs}\n  ours:       {self.ours}"


def _ask(url: str, path: str, parameters: Mapping[str, str]) -> object:
    """The `data` of an answer, or None for an error."""
    body = urllib.parse.urlencode(parameters).encode()
    try:
        with urllib.request.urlopen(f"{url}/api/v1/{path}", data=body, timeout=30) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        with error:
            document = json.load(error)
            return {"error": document["error"]}


def engine(stored: Sequence[StoredSeries]) -> Engine:
    """Ours, over the same series, in the generation of the Prometheus that Debian 12 has."""
    return Engine(MemoryStorage(stored), Settings(semantics=Semantics.PROMETHEUS_2))


def store(stored: Sequence[StoredSeries]) -> Store:
    """The same series in a store in memory. Each is a target of its own, so that its gaps stay gaps."""
    kept = Store(None, wall=lambda: (BASE + LENGTH) / 1000)
    for number, one in enumerate(stored):
        for at, value in zip(one.times.tolist(), one.values.tolist(), strict=True):
            kept.append(str(number), at / 1000, {one.labels: value})
    return kept


def _key(metric: Mapping[str, str]) -> Labels:
    return labels(metric)


def compare_instant(url: str, ours: Engine, query: str, at: float) -> None:
    """Raises Difference unless both give the same elements, values and kind of failure."""
    theirs = _ask(url, "query", {"query": query, "time": f"{at:.3f}"})
    assert isinstance(theirs, dict)
    try:
        result = ours.instant(query, at)
    except QueryError as error:
        if "error" not in theirs:
            raise Difference(query, f"time={at:.3f}", theirs, error) from None
        return
    if "error" in theirs:
        raise Difference(query, f"time={at:.3f}", theirs, result)
    found: dict[Labels, list[tuple[float, float]]]
    match result:
        case ScalarValue():
            found = {(): [(at, result.value)]}
            expected = {(): [(float(theirs["result"][0]), float(theirs["result"][1]))]}
        case InstantVector():
            found = {sample.labels: [(at, sample.value)] for sample in result.samples}
            expected = {_key(row["metric"]): [(float(row["value"][0]), float(row["value"][1]))] for row in theirs["result"]}
        case StringValue():
            found, expected = {(): []}, {(): []}
            if theirs["result"][1] != result.value:
                raise Difference(query, f"time={at:.3f}", theirs, result)
        case Matrix():
            found = {row.labels: _points(row.times, row.values) for row in result.series}
            expected = {_key(row["metric"]): [(float(t), float(v)) for t, v in row["values"]] for row in theirs["result"]}
    _compare(query, f"time={at:.3f}", expected, found)


def compare_range(url: str, ours: Engine, query: str, start: float, end: float, step: float) -> None:
    """As compare_instant, for a range query."""
    theirs = _ask(url, "query_range", {"query": query, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"})
    assert isinstance(theirs, dict)
    where = f"start={start:.3f} end={end:.3f} step={step:.3f}"
    try:
        result = ours.range(query, start, end, step)
    except QueryError as error:
        if "error" not in theirs:
            raise Difference(query, where, theirs, error) from None
        return
    if "error" in theirs:
        raise Difference(query, where, theirs, result)
    found = {row.labels: _points(row.times, row.values) for row in result.series}
    expected = {_key(row["metric"]): [(float(t), float(v)) for t, v in row["values"]] for row in theirs["result"]}
    _compare(query, where, expected, found)


def _points(times: np.ndarray, values: np.ndarray) -> list[tuple[float, float]]:
    return list(zip((times / 1000).tolist(), values.tolist(), strict=True))


def _compare(
    query: str, where: str, expected: Mapping[Labels, list[tuple[float, float]]], found: Mapping[Labels, list[tuple[float, float]]]
) -> None:
    if expected.keys() != found.keys():
        raise Difference(query, where, sorted(expected), sorted(found))
    for own, points in expected.items():
        mine = found[own]
        if [at for at, _ in points] != [round(at, 3) for at, _ in mine]:
            raise Difference(query, f"{where} {own}", points, mine)
        for (at, theirs), (_, value) in zip(points, mine, strict=True):
            same = theirs == value or (math.isnan(theirs) and math.isnan(value))
            if not same and not math.isclose(theirs, value, rel_tol=RELATIVE, abs_tol=ABSOLUTE):
                raise Difference(query, f"{where} {own} at {at}", theirs, value)
