"""Measures shapes one after the other: each brought up, loaded so many times, taken down. Owns the order and how long it will take.

Each repetition is saved as it ends, so that Ctrl-C costs the one that runs and nothing else; the deployment ends with us in any case
(deployment.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from poise.testbed import interrupts, records
from poise.testbed.bench import drive
from poise.testbed.bench.profile import LoadProfile
from poise.testbed.comparison import alike
from poise.testbed.comparison.statistics import estimate
from poise.testbed.deployment import Deployment
from poise.testbed.errors import TestbedError
from poise.testbed.paths import StateLayout
from poise.testbed.planning import Request
from poise.testbed.progress import Progress
from poise.testbed.shapes import Shape

Say = Callable[[str], None]


@dataclass(slots=True)
class Outlook:
    """How much is to do, and how long what is done took: an estimate of the rest. Times in seconds."""

    shapes: int
    repetitions: int
    starts: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)

    def left(self) -> float | None:
        """Seconds to the end, None before anything of each kind is done."""
        if not self.starts or not self.loads:
            return None
        starts_left = self.shapes - len(self.starts)
        loads_left = self.shapes * self.repetitions - len(self.loads)
        return starts_left * estimate(self.starts).mean + loads_left * estimate(self.loads).mean

    def words(self) -> str:
        seconds = self.left()
        if seconds is None:
            return "how long it takes is known after the first"
        return f"about {seconds / 60:.0f} min left" if seconds >= 90 else f"about {seconds:.0f} s left"


def measure(
    requests: Sequence[Request],
    profile: LoadProfile,
    repetitions: int,
    runs: Path,
    progress: Progress,
    environ: Mapping[str, str],
    say: Say,
    done: list[drive.Outcome],
    clock: Callable[[], float] = time.monotonic,
) -> list[dict[str, Any]]:
    """Carries all of it out; returns the contents of the runs. `done` is filled with each repetition as it is saved.

    The prompts of repetition n are those of the profile's seed + n, the same for each shape: a second time the same ones would be found
    in the prefix cache. Raises TestbedError: a deployment is up already, a shape does not start, the client fails, conditions
    changed meanwhile.
    """
    for request in requests:
        check_comparable(request.shape)
        check_nothing_up(StateLayout(request.state_directory))
    outlook = Outlook(len(requests), repetitions)
    for number, request in enumerate(requests, start=1):
        say(f"shape {number} of {len(requests)}: {request.shape.name}, {outlook.words()}")
        began = clock()
        with _standing(Deployment.up(request, progress, environ, say)) as deployment:
            outlook.starts.append(clock() - began)
            for repetition in range(repetitions):
                say(f"{request.shape.name}: repetition {repetition + 1} of {repetitions}, {outlook.words()}")
                began = clock()
                seeded = replace(profile, seed=profile.seed + repetition)
                done.append(drive.run_profile(deployment, seeded, runs, progress, environ, say=say))
                outlook.loads.append(clock() - began)
                alike.check_conditions([outcome.content for outcome in done])  # now, and not when all is measured
    return [outcome.content for outcome in done]


@contextmanager
def _standing(deployment: Deployment) -> Iterator[Deployment]:
    """The deployment, taken down at the end. Ctrl-C meanwhile waits until it is down, and counts: the next shape is not begun."""
    try:
        yield deployment
    except BaseException:
        deployment.down()
        raise
    with interrupts.deferred():
        deployment.down()


def check_comparable(shape: Shape) -> None:
    """Raises TestbedError for several servers without a router: a client would ask the first of them alone."""
    if shape.router is None and len(shape.engines) > 1:
        raise TestbedError(
            f"shape {shape.name} has {len(shape.engines)} servers and no router, so that only the first would be loaded: leave it out"
        )


def check_nothing_up(layout: StateLayout) -> None:
    """Raises TestbedError when a deployment is up in the state directory: comparing would have to take it down."""
    if any(record.lives for record in records.read_all(layout.records)):
        raise TestbedError(f"a deployment is up in {layout.root}: `poise testbed down` first, or use another --state-dir")
