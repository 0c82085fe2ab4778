"""From saved runs to the rows of the comparison: what each shape comes to over its repetitions.

Pure: contents of runs in, rows out. Which runs may stand side by side is in alike.py, how it looks in report.py and plot.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from poise.testbed.bench import run
from poise.testbed.comparison import alike
from poise.testbed.comparison.alike import Run
from poise.testbed.comparison.statistics import Estimate, Verdict, estimate, judge
from poise.testbed.environment import Build
from poise.testbed.errors import TestbedError

Measure = Literal["output_tokens_per_second", "e2e_p50"]

# The shape that everything is compared with.
BASE = "single"
LATENCIES = ("ttft", "itl", "tpot", "e2el")
SHARES = ("p50", "p95", "p99")


@dataclass(frozen=True, slots=True)
class CardShare:
    """Mean utilization of one card over the repetitions, 0..1; None when it is not known."""

    gpu: int
    engine: str
    role: str
    rank: str
    utilization: float | None


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One step of a ramp: means over the repetitions. Rates per second, latencies in seconds."""

    rate: float
    output_tokens_per_second: float
    ttft_p50: float | None
    e2e_p50: float | None
    e2e_p99: float | None
    saturated: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One shape. Estimates are over its repetitions; latencies (seconds) by (name, share), only those that were measured."""

    shape: str
    gpus: int
    runs: tuple[str, ...]
    requests_per_second: Estimate
    output_tokens_per_second: Estimate
    tokens_per_second_per_gpu: Estimate
    latency: Mapping[tuple[str, str], Estimate]
    cards: tuple[CardShare, ...]
    roles: Mapping[str, float | None]
    skew: float | None
    nvlink_bytes_per_token: float | None
    joules_per_output_token: float | None
    failed: int
    curve: tuple[CurvePoint, ...]
    fault: str | None
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """`measure` is what the verdict is about: output tokens a second where clients wait for answers, the median end-to-end latency where
    requests come at a given rate (there throughput is what was sent). `versions` of all runs, "0.1.0 and 0.2.0" where they differ."""

    profile: str
    scale: Build
    build: Build
    arrival: str
    measure: Measure
    model: str
    simulated: bool
    cards: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    workload: Mapping[str, Any]
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]


def compare(runs: Sequence[Run]) -> Comparison:
    """The table of these runs, a row for each shape in the order in which they first come. Raises TestbedError when they are not alike."""
    if not runs:
        raise TestbedError("there is no run to compare")
    alike.check(runs)
    shapes: dict[str, list[Run]] = {}
    for content in runs:
        shapes.setdefault(alike.row_name(content), []).append(content)
    first = runs[0]
    measure = _measure(first)
    rows = [_row(shape, repetitions, None) for shape, repetitions in shapes.items()]
    base = next((row for row in rows if row.shape == BASE), None)
    judged = [row if base is None else _row(row.shape, shapes[row.shape], _verdict(row, base, measure)) for row in rows]
    return Comparison(
        profile=first["profile"]["name"],
        scale="cpu" if first["profile"]["scale"] == "cpu" else "gpu",
        build="cpu" if first["deployment"]["build"] == "cpu" else "gpu",
        arrival=first["profile"]["arrival"],
        measure=measure,
        model=first["deployment"]["model"],
        simulated=first["simulated"],
        cards=alike.card_names(first),
        machine=first["machine"],
        versions=_versions(runs),
        workload=first["workload"],
        seeds=tuple(sorted({content["workload"]["seed"] for content in runs})),
        rows=tuple(judged),
    )


def _measure(content: Run) -> Measure:
    rates = content["workload"]["arrival"]["rates"]
    return "e2e_p50" if len(rates) == 1 else "output_tokens_per_second"


def _versions(runs: Sequence[Run]) -> dict[str, str]:
    names = dict.fromkeys(name for content in runs for name in content["versions"])
    return {name: " and ".join(dict.fromkeys(run["versions"][name] for run in runs if name in run["versions"])) for name in names}


def _verdict(row: Row, base: Row, measure: Measure) -> Verdict | None:
    if row.shape == base.shape:
        return Verdict(None, 1.0, 1.0, "one card")
    if measure == "output_tokens_per_second":
        return judge(row.output_tokens_per_second, base.output_tokens_per_second, row.gpus, base.gpus, higher_is_better=True)
    ours, theirs = row.latency.get(("e2el", "p50")), base.latency.get(("e2el", "p50"))
    return None if ours is None or theirs is None else judge(ours, theirs, row.gpus, base.gpus, higher_is_better=False)


def _row(shape: str, runs: Sequence[Run], verdict: Verdict | None) -> Row:
    steps = [run.headline(content) for content in runs]
    clients = [step["client"] for step in steps]
    observed = [step["observed"] or {} for step in steps]
    gpus = runs[0]["deployment"]["gpus"]
    tokens = [client["output_tokens_per_second"] for client in clients]
    return Row(
        shape=shape,
        gpus=gpus,
        runs=tuple(content["id"] for content in runs),
        requests_per_second=estimate([client["requests_per_second"] for client in clients]),
        output_tokens_per_second=estimate(tokens),
        tokens_per_second_per_gpu=estimate([value / gpus for value in tokens]),
        latency={
            (name, share): estimate([client["latency"][name][share] for client in clients])
            for name in LATENCIES
            for share in SHARES
            if all(name in client["latency"] for client in clients)
        },
        cards=_cards(observed),
        roles={
            role: _mean([_role(entry, role) for entry in observed])
            for role in dict.fromkeys(role["role"] for entry in observed for role in entry.get("roles", ()))
        },
        skew=_mean([entry.get("skew") for entry in observed]),
        nvlink_bytes_per_token=_mean([entry.get("nvlink_bytes_per_token") for entry in observed]),
        joules_per_output_token=_mean([entry.get("joules_per_output_token") for entry in observed]),
        failed=sum(client["failed"] for client in clients),
        curve=_curve(runs),
        fault=runs[0]["deployment"]["fault"],
        verdict=verdict,
    )


def _cards(observed: Sequence[Mapping[str, Any]]) -> tuple[CardShare, ...]:
    """Card by card, by index: of a shape that always takes the same ones."""
    found: dict[int, list[Mapping[str, Any]]] = {}
    for entry in observed:
        for card in entry.get("cards", ()):
            found.setdefault(card["gpu"], []).append(card)
    shares = []
    for gpu, cards in sorted(found.items()):
        card = cards[-1]
        rank = " ".join(f"{kind}{card[key]}" for kind, key in (("TP", "tp_rank"), ("PP", "pp_rank"), ("DP", "dp_rank")) if card[key])
        shares.append(CardShare(gpu, card["engine"], card["role"], rank, _mean([one.get("utilization") for one in cards])))
    return tuple(shares)


def _role(entry: Mapping[str, Any], name: str) -> float | None:
    found: float | None = next((role.get("utilization") for role in entry.get("roles", ()) if role["role"] == name), None)
    return found


def _curve(runs: Sequence[Run]) -> tuple[CurvePoint, ...]:
    """The steps that every repetition reached: one may saturate a step earlier."""
    if len(runs[0]["workload"]["arrival"]["rates"]) < 2:
        return ()
    points = []
    for steps in zip(*(content["steps"] for content in runs), strict=False):
        clients = [step["client"] for step in steps]
        points.append(
            CurvePoint(
                rate=steps[0]["rate"],
                output_tokens_per_second=estimate([client["output_tokens_per_second"] for client in clients]).mean,
                ttft_p50=_mean([_latency(client, "ttft", "p50") for client in clients]),
                e2e_p50=_mean([_latency(client, "e2el", "p50") for client in clients]),
                e2e_p99=_mean([_latency(client, "e2el", "p99") for client in clients]),
                saturated=any(step["saturated"] for step in steps),
            )
        )
    return tuple(points)


def _latency(client: Mapping[str, Any], name: str, share: str) -> float | None:
    found: float | None = client["latency"].get(name, {}).get(share)
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    """Over the repetitions that have it; None when none has."""
    known = [value for value in values if value is not None]
    return estimate(known).mean if known else None
