"""Reads simulated cards the way the exporter does, without its threads: time moves only when a test says so.

    with bench("h100x8") as cards:
        cards.node.gpus[0].set_power(350)
        assert cards.read(0).value(metrics.GPU_POWER) == 350

Driver, ctypes and collectors are the real ones; only the library behind them is simulated.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from poise.exporter.metrics import Metric
from poise.exporter.nvml import registry
from poise.exporter.nvml.card import Card, CardMemory, Collector, Peer
from poise.exporter.nvml.driver import Driver
from poise.exporter.nvml.identity import sysfs_bus_id
from poise.exporter.nvml.library import SUCCESS
from poise.exporter.nvml.reader import CardReader, Run
from poise.exporter.nvml.xid_events import EventThread
from poise.exporter.nvml.xid_watch import XidWatch
from poise.exporter.pid_namespace import PidNamespace
from poise.exporter.snapshot import Gpu
from poise.testbed.nvml.library import STATE_VARIABLE, build
from poise.testbed.nvml.node import SimulatedNode
from poise.testbed.nvml.profiles import Profile
from poise.testbed.nvml.state import read_header

INTERVAL = 1.0
#: An afternoon in 2026, so that no test depends on today.
START = 1_790_000_000.0


@contextmanager
def simulated_library(profile: str | Profile, driver: str = "") -> Iterator[tuple[SimulatedNode, str]]:
    """A node of this profile and the path of its library, which this process finds the node through until the end.

    `driver`: another version than the profile's.
    """
    with tempfile.TemporaryDirectory(prefix="poise-cards-") as folder:
        path = Path(folder) / "node"
        before = os.environ.get(STATE_VARIABLE)
        os.environ[STATE_VARIABLE] = str(path)
        with SimulatedNode.create(path, profile) as node:
            if driver:
                node.load_driver(driver)
            library = str(build(None, read_header(path).driver_major))
            try:
                yield node, library
            finally:
                node.release()
                if before is None:
                    del os.environ[STATE_VARIABLE]
                else:
                    os.environ[STATE_VARIABLE] = before
                shut_down(library)


def shut_down(library: str) -> None:
    """Ends every session that this process has with the library."""
    handle = ctypes.CDLL(library)
    while handle.nvmlShutdown() == 0:
        continue


class Bench:
    """The cards of one node, each with its reader, and a clock that a test turns."""

    def __init__(
        self,
        node: SimulatedNode,
        library: str,
        collectors: Sequence[Collector],
        pid_namespace: PidNamespace,
    ) -> None:
        self.node = node
        self.collectors = collectors
        self.pid_namespace = pid_namespace
        self.now = START
        self.driver = Driver.open(library)
        self.memories = [CardMemory() for _ in node.gpus]
        self.runs: list[dict[str, Run]] = [{} for _ in node.gpus]
        self.readers: list[CardReader] = []
        self.xids = XidWatch(wall=lambda: self.now, monotonic=lambda: self.now, deadline=3.0)
        self.events = EventThread(self.driver.library, self.xids.on_event, lambda: self.now)
        assert self.events.begin() == SUCCESS
        self.xids.attach(self.events)
        self.prepare()

    def prepare(self) -> None:
        """Makes all readers anew, as after a lost card or a driver reload."""
        self.close()
        handles = [self.driver.handle(index) for index in range(len(self.node.gpus))]
        peers = tuple(Peer(index, gpu.uuid, sysfs_bus_id(gpu.pci_bus_id), handles[index]) for index, gpu in enumerate(self.node.gpus))
        self.readers = [self._reader(index, handles[index], peers) for index in range(len(self.node.gpus))]

    def _reader(self, index: int, handle: ctypes.c_void_p, peers: tuple[Peer, ...]) -> CardReader:
        uuid = self.driver.text(handle, "nvmlDeviceGetUUID")
        card = Card(
            self.driver.library,
            handle,
            index=index,
            uuid=uuid,
            name=self.driver.text(handle, "nvmlDeviceGetName"),
            interval=INTERVAL,
            driver_version=self.driver.version,
            memory=self.memories[index],
            peers=lambda: tuple(peer for peer in peers if peer.uuid != uuid),
            pid_namespace=self.pid_namespace,
            xids=self.xids,
        )
        return CardReader(card, self.collectors, self.runs[index], wall=lambda: self.now, monotonic=lambda: self.now)

    def read(self, position: int = 0, *, after: float = 0.0) -> Gpu:
        """The card as a tick reads it, `after` seconds later than the last."""
        self.now += after
        return self.readers[position].tick()

    def deliver(self) -> None:
        """Takes all events that the driver has, as the thread that waits for them does."""
        while self.events.take(0) == SUCCESS:
            continue

    def close(self) -> None:
        """Gives back what the readers hold in the driver."""
        for reader in self.readers:
            reader.close()

    def read_all_tiers(self, position: int = 0) -> Gpu:
        """The card as a tick reads it in which every collector is due."""
        return self.read(position, after=3600.0)


@contextmanager
def bench(
    profile: str | Profile,
    *,
    driver: str = "",
    collectors: Sequence[Collector] = registry.enabled({}),
    pid_namespace: PidNamespace = PidNamespace.HOST,
) -> Iterator[Bench]:
    """The cards of a fresh node of this profile, with another `driver` version where one is given."""
    with simulated_library(profile, driver) as (node, library):
        cards = Bench(node, library, collectors, pid_namespace)
        try:
            yield cards
        finally:
            node.release()
            cards.close()


def series(gpu: Gpu) -> Mapping[tuple[Metric, tuple[str, ...]], float]:
    """Every series of a card, flat."""
    return {(metric, labels): value for metric, values in gpu.readings.items() for labels, value in values.items()}
