"""Which cards are measured, how they are joined, what their links can carry, and whether somebody works on them.

Read with the exporter's own collectors, so that path and links mean here what they mean there. `group_of` is pure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from poise.exporter import metrics as m
from poise.exporter.checks import words
from poise.exporter.checks.interconnect import rank_of
from poise.exporter.nvml import identity, nvlink, processes, topology, utilization
from poise.exporter.nvml.sampler import Sampler, View
from poise.exporter.pid_namespace import own_pid_namespace
from poise.exporter.procfs import ProcFs
from poise.exporter.snapshot import Gpu
from poise.testbed.errors import TestbedError

#: How often the cards are read, and how long until each has told how it is joined to all others.
INTERVAL = 0.5
#: Everything at once and again soon: who looks once cannot wait for the intervals of those who watch.
COLLECTORS = tuple(
    replace(collector, interval=INTERVAL)
    for collector in (identity.COLLECTOR, utilization.COLLECTOR, processes.COLLECTOR, nvlink.STATE, topology.COLLECTOR)
)
PATIENCE = 30.0
JOIN_SECONDS = 2.0
#: More than this share of busy time is somebody's work.
BUSY_RATIO = 0.05


@dataclass(frozen=True, slots=True)
class Group:
    """Cards in rank order. `nominal` in bytes per second and direction; `busy` are words about cards that somebody works on."""

    indices: tuple[int, ...]
    uuids: tuple[str, ...]
    path: str
    nominal: float | None
    driver: str
    busy: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """ "GPUs 0 and 1"."""
        return words.cards(self.indices)


def look(numbers: Sequence[int] | None, wait: Callable[[float], None] = time.sleep) -> Group:
    """The cards with these NVML numbers, all when None. Raises TestbedError where there are not two, or the driver does not tell of them in time."""
    sampler = Sampler(COLLECTORS, INTERVAL, pid_namespace=own_pid_namespace(ProcFs()))
    sampler.start()
    try:
        deadline = time.monotonic() + PATIENCE
        view = sampler.view()
        while not (sampler.settled() and (view.driver.error or _told(view))) and time.monotonic() < deadline:
            wait(INTERVAL)
            view = sampler.view()
    finally:
        sampler.stop()
        sampler.join(JOIN_SECONDS)
    if view.driver.error:
        raise TestbedError(f"the NVIDIA driver cannot be asked: {view.driver.error}")
    return group_of(view.gpus, view.driver.driver, numbers)


def _told(view: View) -> bool:
    """Whether each card has told its links and its path to each other one, or that it tells none. Cards come up one by one."""
    up = {gpu.uuid for gpu in view.gpus if gpu.up}
    return bool(view.gpus) and all(
        (m.GPU_NVLINK_UP in gpu.readings or m.GPU_NVLINK_UP in gpu.absent)
        and (m.GPU_PAIR_INFO in gpu.absent or up - {gpu.uuid} <= {peer for _, peer, _, _ in gpu.readings.get(m.GPU_PAIR_INFO, {})})
        for gpu in view.gpus
        if gpu.up
    )


def group_of(gpus: Sequence[Gpu], driver: str, numbers: Sequence[int] | None) -> Group:
    """The chosen cards as one group. Raises TestbedError, in words, for a choice that cannot be measured."""
    there = {gpu.index: gpu for gpu in gpus}
    chosen = list(numbers) if numbers is not None else sorted(there)
    for index in chosen:
        if index not in there:
            raise TestbedError(f"--gpus: there is no GPU {index}; there are {', '.join(map(str, sorted(there))) or 'none'}")
        if not there[index].up:
            raise TestbedError(f"GPU {index} does not answer ({there[index].down_reason}): leave it out with --gpus")
        if there[index].simulated:
            raise TestbedError(f"GPU {index} is a simulated card, which moves no bytes")
    if len(chosen) < 2 or len(set(chosen)) < len(chosen):
        raise TestbedError(f"an all-reduce needs two cards or more, each once; --gpus gives {', '.join(map(str, chosen)) or 'none'}")
    cards = [there[index] for index in chosen]
    return Group(
        indices=tuple(chosen),
        uuids=tuple(card.uuid for card in cards),
        path=_worst([path for card in cards for path in _paths(card, cards).values()]),
        nominal=_nominal(cards),
        driver=driver,
        busy=tuple(words for card in cards for words in _busy(card)),
    )


def _paths(card: Gpu, cards: Sequence[Gpu]) -> dict[str, str]:
    """Path to each of the others, by UUID."""
    known = {peer: path for _, peer, path, _ in card.readings.get(m.GPU_PAIR_INFO, {})}
    return {other.uuid: known.get(other.uuid, "unknown") for other in cards if other is not card}


def _worst(paths: Sequence[str]) -> str:
    """The farthest path; of NVLinks the one with fewest."""
    return max(paths, key=lambda path: (rank_of(path), -_links(path)))


def _links(path: str) -> int:
    return int(path[2:]) if path.startswith("NV") and path[2:].isdecimal() else 0


def _nominal(cards: Sequence[Gpu]) -> float | None:
    """What the links of a card to the others carry in one direction, of the card that has least; None unless all are joined by links.

    Behind switches each path names all links of the card, so that no more are counted than are up.
    """
    least: float | None = None
    for card in cards:
        links = [_links(path) for path in _paths(card, cards).values()]
        up = {key for key, is_up in card.readings.get(m.GPU_NVLINK_UP, {}).items() if is_up}
        speeds = [speed for key, speed in card.readings.get(m.GPU_NVLINK_BANDWIDTH, {}).items() if key in up]
        if not speeds or not all(links):
            return None
        carried = sum(speeds) * min(1.0, sum(links) / len(speeds))
        least = carried if least is None else min(least, carried)
    return least


def _busy(card: Gpu) -> list[str]:
    found = []
    if card.processes:
        found.append(f"GPU {card.index} holds process {', '.join(str(process.pid) for process in card.processes[:4])}")
    ratio = card.value(m.GPU_UTILIZATION)
    if ratio is not None and ratio > BUSY_RATIO:
        found.append(f"GPU {card.index} is {words.percent(ratio)} busy")
    return found
