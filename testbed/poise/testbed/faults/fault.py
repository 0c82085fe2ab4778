"""What a fault declares: what it is, which deployment can take it, what it raises, how it is put on.

Owns the words of the table. Knows no fault, and nothing of how a sign is looked for (signs.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from poise.testbed.deployment import Deployment
from poise.testbed.plan import DeploymentPlan, EnginePlan
from poise.testbed.progress import Progress
from poise.testbed.shapes import EngineRole

# In this order they are listed.
Group = Literal["settings", "processes", "prefill and decode", "load", "cards"]

# What a series does, from a healthy deployment under load to the same with the fault (signs.py says by how much):
#   appears, goes      there are samples now and were none; the other way round
#   rises, falls       the value of a gauge, added up over the samples, or the mean of what a histogram took in
#   counts             a counter that stood still grows, or one that grew grows faster
#   slows              a counter that grew stands still, or grows slower
Movement = Literal["appears", "goes", "rises", "falls", "counts", "slows"]

# Alerts that say what clients notice of many faults; whether they come depends on how long the fault lasts, and on the machine.
SLOW_ANSWERS = ("TTFTBudgetBurnFast", "TTFTBudgetBurnSlow", "ITLBudgetBurnFast", "ITLBudgetBurnSlow")
FAILED_ANSWERS = ("EngineRequestErrors", "RouterErrors", "ErrorBudgetBurnFast", "ErrorBudgetBurnSlow")


@dataclass(frozen=True, slots=True)
class Sign:
    """One series of the exporter's page (docs/metrics.md) and how it moves. `labels` choose samples of it, `part` those of one
    part of the deployment (the name of an engine or of the router); `to` is the value that it has to reach."""

    series: str
    movement: Movement
    labels: tuple[tuple[str, str], ...] = ()
    part: str | None = None
    to: float | None = None

    @property
    def subject(self) -> str:
        """The series with what chooses samples of it."""
        chosen = ", ".join([*(f'{name}="{value}"' for name, value in self.labels), *([self.part] if self.part else [])])
        return f"{self.series}{f'{{{chosen}}}' if chosen else ''}"

    def __str__(self) -> str:
        return f"{self.subject} {self.movement}{'' if self.to is None else f' to {self.to:g}'}"


@dataclass(frozen=True, slots=True)
class Needs:
    """What a deployment has to have. The fault is put on the first engine with that role and at least so many ranks."""

    role: EngineRole | None = None
    ranks: int = 1
    router: bool = False
    simulated_cards: bool = False


@dataclass(frozen=True, slots=True)
class Raises:
    """What a fault should raise: the series that move, the checks that fail (exporter/checks), the alerts that fire, and those
    that may fire beside them because they say a consequence of it."""

    series: tuple[Sign, ...] = ()
    checks: tuple[str, ...] = ()
    alerts: tuple[str, ...] = ()
    tolerated: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """What a fault is put on: the deployment, the engine that its needs chose, and who is told of the steps."""

    deployment: Deployment
    engine: EnginePlan
    progress: Progress


def nothing(deployment: Deployment) -> list[str]:
    """For faults that the common undoing takes back: servers with other settings or dead, further processes, cards."""
    return []


@dataclass(frozen=True, slots=True)
class Fault:
    """`apply` returns when the fault is in force; a crash within it is undone like the whole. `undo` runs before the common
    undoing (doing.py) whichever fault is noted, so it goes by what is there, leaves alone what is healthy, and returns the names of parts
    that it restarted. `restarts`: `apply` ends a server
    and starts it anew, so that load waits meanwhile. `brings_load`: its own clients are the fault, others would hide it.
    """

    name: str
    group: Group
    what: str
    needs: Needs
    raises: Raises
    apply: Callable[[Target], None]
    undo: Callable[[Deployment], list[str]] = nothing
    restarts: bool = False
    brings_load: bool = False

    @property
    def expected(self) -> str:
        """For a person: the alerts, or that none is known."""
        return f"should raise {', '.join(self.raises.alerts)}" if self.raises.alerts else "no alert is made for it"

    def engine_of(self, plan: DeploymentPlan) -> EnginePlan | None:
        """The engine of the plan that it would be put on; None when none fits."""
        role, ranks = self.needs.role, self.needs.ranks
        return next((engine for engine in plan.healthy if role in (None, engine.role) and engine.gpus >= ranks), None)

    def refusal(self, plan: DeploymentPlan) -> str | None:
        """Why the deployment cannot take it, None when it can."""
        if (self.needs.router and plan.router is None) or (
            self.needs.role in ("prefill", "decode") and not any(engine.role == self.needs.role for engine in plan.healthy)
        ):
            return f"{self.name} needs a deployment of prefill and decode and shape {plan.shape} is none: use one with a router, such as pd"
        if self.engine_of(plan) is None:
            return (
                f"{self.name} needs an engine with {self.needs.ranks} ranks or more and shape {plan.shape} has none: "
                "use one with more, such as tp or hybrid"
            )
        if self.needs.simulated_cards and not plan.simulated_cards:
            return f"{self.name} can only be shown on simulated cards: this deployment has none"
        return None
