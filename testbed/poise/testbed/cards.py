"""The simulated cards of a deployment: made, named to the exporter, waited for, given faults.

Owns the two files between a deployment and its mirror (which faults are wanted, what the mirror shows). What is shown on a
card is decided in mirror.py.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from poise.testbed import records, spawning
from poise.testbed.environment import Note
from poise.testbed.errors import TestbedError
from poise.testbed.files import read_json_object, write_json
from poise.testbed.nvml import library, profiles
from poise.testbed.nvml.node import SimulatedNode
from poise.testbed.nvml.profiles import Profile
from poise.testbed.paths import StateLayout

# The cards of the article that Poise answers; a shape gets the first few of the server's eight.
PROFILE = "h20x8"
# The mirror works at 5 Hz; a loaded machine may need seconds to start its Python.
MIRROR_SECONDS = 60.0
LOOK_SECONDS = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Wish:
    """The faults that are wanted, and the index of the card on which: None is the last."""

    faults: tuple[str, ...] = ()
    card: int | None = None


def profile(count: int) -> Profile:
    """The profile of a node with `count` cards. Raises TestbedError when there is none."""
    whole = profiles.load(PROFILE)
    if not 1 <= count <= len(whole.cards):
        raise TestbedError(f"{count} cards are asked for and the profile {PROFILE} has {len(whole.cards)}")
    return dataclasses.replace(whole, cards=whole.cards[:count])


def create(layout: StateLayout, count: int, cache: Path, note: Note) -> None:
    """Makes the state of the node and compiles the library (on first use, a few seconds).

    Raises TestbedError without a C compiler.
    """
    node = SimulatedNode.create(layout.cards, profile(count))
    node.close()
    note("compiling the simulated NVML library")
    library.environment(layout.cards, cache)


def library_environment(layout: StateLayout, cache: Path) -> dict[str, str]:
    """What a process needs in its environment to find the simulated cards instead of a driver."""
    return library.environment(layout.cards, cache)


def want_faults(layout: StateLayout, names: Sequence[str], card: int | None = None) -> None:
    """Asks the mirror for exactly these faults, on this card or the last, and returns when it shows them. Raises TestbedError
    when it does not."""
    write_json(layout.faults, {"faults": sorted(names), "card": card})
    _wait(layout, lambda shown: shown.get("faults") == sorted(names), f"did not show {', '.join(names) or 'healthy cards'}")


def wanted_faults(layout: StateLayout) -> Wish:
    """The faults that are wanted now."""
    found = read_json_object(layout.faults) or {}
    names, card = found.get("faults"), found.get("card")
    return Wish(tuple(str(name) for name in names) if isinstance(names, list) else (), card if isinstance(card, int) else None)


def wait_mirrored(layout: StateLayout) -> None:
    """Returns when the mirror has written to the cards for the first time. Raises TestbedError when it does not."""
    _wait(layout, lambda _: True, "did not start")


def worker_cards(layout: StateLayout) -> dict[int, int]:
    """Pid of a worker → index of the card on which the mirror shows it."""
    value = (read_json_object(layout.mirror) or {}).get("workers")
    if not isinstance(value, dict):
        return {}
    return {int(pid): int(card) for pid, card in value.items()}


def show(layout: StateLayout, workers: dict[int, int], faults: Sequence[str]) -> None:
    """The mirror's word on what it shows."""
    write_json(layout.mirror, {"workers": {str(pid): card for pid, card in workers.items()}, "faults": sorted(faults)})


def _wait(layout: StateLayout, fulfilled: Callable[[dict[str, object]], bool], failure: str) -> None:
    deadline = time.monotonic() + MIRROR_SECONDS
    while True:
        shown = read_json_object(layout.mirror)
        if shown is not None and fulfilled(shown):
            return
        mirror = next((record for record in records.read_all(layout.records) if record.role == "mirror"), None)
        if mirror is not None and not mirror.lives:
            raise TestbedError(f"the mirror ended by itself; the end of its log:\n{spawning.tail(layout, mirror.name)}")
        if time.monotonic() > deadline:
            raise TestbedError(f"the mirror {failure} within {MIRROR_SECONDS:.0f} s: see {layout.log('mirror')}")
        time.sleep(LOOK_SECONDS)
