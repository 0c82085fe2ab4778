"""How long `poise exporter` reads all cards: ticks as its card threads make them, one card after the other, timed without the threads.

Run by bench_exporter.py on a simulated node of its own (the environment names it). Time between ticks is skipped, not waited for, so slow
collectors run as often as in real life; six driver samples per second arrive. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path

from poise.exporter.nvml import registry
from poise.exporter.nvml.card import Card, CardMemory, Peer
from poise.exporter.nvml.driver import Driver
from poise.exporter.nvml.reader import CardReader
from poise.testbed.nvml.library import STATE_VARIABLE
from poise.testbed.nvml.node import SimulatedNode
from poise.testbed.nvml.state import functions

INTERVAL = 1.0
SAMPLES_PER_SECOND = 6
WARM_UP = 10


class Clock:
    """Monotonic time that can be wound forward."""

    def __init__(self) -> None:
        self.skipped = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.skipped


def readers_of(driver: Driver, clock: Clock) -> list[CardReader]:
    handles = [driver.handle(index) for index in range(driver.count())]
    uuids = [driver.text(handle, "nvmlDeviceGetUUID") for handle in handles]
    peers = [Peer(index, uuid, "", handle) for index, (uuid, handle) in enumerate(zip(uuids, handles, strict=True))]
    readers = []
    for index, (uuid, handle) in enumerate(zip(uuids, handles, strict=True)):
        others = tuple(peer for peer in peers if peer.uuid != uuid)
        card = Card(
            driver.library,
            handle,
            index=index,
            uuid=uuid,
            name=driver.text(handle, "nvmlDeviceGetName"),
            interval=INTERVAL,
            driver_version=driver.version,
            memory=CardMemory(),
            peers=lambda others=others: others,
        )
        readers.append(CardReader(card, registry.enabled({}), {}, wall=time.time, monotonic=clock))
    return readers


def main(ticks: int) -> None:
    node = SimulatedNode.open(Path(os.environ[STATE_VARIABLE]))
    driver = Driver.open()
    clock = Clock()
    readers = readers_of(driver, clock)
    stamp = time.time()
    took: list[float] = []
    calls: dict[str, int] = {}
    fewest = sys.maxsize
    for tick in range(WARM_UP + ticks):
        for sample in range(SAMPLES_PER_SECOND):
            node.tick(stamp + sample / SAMPLES_PER_SECOND)
        stamp += INTERVAL
        clock.skipped += INTERVAL
        before = {name: node.calls(name) for name in functions()} if tick < WARM_UP else {}
        begun = time.thread_time()  # what others do on the machine does not count
        for reader in readers:
            reader.tick()
        duration = time.thread_time() - begun
        if before:
            made = {name: node.calls(name) - count for name, count in before.items() if node.calls(name) != count}
            # The tick with the fewest calls is one in which no slow collector was due: the fast tick.
            if sum(made.values()) < fewest:
                fewest, calls = sum(made.values()), made
        else:
            took.append(duration)
    print(json.dumps({"median_s": statistics.median(took), "mean_s": statistics.fmean(took), "largest_s": max(took), "calls": calls}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
