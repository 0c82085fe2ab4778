"""Which runs may stand side by side: refuses what is not alike by naming the two runs, what they differ in, and both values. Pure.

Shapes differ in their deployments, and that is what is compared; all else has to be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from poise.exporter.logs import visible
from poise.testbed.bench.facts import DISTRIBUTIONS
from poise.testbed.errors import TestbedError

Run = Mapping[str, Any]

# What decides a workload, in the words of a run's file; the seed is looked at apart, because repetitions differ in it.
_WORKLOAD_KEYS = (
    "generator",
    "generator_version",
    "tokenizer",
    "endpoint",
    "greedy",
    "ignore_eos",
    "prompts",
    "arrival",
    "requests",
    "warmup_requests",
)
# Of a server, what repetitions of one shape have in common. Which cards it got is another matter.
_SERVER_KEYS = (
    *("name", "role", "gpus", "tensor_parallel_size", "pipeline_parallel_size", "kv_connector"),
    *("arguments", "other_arguments"),
)
# Who runs a distribution at all: the others may have it or not, in any version.
_USERS: Mapping[str, Callable[[Run], bool]] = {
    "nixl": lambda content: any(engine["kv_connector"] for engine in content["deployment"]["engines"]),
    "vllm_router": lambda content: content["deployment"]["router"] is not None,
}


def check(runs: Sequence[Run]) -> None:
    """Raises TestbedError for runs that were not made under the same conditions, for one that is interrupted or given twice, for a shape that
    was measured twice with one seed, and for shapes measured with other seeds."""
    check_conditions(runs)
    rows: dict[str, list[Run]] = {}
    for content in runs:
        rows.setdefault(row_name(content), []).append(content)
    _check_repetitions(runs, rows)


def check_conditions(runs: Sequence[Run]) -> None:
    """Raises TestbedError naming what two runs differ in, so that a figure of one says nothing about the other: workload, model, cards, build,
    machine, versions of what serves (Poise's own aside); within one shape its servers and their arguments. The seeds aside."""
    first = runs[0]
    for content in runs:
        if content["interrupted"]:
            raise TestbedError(f"run {visible(content['id'])} was interrupted: it lacks steps that the others have")
        for key in _WORKLOAD_KEYS:
            _same(first, content, f"workload {key}", _value_of("workload", key))
        _same(first, content, "model", _value_of("deployment", "model"))
        _same(first, content, "build", _value_of("deployment", "build"))
        _same(first, content, "cards", card_names)
        _same(first, content, "simulated", _value_of("simulated"))
        _same(first, content, "machine", lambda entry: (entry["machine"].get("processor"), entry["machine"].get("cores")))
    _check_versions(runs)
    firsts: dict[str, Run] = {}
    for content in runs:
        _same_servers(firsts.setdefault(row_name(content), content), content)


def _check_versions(runs: Sequence[Run]) -> None:
    for name in (*DISTRIBUTIONS, "driver"):
        users = [content for content in runs if name not in _USERS or _USERS[name](content)]
        for content in users:
            _same(users[0], content, f"version of {name}", _version_of(name))


def _check_repetitions(runs: Sequence[Run], rows: Mapping[str, Sequence[Run]]) -> None:
    """A repetition is a run of its own with prompts of its own: anything else would make the spread smaller than it is."""
    identities = [content["id"] for content in runs]
    twice = next((name for name in identities if identities.count(name) > 1), None)
    if twice is not None:
        raise TestbedError(
            f"run {visible(twice)} is given {identities.count(twice)} times: one measurement is one repetition, give it once"
        )
    seeds: dict[str, dict[int, str]] = {}
    for shape, repetitions in rows.items():
        found = seeds.setdefault(shape, {})
        for content in repetitions:
            seed, name = content["workload"]["seed"], visible(content["id"])
            if seed in found:
                raise TestbedError(
                    f"runs {found[seed]} and {name} of shape {visible(shape)} both have the seed {seed}: the same prompts are no repetition, "
                    "leave one out, or measure with another --seed"
                )
            found[seed] = name
    first = next(iter(rows))
    for shape in rows:
        if seeds[shape].keys() != seeds[first].keys():
            raise TestbedError(
                f"shape {visible(first)} was measured with the seeds {_numbers(seeds[first])} and {visible(shape)} with {_numbers(seeds[shape])}: "
                "other prompts; leave out the runs that have no counterpart"
            )


def _same_servers(first: Run, other: Run) -> None:
    for key in ("gpus", "router", "asked"):
        _same(first, other, key, _value_of("deployment", key))
    _same(first, other, "servers", lambda entry: [engine["name"] for engine in entry["deployment"]["engines"]])
    for place, engine in enumerate(first["deployment"]["engines"]):
        for key in _SERVER_KEYS:
            what = f"{key} of server {visible(engine['name'])}"
            _same(first, other, what, _value_of("deployment", "engines", place, key))


def _version_of(distribution: str) -> Callable[[Run], object]:
    """What gives the version of a distribution, None where it is not known."""
    return lambda content: content["versions"].get(distribution)


def _value_of(*keys: str | int) -> Callable[[Run], object]:
    """What gives the value below these keys and places."""

    def value(content: Run) -> object:
        found: Any = content
        for key in keys:
            found = found[key]
        return found

    return value


def _same(first: Run, other: Run, what: str, value: Callable[[Run], object]) -> None:
    if value(first) != value(other):
        raise TestbedError(
            f"runs {visible(first['id'])} and {visible(other['id'])} cannot be compared: "
            f"{what} is {value(first)!r} in one and {value(other)!r} in the other"
        )


def _numbers(values: Mapping[int, object]) -> str:
    return ", ".join(str(value) for value in sorted(values))


def row_name(content: Run) -> str:
    """The name of a row: a deployment with a fault is another thing than the healthy one."""
    deployment = content["deployment"]
    return f"{deployment['shape']} ({deployment['fault']})" if deployment["fault"] else str(deployment["shape"])


def card_names(content: Run) -> str:
    return ", ".join(sorted({card["name"] for card in content["cards"]})) or "unknown"
