"""Puts one fault on a loaded deployment, waits for what it declares, takes it back, and says what came of it: one row of a table.

Whatever goes wrong stands in the row; nothing here ends a run of many faults.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from poise.testbed import faults
from poise.testbed.deployment import Deployment
from poise.testbed.errors import TestbedError
from poise.testbed.faults import Fault, Sign, signs
from poise.testbed.faults.fault import FAILED_ANSWERS, SLOW_ANSWERS
from poise.testbed.faults.signs import Seen

from tests import fault_watch
from tests.fault_watch import Watch
from tests.vllm.deploying import progress_of
from tests.vllm.watching import loaded

#: For what the fault declares, from when it is in force. The longest way is a rule with windows and a `for` of ten minutes: a minute at 1/20.
RAISED_SECONDS = 120.0
#: For a deployment without alerts and without the lines that the next fault is to raise. Load verdicts look back over a minute.
CALM_SECONDS = 100.0
#: The first answers of a full batch take so long on a busy machine; before that none ends.
WARM_SECONDS = 10.0
#: Once all has come, for what may come on top.
LINGER_SECONDS = 4.0
#: Budgets of latency and errors: their windows are hours, and clients who saturate two cores wait for longer than their objective. They go on
#: through many faults and belong to none.
OF_HOURS = frozenset({*SLOW_ANSWERS, *FAILED_ANSWERS} - {"EngineRequestErrors", "RouterErrors"})
#: And CheckFailing, which says that a check has failed for long, whichever it is.
OF_ANY_FAULT = frozenset({"CheckFailing"}) | OF_HOURS
#: A server that is started takes longer than the twentieth of the twenty minutes that loading may take, where others want the cores; and
#: where nobody wants them, four starts fit into the twentieth of an hour, which are what EngineDown takes for a server that never gets there.
OF_RESTARTS = frozenset({"EngineDown", "PDRoleMissing"})
NOT_UNDONE = "its traces did not go"


@dataclass
class Row:
    """One fault on one shape. Seconds are from when it was in force; `undone` from the beginning of undoing until lines and alerts were gone."""

    fault: Fault
    shape: str
    seen: dict[Sign, Seen] = field(default_factory=dict)
    lines: dict[str, tuple[str, float]] = field(default_factory=dict)
    alerts: dict[str, float] = field(default_factory=dict)
    unexpected: frozenset[str] = frozenset()
    undoing: float | None = None
    returned: float | None = None
    undone: float | None = None
    troubles: list[str] = field(default_factory=list)
    alerts_watched: bool = True

    @property
    def missing(self) -> list[str]:
        """What was declared and did not come, in words."""
        raises = self.fault.raises
        return [
            *(f"series {sign}" for sign in raises.series if sign not in self.seen or not self.seen[sign].moved),
            *(f"check {name}" for name in raises.checks if name not in self.lines),
            *(f"alert {name}" for name in raises.alerts if self.alerts_watched and name not in self.alerts),
        ]

    @property
    def faulty(self) -> list[str]:
        """Everything that is not as it should be."""
        return [
            *self.troubles,
            *(f"missing: {name}" for name in self.missing),
            *(f"unexpected: {name}" for name in sorted(self.unexpected)),
            *([] if self.undone is not None else [NOT_UNDONE]),
        ]


class Loaded:
    """The load of a deployment, on or off. From `warm_at` on its requests begin and end."""

    def __init__(self, deployment: Deployment, clients: int) -> None:
        self._deployment = deployment
        self._clients = clients
        self._stack = contextlib.ExitStack()
        self._on = False
        self.warm_at = float("inf")

    def on(self) -> None:
        if not self._on:
            self._stack.enter_context(loaded(self._deployment, self._clients))
            self._on = True
            self.warm_at = time.monotonic() + WARM_SECONDS

    def off(self) -> None:
        self._on = False
        self._stack.close()


def run(fault: Fault, deployment: Deployment, watch: Watch, load: Loaded, raised_seconds: float = RAISED_SECONDS) -> Row:
    """Puts it on and takes it back. `settle` says afterwards when its traces were gone."""
    row = Row(fault, deployment.plan.shape, alerts_watched=watch.alerts_watched)
    if deployment.plan.fault is not None:  # the fault before could not be undone at once
        _try(row, "the fault before could not be undone", lambda: faults.undo(deployment, progress_of("undoing again", [])))
    load.on()
    started = max(time.monotonic() - fault_watch.RATE_SECONDS, load.warm_at)
    if not watch.wait(lambda: _is_calm(watch, fault, started), CALM_SECONDS):
        noise = [*(last.firing - OF_HOURS), *(set(last.failing) & set(fault.raises.checks))] if (last := watch.last) else ["no page"]
        row.troubles.append(f"not calm before: {', '.join(sorted(noise))}")
    before = watch.pages(started)
    noisy = watch.last.firing if watch.last else frozenset()
    began = time.monotonic()
    if fault.restarts or fault.brings_load:
        _try(row, "the load did not end", load.off)
    if _try(row, "could not be put on", lambda: faults.apply(deployment, fault, progress_of(fault.name, []))):
        if fault.restarts and not fault.brings_load:
            load.on()
        in_force = time.monotonic()

        def all_here() -> bool:
            _note(row, deployment, watch, before, began, in_force)
            return not row.missing

        watch.wait(all_here, raised_seconds)
        watch.wait(lambda: False, LINGER_SECONDS)
        _note(row, deployment, watch, before, began, in_force)
    if fault.restarts or fault.brings_load:
        _try(row, "the load did not end", load.off)
    row.undoing = time.monotonic()
    _try(row, "could not be undone", lambda: faults.undo(deployment, progress_of(f"undoing {fault.name}", [])))
    row.returned = time.monotonic()
    fired = {name for look in watch.looks if look.time >= began for name in look.firing} - noisy
    row.unexpected = frozenset(fired - set(fault.raises.alerts) - beside(fault))
    for name in fired - row.unexpected:
        row.alerts.setdefault(name, row.undoing - began)
    load.on()
    return row


def beside(fault: Fault) -> frozenset[str]:
    """The alerts that may fire beside those of a fault, at a twentieth of the time."""
    return OF_ANY_FAULT | set(fault.raises.tolerated) | (OF_RESTARTS if fault.restarts else frozenset())


def _try(row: Row, failure: str, action: Callable[[], object]) -> bool:
    """Whether it went well; if not, how not stands in the row, and the run of many faults goes on, whatever it was."""
    try:
        action()
    except Exception as error:
        row.troubles.append(f"{failure}: {error!r}" if not isinstance(error, TestbedError) else f"{failure}: {error}")
        return False
    return True


def settle(row: Row, watch: Watch, seconds: float = 0.0) -> None:
    """Notes when lines and alerts of the fault were gone, waiting up to `seconds` for it."""

    def gone() -> float | None:
        if row.undoing is None or row.returned is None:
            return None
        traces = (set(row.alerts) | set(row.unexpected)) - OF_HOURS
        return next(
            (
                look.time - row.undoing
                for look in watch.looks
                if look.time > row.returned and not look.firing & traces and not set(look.failing) & set(row.fault.raises.checks)
            ),
            None,
        )

    watch.wait(lambda: gone() is not None, seconds)
    row.undone = gone()


def _is_calm(watch: Watch, fault: Fault, since: float) -> bool:
    last = watch.last
    if watch.pages(since) is None or last is None:
        return False
    return not last.firing - OF_HOURS and not set(last.failing) & set(fault.raises.checks)


def _note(
    row: Row,
    deployment: Deployment,
    watch: Watch,
    before: tuple[signs.Page, signs.Page] | None,
    began: float,
    in_force: float,
) -> None:
    """Takes down what has come by now."""
    during = watch.pages(in_force)
    if before is not None and during is not None:
        for sign in row.fault.raises.series:
            if sign not in row.seen or not row.seen[sign].moved:
                row.seen[sign] = signs.look(sign, deployment.plan, before, during)
    for look in watch.looks:
        if look.time < began:
            continue
        for name in set(row.fault.raises.checks) & set(look.failing) - set(row.lines):
            row.lines[name] = (look.failing[name], max(0.0, look.time - in_force))
        for name in set(row.fault.raises.alerts) & look.firing - set(row.alerts):
            row.alerts[name] = max(0.0, look.time - in_force)
