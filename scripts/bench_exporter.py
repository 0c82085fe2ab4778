"""Benchmark of the exporter: 8 simulated cards with 18 NVLink links each, beside nvitop-exporter and a C loop over the same calls.

    python scripts/bench_exporter.py [--seconds 20] [--write docs/benchmarks.md]

All in one run and on one machine, each on a simulated node of its own with the same load: one process per card, six driver samples per
second. The library is simulated: a call takes a fraction of a microsecond where a real driver takes several, so times show the exporters' own cost and
nothing of a driver's; C loop and Poise are measured again with calls that take as long as a driver's may. For the full number of series four
engines are served from a recorded page. nvitop-exporter gets an environment of its own, because its requirements are not ours; without a network it
is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import platform
import re
import shutil
import socket
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import bench_page
from poise.testbed.nvml.gpu import Process
from poise.testbed.nvml.node import SimulatedNode
from poise.testbed.nvml.state import functions

HERE = Path(__file__).parent / "bench"
PROFILE = "h100x8"
NVITOP = "nvitop-exporter"
FLOOR_PASSES = 2000
TICKS = 120
#: Seconds that each call of the library is held on purpose, besides none: what a call into a driver may take.
DRIVER_DELAYS = (10e-6, 50e-6)
#: Passes and ticks with such a delay: each takes milliseconds.
DELAYED_PASSES = 200
DELAYED_TICKS = 40
#: A page of a loaded engine, and how many engines have it.
ENGINE_PAGE = Path(__file__).parents[1] / "tests" / "captures" / "tp2-server-during07.prom"
ENGINES = 4
UPDATES = 10
SCRAPES = 40
SCRAPE_EVERY_SECONDS = 5.0
WARM_UP_SECONDS = 3.0
READY_SECONDS = 60.0
INSTALL_SECONDS = 600
DRIVER_SAMPLES_PER_SECOND = 6
#: What the exporter is to reach.
LARGEST_RATIO = 3.0
LARGEST_SCRAPE_SECONDS = 20e-3
FEWEST_SAMPLES = 3400
LARGEST_CPU = 0.01
LARGEST_RESIDENT = 60e6
TIMES_FASTER_THAN_NVITOP = 10.0


@dataclass(frozen=True)
class Collection:
    """CPU seconds to read all cards once: median, and mean with slow collectors at their rate."""

    median: float
    mean: float


@dataclass(frozen=True)
class Serving:
    """A running exporter: scrape seconds (median, largest), samples on its page, bytes of the page, CPU share, resident bytes."""

    scrape: float
    scrape_largest: float
    samples: int
    page_bytes: int
    cpu: float
    resident: int


@contextlib.contextmanager
def node(delay: float = 0.0) -> Iterator[tuple[SimulatedNode, dict[str, str]]]:
    """A fresh loaded node, and the environment of processes that are to find it. `delay`: seconds that each call takes besides."""
    with tempfile.TemporaryDirectory(prefix="poise-bench-") as folder:
        found = SimulatedNode.create(Path(folder) / "node", PROFILE)
        for gpu in found.gpus:
            gpu.set_utilization(0.9, memory=0.5)
            gpu.set_memory_used(60 << 30)
            gpu.set_power(650)
            gpu.set_processes([Process(os.getpid(), 60 << 30)])
        if delay:
            found.inject("*", delay=delay)
        yield found, {**os.environ, **found.environment()}
        found.release()


@contextlib.contextmanager
def alive(found: SimulatedNode) -> Iterator[None]:
    """Lets the driver take its samples and the links move bytes while something is measured."""
    done = threading.Event()

    def drive() -> None:
        while not done.wait(1 / DRIVER_SAMPLES_PER_SECOND):
            found.tick()
            for gpu in found.gpus:
                for link in range(gpu.link_count):
                    gpu.add_nvlink_bytes(link, tx=1 << 20, rx=1 << 20)

    thread = threading.Thread(target=drive)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def run_json(command: Sequence[str], environment: dict[str, str]) -> dict[str, object]:
    """The JSON object that a command prints."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    if done.returncode:
        raise SystemExit(f"bench: {' '.join(command)} failed:\n{done.stderr.strip()}")
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------------------------------- measurements
def compile_floor(folder: Path) -> Path:
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None:
        raise SystemExit("bench: no C compiler; install one, e.g. `apt-get install gcc libc6-dev`")
    include = next(iter(sorted(Path(sysconfig.get_path("purelib")).rglob("nvml.h"))), None)
    if include is None:
        raise SystemExit("bench: no nvml.h; `pip install nvidia-nvml-dev` (make setup does)")
    program = folder / "floor"
    subprocess.run([compiler, "-O2", f"-I{include.parent}", str(HERE / "floor.c"), "-o", str(program), "-ldl"], check=True)
    return program


def measure_floor(program: Path, delay: float = 0.0) -> tuple[Collection, dict[str, int]]:
    """The C loop, and the calls that one pass of it makes."""
    with node(delay) as (found, environment):
        found.tick()
        counts = []
        for passes in (1, 2):
            before = {name: found.calls(name) for name in functions()}
            run_json([str(program), str(passes)], environment)
            counts.append({name: found.calls(name) - before[name] for name in before})
        calls = {name: counts[1][name] - counts[0][name] for name in counts[0] if counts[1][name] != counts[0][name]}
        with alive(found):
            answer = run_json([str(program), str(DELAYED_PASSES if delay else FLOOR_PASSES)], environment)
        median = float(str(answer["median_ns"])) / 1e9
        return Collection(median, median), calls


def measure_poise_collection(delay: float = 0.0) -> tuple[Collection, dict[str, int]]:
    """Ticks of all cards, and the calls of one in which no slow collector was due."""
    with node(delay) as (_, environment):
        answer = run_json([sys.executable, str(HERE / "collect.py"), str(DELAYED_TICKS if delay else TICKS)], environment)
        calls = answer["calls"]
        assert isinstance(calls, dict)
        return Collection(float(str(answer["median_s"])), float(str(answer["mean_s"]))), calls


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def get(port: int) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=READY_SECONDS)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != http.HTTPStatus.OK:
            raise OSError(f"status {answer.status}")
        return body


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    match = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert match
    return int(match[1]) * 1024


def measure_serving(command: Sequence[str], port: int, seconds: float) -> Serving:
    """Runs an exporter, lets it read the cards once a second for `seconds` with a scrape every five, then times scrapes."""
    with node() as (found, environment), alive(found), tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("w") as output:
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, cwd=folder)
        try:
            end = time.monotonic() + READY_SECONDS
            while True:
                try:
                    get(port)
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > end:
                        raise SystemExit(f"bench: {command[0]} does not serve:\n{log.read_text()}") from None
                    time.sleep(0.1)
            time.sleep(WARM_UP_SECONDS)
            began, used = time.monotonic(), cpu_seconds(process.pid)
            while time.monotonic() - began < seconds:
                time.sleep(SCRAPE_EVERY_SECONDS)
                get(port)
            cpu = (cpu_seconds(process.pid) - used) / (time.monotonic() - began)
            took = []
            page = b""
            for _ in range(SCRAPES):
                start = time.perf_counter()
                page = get(port)
                took.append(time.perf_counter() - start)
            samples = sum(1 for line in page.splitlines() if line and not line.startswith(b"#"))
            return Serving(statistics.median(took), max(took), samples, len(page), cpu, resident_bytes(process.pid))
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def engines() -> Iterator[list[str]]:
    """Engines that serve a recorded page; the flags that name them."""
    command = [sys.executable, str(HERE / "engine_pages.py"), str(ENGINE_PAGE), str(ENGINES)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ports = json.loads(process.stdout.readline())
        yield [f"--engine=engine-{number}=http://127.0.0.1:{port}" for number, port in enumerate(ports)]


def install_nvitop(folder: Path) -> Path | None:
    """The Python of an environment with nvitop-exporter, or None when it cannot be had."""
    say(f"installing {NVITOP} into an environment of its own")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    done = subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", NVITOP], capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
    )
    if done.returncode:
        say(f"{NVITOP} cannot be installed, so it is left out: {done.stderr.strip().splitlines()[-1]}")
        return None
    return python


# ---------------------------------------------------------------------------------------------------------------------- table
@dataclass(frozen=True)
class Line:
    """A row of the table."""

    name: str
    collection: Collection | None
    serving: Serving | None


def table(lines: Sequence[Line], floor: Collection) -> str:
    rows = [
        "| | collection, all cards | × C loop | scrape | samples | µs per sample | CPU at 1 s | resident |",
        "|-|-:|-:|-:|-:|-:|-:|-:|",
    ]
    for line in lines:
        cells = [line.name]
        if line.collection is None:
            cells += ["", ""]
        else:
            cells += [f"{line.collection.median * 1e3:.3g} ms", f"{line.collection.median / floor.median:.3g}"]
        if line.serving is None:
            cells += [""] * 5
        else:
            serving = line.serving
            per_sample = f"{line.collection.median * 1e6 / serving.samples:.2g}" if line.collection else ""
            cells += [
                f"{serving.scrape * 1e3:.3g} ms",
                f"{serving.samples}",
                per_sample,
                f"{serving.cpu * 100:.2g} %",
                f"{serving.resident / 1e6:.0f} MB",
            ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


@dataclass(frozen=True)
class Delayed:
    """C loop and Poise with calls that take so many seconds longer."""

    delay: float
    floor: Collection
    poise: Collection

    @property
    def ratio(self) -> float:
        return self.poise.median / self.floor.median


def delays_table(rows: Sequence[Delayed]) -> str:
    lines = ["| each call takes | C loop | Poise | × C loop |", "|-|-:|-:|-:|"]
    for row in rows:
        longer = f"{row.delay * 1e6:.0f} µs longer" if row.delay else "as it is"
        lines.append(f"| {longer} | {row.floor.median * 1e3:.3g} ms | {row.poise.median * 1e3:.3g} ms | {row.ratio:.3g} |")
    return "\n".join(lines)


def aims(rows: Sequence[Delayed], full: Serving, nvitop: Collection | None) -> str:
    """What is to be reached, and whether it is."""
    found = [
        (
            f"collection within {LARGEST_RATIO:.0f} × the C loop, {f'calls {row.delay * 1e6:.0f} µs longer' if row.delay else 'calls as they are'}",
            f"{row.ratio:.3g} ×",
            row.ratio <= LARGEST_RATIO,
        )
        for row in (*rows[1:], rows[0])
    ]
    if nvitop is not None:
        times = nvitop.median / rows[0].poise.median
        found.append(
            (f"≥ {TIMES_FASTER_THAN_NVITOP:.0f} × faster than {NVITOP} without PCIe", f"{times:.3g} ×", times >= TIMES_FASTER_THAN_NVITOP)
        )
    found += [
        (f"scrape ≤ {LARGEST_SCRAPE_SECONDS * 1e3:.0f} ms", f"{full.scrape * 1e3:.3g} ms", full.scrape <= LARGEST_SCRAPE_SECONDS),
        (f"that with {FEWEST_SAMPLES:,} samples", f"{full.samples:,}", full.samples >= FEWEST_SAMPLES),
        (f"≤ {LARGEST_CPU:.0%} of a core", f"{full.cpu:.2%}", full.cpu <= LARGEST_CPU),
        (f"≤ {LARGEST_RESIDENT / 1e6:.0f} MB resident", f"{full.resident / 1e6:.0f} MB", full.resident <= LARGEST_RESIDENT),
    ]
    return "\n".join(
        [
            "| aim | measured | |",
            "|-|-:|-|",
            *(f"| {aim} | {value} | {'reached' if hit else '**not reached**'} |" for aim, value, hit in found),
        ]
    )


def report(lines: Sequence[Line], rows: Sequence[Delayed], full: Serving, calls: int, seconds: float, nvitop: str) -> str:
    floor, poise = rows[0].floor, rows[0].poise
    cpu = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "unknown"
    )
    own = poise.median - floor.median
    peer = next((line.collection for line in lines if line.name.endswith("without PCIe")), None)
    return f"""# Benchmarks

Made by `make bench` (`scripts/bench_exporter.py`) in one run on one machine: {os.cpu_count()} cores, {cpu}, Linux {platform.release()},
Python {platform.python_version()}, Poise {version("poise")}{nvitop}. Figures are good as orders of magnitude, ratios as such. Load of the machine by
others while it ran: {os.getloadavg()[2]:.1f} (mean of 15 minutes, this run included).

The node: eight simulated H100 with 18 NVLink links each, a process on each, driver samples six times a second. The library is simulated, so a
call costs about {floor.median / calls * 1e9:.0f} ns; a real driver's takes microseconds, which every exporter pays alike.

{table(lines, floor)}

* *Collection*: median CPU time to read all cards once, one after the other, so that what else runs on the machine counts little; Poise with
  its slow collectors at their own rate takes {poise.mean * 1e3:.3g} ms in the mean. nvitop-exporter: its update of all devices, without its
  host metrics; with its PCIe reads the time that passes, because it waits in them.
* *C loop*: the {calls} library calls of one fast tick of Poise, in C, with the answers thrown away. The benchmark checks that both make the same calls.
* *Scrape*: median of {SCRAPES} requests of /metrics, uncompressed, as the client sees them; with engines the largest is
  {full.scrape_largest * 1e3:.3g} ms for {full.page_bytes / 1000:.0f} kB.
* *CPU*: share of one core over {seconds:.0f} s at an interval of 1 s, with a scrape every {SCRAPE_EVERY_SECONDS:.0f} s.
* *With {ENGINES} engines*: each a recorded page of a loaded vLLM server (`tests/captures/{ENGINE_PAGE.name}`), polled every 5 s.
* *Without PCIe*: nvitop-exporter with its two PCIe throughput reads per card replaced by a constant. NVML blocks for 20 ms in each.

## Collection with a driver that takes its time

{delays_table(rows)}

Every call of the library is held for so long on purpose, in the C loop and under Poise alike; the whole of `nvmlDeviceGetFieldValues` counts as one
call. Poise's own part of a tick is {own * 1e6 / 8:.0f} µs per card: the Python between {calls // 8} calls. Against a library that answers at once that is
{rows[0].ratio:.0f} times the C loop, because Python makes a call through ctypes in about the time in which this library answers several.

## Aims

{aims(rows, full, peer)}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="how long CPU use is measured (default: 20)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the report there as well")
    parser.add_argument("--without-nvitop", action="store_true", help="leave nvitop-exporter out")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="poise-bench-tools-") as tools:
        say("C loop and collection of Poise")
        program = compile_floor(Path(tools))
        floor, floor_calls = measure_floor(program)
        collection, poise_calls = measure_poise_collection()
        if floor_calls != poise_calls:
            differing = {name for name in {*floor_calls, *poise_calls} if floor_calls.get(name) != poise_calls.get(name)}
            raise SystemExit(f"bench: the C loop does not make the calls of a tick any more: {sorted(differing)}")
        rows = [Delayed(0.0, floor, collection)]
        for delay in DRIVER_DELAYS:
            say(f"the same with calls that take {delay * 1e6:.0f} µs longer")
            rows.append(Delayed(delay, measure_floor(program, delay)[0], measure_poise_collection(delay)[0]))
        say(f"poise exporter for {arguments.seconds:.0f} s, and again with {ENGINES} engines")
        port = free_port()
        command = [sys.executable, "-m", "poise.cli.main", "exporter", f"--listen=127.0.0.1:{port}", "--no-discover"]
        lines = [
            Line("C loop", floor, None),
            Line("**poise exporter**", collection, measure_serving(command, port, arguments.seconds)),
        ]
        with engines() as flags:
            full = measure_serving([*command, *flags], port, arguments.seconds)
        lines.append(Line(f"**poise exporter** with {ENGINES} engines", None, full))
        nvitop = ""
        python = None if arguments.without_nvitop else install_nvitop(Path(tools) / "nvitop")
        if python is not None:
            query = ["-c", f"from importlib.metadata import version; print(version({NVITOP!r}))"]
            nvitop = f", {NVITOP} " + subprocess.run([str(python), *query], capture_output=True, text=True, check=True).stdout.strip()
            for name, flags in ((NVITOP, []), (f"{NVITOP} without PCIe", ["--without-pcie"])):
                say(name)
                probe = [str(python), str(HERE / "nvitop_probe.py")]
                with node() as (_, environment):
                    answer = run_json([*probe, "time", str(UPDATES), *flags], environment)
                port = free_port()
                serve = [*probe, "serve", *flags, "--", "--bind-address", "127.0.0.1", "--port", str(port), "--interval", "1"]
                times = Collection(float(str(answer["median_s"])), float(str(answer["mean_s"])))
                lines.append(Line(name, times, measure_serving(serve, port, arguments.seconds)))
        text = report(lines, rows, full, sum(floor_calls.values()), arguments.seconds, nvitop)
    print(text)
    if arguments.write:
        arguments.write.write_text(text + bench_page.sections(arguments.write))
    return 0


if __name__ == "__main__":
    sys.exit(main())
