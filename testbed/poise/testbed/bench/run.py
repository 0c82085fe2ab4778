"""The file of a run: everything that explains its figures. Owns its fields, their version, and the folder `runs/` in which they lie.

`run.schema.json` beside this file describes every field; tests hold the two together. Knows nothing of how a run comes about.
"""

from __future__ import annotations

import importlib.resources
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from poise.exporter.logs import visible
from poise.testbed.bench.figures import StepFigures
from poise.testbed.bench.schema import problem, shown
from poise.testbed.bench.usage import Usage
from poise.testbed.bench.workload import StepPlan, Workload, sha256_of
from poise.testbed.errors import TestbedError
from poise.testbed.files import read_json_object, write_json

# Raised when a field changes its meaning or goes; new fields do not raise it.
SCHEMA_VERSION = 1
# A step whose rate of answers stays below this share of the rate of requests is saturated: the queue grows as long as it lasts.
SATURATED_BELOW = 0.9


@dataclass(frozen=True, slots=True)
class Step:
    """One run of the client and what the exporter saw of it: None with `unobserved` saying why."""

    plan: StepPlan
    began: float
    ended: float
    figures: StepFigures
    usage: Usage | None
    unobserved: str | None = None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What was there before the first request. Times are Unix seconds."""

    workload: Workload
    deployment: Mapping[str, object]
    versions: Mapping[str, str]
    machine: Mapping[str, object]
    cards: Sequence[Mapping[str, object]]
    simulated: bool
    began: float


def unloaded_seconds(steps: Sequence[Step]) -> float:
    """What all but the slowest requests take where there is no queue yet, in seconds: of the first step, whose rate is the lowest."""
    first = steps[0].figures.latency.get("e2el")
    return 0.0 if first is None else first.p99


def saturated(step: Step, unloaded: float) -> bool:
    """Whether the servers answer less than they are asked. `unloaded` is what a request takes without a queue, in seconds: the last
    one comes back so long after it was sent in any case."""
    if step.plan.rate is None:
        return False
    answering = max(step.figures.duration_seconds - unloaded, 1e-9)
    return step.figures.completed / answering < SATURATED_BELOW * step.plan.rate


def document(facts: RunFacts, steps: Sequence[Step], interrupted: bool, identity: str) -> dict[str, Any]:
    """The file's content. `headline` is the place of the step that speaks for the run: the only one, or the one with the most answers."""
    profile = facts.workload.profile
    unloaded = unloaded_seconds(steps)
    fastest = max(range(len(steps)), key=lambda place: steps[place].figures.output_tokens_per_second)
    return {
        "schema_version": SCHEMA_VERSION,
        "id": identity,
        "profile": {"name": profile.name, "title": profile.title, "scale": profile.scale, "arrival": profile.arrival.words},
        "began": facts.began,
        "ended": steps[-1].ended,
        "interrupted": interrupted,
        "simulated": facts.simulated,
        "workload": facts.workload.as_dict(),
        "slo_milliseconds": dict(profile.slo),
        "deployment": dict(facts.deployment),
        "versions": dict(facts.versions),
        "machine": dict(facts.machine),
        "cards": [dict(card) for card in facts.cards],
        "headline": fastest,
        "steps": [_step(step, saturated(step, unloaded)) for step in steps],
    }


def _step(step: Step, full: bool) -> dict[str, Any]:
    return {
        "requests": step.plan.requests,
        "rate": step.plan.rate,
        "seed": step.plan.seed,
        "began": step.began,
        "ended": step.ended,
        "saturated": full,
        "client": _present(asdict(step.figures)),
        "observed": None if step.usage is None else _present(asdict(step.usage)),
        "unobserved": step.unobserved,
    }


def _present(value: Any) -> Any:
    """Without what is None: a figure that is not there has no key."""
    if isinstance(value, dict):
        return {name: _present(item) for name, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_present(item) for item in value]
    return value


def identity(folder: Path, facts: RunFacts) -> str:
    """A name that sorts by time and tells shape and profile, not taken in `folder` yet."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(facts.began))
    name = f"{stamp}-{facts.deployment['shape']}-{facts.workload.profile.name}"
    free, number = name, 1
    while (folder / f"{free}.json").exists():
        number += 1
        free = f"{name}-{number}"
    return free


def save(folder: Path, facts: RunFacts, steps: Sequence[Step], interrupted: bool) -> tuple[Path, dict[str, Any]]:
    """Writes the run, whole or not at all; returns where, and its content. Raises TestbedError when the disk does not take it."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        content = document(facts, steps, interrupted, identity(folder, facts))
        path = folder / f"{content['id']}.json"
        write_json(path, content)
    except OSError as error:
        raise TestbedError(f"the run cannot be saved in {folder}: {error}") from None
    return path, content


def read(path: Path) -> dict[str, Any]:
    """A saved run. Raises TestbedError naming file and field for what is none, is damaged, or was written by a newer version."""
    name = visible(str(path))
    try:
        if path.exists() and not path.is_file():
            raise TestbedError(f"{name} is no file: `poise testbed runs` lists the saved runs")
        with path.open("rb"):  # what hinders is said; read_json_object says only that there is no object
            value = read_json_object(path)
    except FileNotFoundError:
        value = None
    except OSError as error:
        raise TestbedError(f"{name} cannot be read: {error.strerror or error}") from None
    if value is None:
        raise TestbedError(f"{name} is no saved run: `poise testbed runs` lists them")
    version = value.get("schema_version")
    if version != SCHEMA_VERSION:
        raise TestbedError(f"{name} has schema_version {shown(version)}, and this version of Poise reads {SCHEMA_VERSION}")
    if not value.get("steps"):
        raise TestbedError(f"{name} is no saved run: it has no steps")
    wrong = problem(value, schema()) or inconsistency(value)
    if wrong is not None:
        raise TestbedError(f"{name} is damaged or was edited: {wrong}")
    return value


def schema() -> Mapping[str, Any]:
    """`run.schema.json`."""
    text = (importlib.resources.files("poise.testbed.bench") / "run.schema.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def inconsistency(content: Mapping[str, Any]) -> str | None:
    """What fields that are right each by itself say against each other; None when nothing."""
    workload, steps = content["workload"], content["steps"]
    arrival, rates = workload["arrival"], workload["arrival"]["rates"]
    if workload["sha256"] != sha256_of(workload):
        return "workload.sha256 is not that of the workload"
    if not rates and arrival["concurrency"] is None:
        return "workload.arrival.concurrency is null and workload.arrival.rates is empty: one of the two says how requests arrive"
    if len(workload["requests"]) != max(1, len(rates)):
        return f"workload.requests has {len(workload['requests'])} entries for {max(1, len(rates))} steps"
    if len(steps) > len(workload["requests"]):
        return f"steps has {len(steps)} entries and workload.requests {len(workload['requests'])}"
    if content["headline"] >= len(steps):
        return f"headline is {content['headline']} and steps has {len(steps)} entries"
    for number, (step, rate) in enumerate(zip(steps, rates or [None], strict=False)):
        if step["rate"] != rate:
            return f"steps[{number}].rate is {shown(step['rate'])} and workload.arrival.rates says {shown(rate)}"
        if step["observed"] is None and not step["unobserved"]:
            return f"steps[{number}].observed is null and steps[{number}].unobserved does not say why"
    return None


def saved(folder: Path, passed_over: Callable[[str], None] = lambda _: None) -> list[tuple[Path, dict[str, Any]]]:
    """The runs in a folder, oldest first. Files that are none are passed over, and `passed_over` hears why. Raises TestbedError when the
    folder cannot be read."""
    found = []
    try:
        paths = sorted(folder.glob("*.json")) if folder.is_dir() else []
    except OSError as error:
        raise TestbedError(f"{visible(str(folder))} cannot be read: {error.strerror or error}") from None
    for path in paths:
        try:
            found.append((path, read(path)))
        except TestbedError as error:
            passed_over(str(error))
    return found


def headline(run: Mapping[str, Any]) -> Mapping[str, Any]:
    """The step that speaks for a run."""
    step: Mapping[str, Any] = run["steps"][run["headline"]]
    return step
