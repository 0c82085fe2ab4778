"""A long life of the exporter in a short time: the real sampler with its threads, the real join, checks and page, on a clock that a loop turns.

Everything waits on that clock: it moves on a second when all threads have done what was due. Cards are lost, hang and come back, links go
down, XIDs come, the driver is unloaded, engines come and go. `python -m tests.long_day TICKS` prints what it measured as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from poise.exporter import metrics as m
from poise.exporter.assemble import Assembler, Published
from poise.exporter.checks.runner import Runner
from poise.exporter.engines.source import EnginesObserved
from poise.exporter.exposition import Build, Exposition, Format, library_collectors
from poise.exporter.metrics import Kind, Metric, Owner
from poise.exporter.nvml import registry
from poise.exporter.nvml.sampler import Sampler
from poise.exporter.snapshot import ObservedEngine
from poise.testbed.nvml.codes import LinkError
from poise.testbed.nvml.gpu import Process
from poise.testbed.nvml.injection import Injection
from poise.testbed.nvml.node import SimulatedNode

from tests.full_node import page_engine
from tests.simulated_cards import START, simulated_library

PROFILE = "h100x8"
#: A tick that is not over after so many real seconds is a fault.
PATIENCE_SECONDS = 120.0
LOOK_SECONDS = 0.02
SCRAPE_TICKS = 15
PAGE_TICKS = 60
MEASURE_TICKS = 300
PROGRESS_TICKS = 1800
#: Counters that the driver begins anew when it is loaded (nvml.h: since the driver was loaded).
SINCE_LOAD = (m.GPU_ENERGY, m.GPU_ECC_ERRORS)
EVENT_WAIT = "nvmlEventSetWait_v2"
XIDS = (13, 31, 43, 45, 48, 63, 74, 94, 95, 119, 999)


class Clock:
    """Monotonic seconds that move only by `turn`, and the threads that wait for them."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._asleep: dict[int, float] = {}
        self._turned = threading.Condition()
        self._slept = threading.Event()

    def monotonic(self) -> float:
        return self._now

    def wall(self) -> float:
        return START + self._now

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """What the sampler waits with."""
        me = threading.get_ident()
        with self._turned:
            wake = self._now + seconds
            self._asleep[me] = wake
            self._slept.set()
            while not event.is_set() and self._now < wake:
                self._turned.wait(LOOK_SECONDS)
            del self._asleep[me]
        return event.is_set()

    def turn(self, seconds: float) -> None:
        """Time goes on."""
        with self._turned:
            self._now += seconds
            self._turned.notify_all()

    def rest(self, threads: Callable[[], list[threading.Thread]], held: Callable[[], int]) -> None:
        """Returns once every living thread waits for a later moment, but for as many as hang in the driver."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            self._slept.clear()
            with self._turned:
                asleep = {ident for ident, wake in self._asleep.items() if wake > self._now}
            awake = [thread for thread in threads() if thread.is_alive() and thread.ident not in asleep]
            if len(awake) <= held():
                return
            assert time.monotonic() < end, f"still at work: {', '.join(thread.name for thread in awake)}"
            self._slept.wait(LOOK_SECONDS)


class Engines:
    """Engines that come and go with pages of a real vLLM."""

    def __init__(self) -> None:
        self.now = EnginesObserved(START)
        self._shown: dict[int, ObservedEngine] = {}

    def latest(self) -> EnginesObserved:
        return self.now

    def live(self, tick: int) -> list[ObservedEngine]:
        """The engines of this tick: number, capture, ranks, and of how many ticks it is there, gone and forgotten."""
        found = []
        for number, (capture, ranks, period, there) in enumerate(
            (
                ("tp2-server-during07.prom", 2, 900, 700),
                ("single-server-after.prom", 1, 1300, 1100),
                ("dp2-server-after.prom", 2, 2100, 800),
            )
        ):
            phase = tick % period
            if phase >= there + 60:
                self._shown.pop(number, None)
                continue
            if phase % PAGE_TICKS == 0 or number not in self._shown:
                self._shown[number] = page_engine(number + 10 * (tick // period % 5), capture, ranks)
            engine = self._shown[number]
            if phase >= there:
                engine = dataclasses.replace(
                    engine, page=None, process_up=False, ranks=(), pids=frozenset(), page_error="connection refused"
                )
            found.append(engine)
        self.now = EnginesObserved(START + tick, tuple(sorted(found, key=lambda engine: engine.identity.engine)))
        return found


class World:
    """What happens to the node, tick by tick; the same in every run."""

    def __init__(self, node: SimulatedNode) -> None:
        self.node = node
        self.reloads = 0
        self._source = random.Random(7)
        self._hangs: list[tuple[str, Injection]] = []
        #: (every so many ticks, for so many, begin, end)
        self._faults: tuple[tuple[int, int, Callable[[], object], Callable[[], object]], ...] = (
            (97, 20, self._lose, lambda: node.restore(3)),
            (151, 16, lambda: self._hang("nvmlDeviceGetMemoryInfo_v2", 5), self._release),
            (211, 12, lambda: node.gpus[1].set_link_up(4, False), lambda: node.gpus[1].set_link_up(4, True)),
            (1009, 70, lambda: node.vanish(6), lambda: node.restore(6)),
            (1999, 10, node.unload_driver, self._load),
            (2503, 30, lambda: self._hang(EVENT_WAIT, None), self._release),
        )

    def held(self) -> int:
        """Threads that wait on the clock and hang in the driver now; the one that waits for events does not wait on the clock."""
        return sum(injection.held for function, injection in self._hangs if function != EVENT_WAIT)

    def change(self, tick: int, engines: list[ObservedEngine]) -> None:
        """One tick's changes."""
        source, node = self._source, self.node
        ranks = [rank.pid for engine in engines for rank in engine.ranks]
        for position, gpu in enumerate(node.gpus):
            gpu.set_utilization(source.random())
            if tick % 10 == position:
                own = ranks[position : position + 1]
                foreign = [source.randrange(100_000, 999_999) for _ in range(source.randrange(3))]
                gpu.set_processes([Process(pid, 1 << 30) for pid in own + foreign])
                gpu.add_energy(500.0)
                gpu.add_nvlink_bytes(source.randrange(gpu.link_count), tx=1 << 24, rx=1 << 23)
        if tick % 13 == 0:
            node.raise_xid(source.randrange(len(node.gpus)), source.choice(XIDS))
        if tick % 29 == 0:
            node.gpus[2].add_link_errors(source.randrange(18), source.choice(list(LinkError)))
            node.gpus[4].add_ecc_errors(uncorrected=False)
        for every, duration, begin, end in self._faults:
            if tick and tick % every == 0:
                begin()
            elif tick > every and tick % every == duration:
                end()

    def _lose(self) -> None:
        self.node.raise_xid(3, 79)
        self.node.lose(3)

    def _hang(self, function: str, gpu: int | None) -> None:
        self._hangs.append((function, self.node.inject(function, hang=True, gpu=gpu)))

    def _release(self) -> None:
        self.node.release()
        self._hangs.clear()

    def _load(self) -> None:
        self.node.load_driver()
        self.reloads += 1


@dataclass
class Figures:
    """What was measured: resident kibibytes, Python's allocated blocks, threads and descriptors, one each per look; samples of the largest page."""

    resident: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    samples: int = 0
    pages: int = 0
    xids: int = 0
    reloads: int = 0
    down: int = 0

    def look(self) -> None:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        self.blocks.append(sys.getallocatedblocks())
        self.resident.append(int(status["VmRSS"].split()[0]))
        self.threads.append(int(status["Threads"]))
        self.descriptors.append(len(os.listdir("/proc/self/fd")))


class Watcher:
    """Holds the promises: counters never fall, every name on the page is declared, checks do not break."""

    def __init__(self) -> None:
        self._highest: dict[tuple[str, Metric], Mapping[tuple[str, ...], float]] = {}
        self._counters = [metric for metric in m.ALL if metric.kind is Kind.COUNTER and metric.owner is Owner.GPU]
        self._declared = {name for metric in m.ALL for name in metric.sample_names}
        self._reloads = 0

    def look(self, published: Published, reloads: int) -> None:
        assert published.outcome is not None, "the checks broke"
        if reloads != self._reloads:
            self._reloads = reloads
            self._highest = {key: values for key, values in self._highest.items() if key[1] not in SINCE_LOAD}
        for gpu in published.snapshot.gpus:
            for metric in self._counters:
                values = gpu.readings.get(metric)
                before = self._highest.get((gpu.uuid, metric), {})
                if not values or values == before:
                    continue
                for labels, value in values.items():
                    highest = before.get(labels, 0.0)
                    assert value >= highest, f"{metric.name}{labels} of card {gpu.index} fell from {highest} to {value}"
                self._highest[gpu.uuid, metric] = {**before, **values}

    def names(self, page: str) -> None:
        names = set(re.findall(r"^[a-zA-Z_:][a-zA-Z0-9_:]*", page, re.MULTILINE)) - self._declared
        unknown = {name for name in names if not name.startswith(("process_", "python_"))}
        assert not unknown, f"not declared: {sorted(unknown)}"

    @property
    def xids(self) -> int:
        return int(sum(sum(values.values()) for (_, metric), values in self._highest.items() if metric is m.GPU_XID_ERRORS))


@contextmanager
def sampling(clock: Clock) -> Iterator[tuple[SimulatedNode, Sampler]]:
    with simulated_library(PROFILE) as (node, library):
        sampler = Sampler(registry.enabled({}), 1.0, library=library, wall=clock.wall, monotonic=clock.monotonic, wait=clock.wait)
        sampler.start()
        try:
            yield node, sampler
        finally:
            node.release()
            sampler.stop()
            end = time.monotonic() + PATIENCE_SECONDS
            while not sampler.join(0.0) and time.monotonic() < end:
                clock.turn(1.0)
                time.sleep(LOOK_SECONDS)
            assert sampler.join(0.0), "all threads leave once nothing hangs"


def live(ticks: int, say: Callable[[str], None] = lambda text: None) -> Figures:
    """So many ticks of one second each. Raises AssertionError where a promise is broken."""
    clock, engines, watcher, figures = Clock(), Engines(), Watcher(), Figures()
    exposition = Exposition(Build("0", "3"), library_collectors())
    with sampling(clock) as (node, sampler):
        world = World(node)
        assembler = Assembler(
            sampler,
            engines,
            Runner(),
            node="node",
            kernel="6.1",
            interval=1.0,
            title_of=lambda pid: "python3",
            expected=lambda: len(node.gpus),
            wall=clock.wall,
        )

        def threads() -> list[threading.Thread]:
            return [sampler._thread, *sampler._workers.values()]

        began = time.monotonic()
        for tick in range(ticks):
            world.change(tick, engines.live(tick))
            node.tick(clock.wall())
            clock.turn(1.0)
            clock.rest(threads, world.held)
            published = assembler.assemble()
            watcher.look(published, world.reloads)
            figures.down += sum(not gpu.up for gpu in published.snapshot.gpus)
            if tick % SCRAPE_TICKS == 0:
                form = Format.OPENMETRICS if tick % (2 * SCRAPE_TICKS) else Format.TEXT
                results = published.outcome.results if published.outcome is not None else ()
                page = exposition.render(published.snapshot, results, clock.wall(), form).decode()
                watcher.names(page)
                figures.pages += 1
                figures.samples = max(figures.samples, sum(1 for line in page.splitlines() if not line.startswith("#")))
            if tick % MEASURE_TICKS == 0:
                figures.look()
            if tick and tick % PROGRESS_TICKS == 0:
                passed = time.monotonic() - began
                say(
                    f"{tick} of {ticks} ticks in {passed:.0f} s, {passed / tick * (ticks - tick):.0f} s left, "
                    f"{figures.resident[-1] / 1024:.1f} MB, {figures.blocks[-1]} blocks, {figures.threads[-1]} threads, {figures.descriptors[-1]} descriptors"
                )
        figures.xids, figures.reloads = watcher.xids, world.reloads
    return figures


def main(ticks: int) -> None:
    """Prints the figures as JSON; progress goes to standard error."""
    # What is lost and hangs would be thousands of lines; a fault of ours (a traceback is logged as an error) is to be seen.
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    figures = live(ticks, lambda text: print(text, file=sys.stderr, flush=True))
    print(json.dumps(dataclasses.asdict(figures)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
