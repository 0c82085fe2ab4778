"""`poise up` for long on a node that never rests: nothing grows, no counter falls, every scrape answers, and the end is quick even then.

Minutes: POISE_SOAK_MINUTES (default 60). Writes what it measured to docs/soak.md.
"""

from __future__ import annotations

import contextlib
import os
import platform
import random
import signal
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from poise.testbed.nvml.gpu import Process
from poise.testbed.nvml.node import SimulatedNode

from tests.poise_up import PATIENCE, children, free_port, get, up, wait_for
from tests.recorded import PageServer, huge, serve, silence
from tests.soak_page import write_section

pytestmark = pytest.mark.soak

ROOT = Path(__file__).resolve().parents[2]
CAPTURES = ROOT / "tests" / "captures"
MINUTES = float(os.environ.get("POISE_SOAK_MINUTES", "60"))
CHANGE_SECONDS = 0.5
MEASURE_SECONDS = 5.0
#: The page keeps a quarter of an hour of every series; a run that is not four times as long says nothing about its memory.
PAGE_SETTLES_MINUTES = 15.0
#: What memory may still gain from the second quarter of the run to the last: fragments of the allocator, not a leak.
GROWTH = 1.10
SLACK_MEGABYTES = 4.0
#: Room for a thread or descriptor that is just being used.
SPARE = 3


@dataclass
class Figures:
    """What was measured of one process: resident megabytes, threads, open descriptors, one each per look."""

    resident: list[float] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def look(self, pid: int) -> None:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        self.resident.append(int(status["VmRSS"].split()[0]) / 1024)
        self.threads.append(int(status["Threads"]))
        self.descriptors.append(len(os.listdir(f"/proc/{pid}/fd")))


def quarters(values: list[float] | list[int]) -> tuple[float, float]:
    """The highest of the second and of the last quarter."""
    size = len(values) // 4
    return max(values[size : 2 * size]), max(values[-size:])


class Restless:
    """The node's life: load that swings, processes that come and go, and every now and then a card or the driver that fails."""

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node
        self._source = random.Random(1)
        self._moments = 0
        #: (every so many changes, for so many changes, begin, end)
        self._faults: tuple[tuple[int, int, Callable[[], object], Callable[[], object]], ...] = (
            (97, 20, lambda: node.lose(3), lambda: node.restore(3)),
            (151, 16, lambda: node.inject("nvmlDeviceGetMemoryInfo_v2", hang=True, gpu=5), lambda: node.release(gpu=5)),
            (211, 12, lambda: node.gpus[1].set_link_up(4, False), lambda: node.gpus[1].set_link_up(4, True)),
            (401, 10, node.unload_driver, node.load_driver),
        )

    def change(self) -> None:
        """One change, and whichever fault begins or ends now."""
        self._moments += 1
        gpu = self._source.choice(self._node.gpus)
        gpu.set_utilization(self._source.random())
        gpu.set_power(self._source.uniform(70, 700))
        gpu.set_processes([Process(self._source.randrange(100_000, 999_999), 1 << 30) for _ in range(self._source.randrange(4))])
        self._node.tick()
        for every, duration, begin, end in self._faults:
            if self._moments % every == 0:
                begin()
            elif self._moments > every and self._moments % every == duration:
                end()


@contextlib.contextmanager
def open_stream(port: int) -> Iterator[None]:
    """A tab that stays open: reads the event stream until the block ends."""
    with socket.create_connection(("127.0.0.1", port)) as stream:
        stream.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in stream.recv(4096)

        def read() -> None:
            with contextlib.suppress(OSError):
                while stream.recv(65536):
                    pass

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        yield
        stream.shutdown(socket.SHUT_RDWR)
        reader.join(PATIENCE)


def busy_seconds(page: str) -> dict[str, float]:
    lines = (line for line in page.splitlines() if line.startswith("poise_gpu_busy_seconds_total{"))
    return {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines)}


def test_nothing_grows_on_a_node_that_never_rests(make_node: Callable[[str], SimulatedNode], tmp_path: Path) -> None:
    node, exporter_port = make_node("h100x8"), free_port()
    good, silent, large = (PageServer(CAPTURES / "tp2-server-during07.prom") for _ in range(3))
    silent.fault, large.fault = silence(silent), huge(20 << 20, announced=False)
    exporter, page = Figures(), Figures()
    answers: list[float] = []
    samples: list[int] = []
    with contextlib.ExitStack() as stack:
        engines = [stack.enter_context(serve(server)).url for server in (good, silent, large)]
        words = ["--exporter", f"http://127.0.0.1:{exporter_port}", "--no-discover", "--scrape-interval", "1"]
        for name, url in zip(("good", "silent", "large"), engines, strict=True):
            words += ["--engine", f"{name}={url}"]
        process, url = stack.enter_context(up(*words, log=tmp_path / "log", environment=node.environment()))
        metrics = f"http://127.0.0.1:{exporter_port}/metrics"
        wait_for(lambda: get(metrics)[0] == 200, "the exporter answers")
        (child,) = children(process.pid)
        life, pause = Restless(node), threading.Event()
        highest: dict[str, float] = {}
        began = measured = time.monotonic()
        stream = stack.enter_context(contextlib.ExitStack())
        stream.enter_context(open_stream(int(url.rpartition(":")[2])))
        while time.monotonic() - began < 60 * MINUTES:
            life.change()
            pause.wait(CHANGE_SECONDS)
            if time.monotonic() - measured < MEASURE_SECONDS:
                continue
            measured = time.monotonic()
            status, text = get(metrics)
            answers.append(time.monotonic() - measured)
            assert status == 200
            samples.append(sum(not line.startswith("#") for line in text.splitlines()))
            for series, value in busy_seconds(text).items():
                assert value >= highest.get(series, 0.0), f"{series} fell"
                highest[series] = value
            exporter.look(child)
            page.look(process.pid)
        node.inject("*", hang=True, gpu=5)
        ended = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        ended = time.monotonic() - ended
        node.release()
    log = (tmp_path / "log").read_text()
    report(exporter, page, answers, samples, ended, log)

    assert "Traceback" not in log
    settled = [("exporter", exporter)] + ([("page", page)] if MINUTES >= 4 * PAGE_SETTLES_MINUTES else [])
    for name, figures in settled:
        before, after = quarters(figures.resident)
        assert after <= GROWTH * before + SLACK_MEGABYTES, f"{name}: {before:.0f} MB in the second quarter, {after:.0f} MB in the last"
    for name, figures in (("exporter", exporter), ("page", page)):
        for what, values in (("threads", figures.threads), ("descriptors", figures.descriptors)):
            before, after = quarters(values)
            assert after <= before + SPARE, f"{name}: {before:.0f} {what} in the second quarter, {after:.0f} in the last"


def report(exporter: Figures, page: Figures, answers: list[float], samples: list[int], ended: float, log: str) -> None:
    """Writes its section of docs/soak.md."""

    def row(name: str, figures: Figures) -> str:
        cells = []
        for values in (figures.resident, figures.threads, figures.descriptors):
            before, after = quarters(values)
            cells.append(f"{before:.0f} → {after:.0f}")
        return f"| {name} | {' | '.join(cells)} |"

    lines = [
        f"Written by `make soak` (`tests/soak/test_up_for_long.py`): `poise up` for {MINUTES:g} minutes on {os.cpu_count()} cores, {platform.system()} "
        f"{platform.release()}, Python {platform.python_version()}.",
        "",
        "Eight simulated H100 whose load and processes change twice a second. A card is lost and comes back, one hangs in the driver and comes",
        "back, a link goes down and up, the driver is unloaded and loaded, over and over. Three engines: one answers, one never does, one sends",
        "20 MB. A tab with the event stream is open all the time, the page scrapes every second, and so does this test every five.",
        "",
        "| highest of the second quarter → of the last | resident, MB | threads | open descriptors |",
        "| - | -: | -: | -: |",
        row("exporter", exporter),
        row("page", page),
        "",
        f"* {len(answers)} scrapes, none failed: median {1000 * statistics.median(answers):.0f} ms, longest {1000 * max(answers):.0f} ms, as the "
        f"client sees them, {min(samples)} to {max(samples)} samples.",
        "* No counter of busy seconds fell.",
        f"* With a card that hangs and the stream open everything ended {ended:.1f} s after SIGTERM.",
        f"* {len(log.splitlines())} lines of log, {log.count('Traceback')} tracebacks.",
    ]
    if MINUTES < 4 * PAGE_SETTLES_MINUTES:
        lines.append("* The page keeps a quarter of an hour of every series, so that its memory says little in a run as short as this.")
    write_section(ROOT / "docs" / "soak.md", "`poise up` for long", lines)
