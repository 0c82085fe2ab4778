"""Check `interconnect_bandwidth`: an all-reduce that was measured over the ranks' cards is as fast as the NVLinks between them.

The check `interconnect` says which way there is; this one what went over it when `poise testbed interconnect` measured. That is a test of its own, done once
after a boot, because it takes the cards for itself. What was measured without cards (gloo) judges none.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from poise.exporter import metrics as m
from poise.exporter.checks import thresholds as t
from poise.exporter.checks import words
from poise.exporter.checks.memory_balance import groups_of
from poise.exporter.checks.result import FAIL_FIRST, NODE, CheckResult, Line, State, Status, Subject
from poise.exporter.checks.window import Window
from poise.exporter.interconnect_results import Measurement, Run, latency, peak
from poise.exporter.snapshot import Engine, NodeSnapshot

NAME = "interconnect_bandwidth"
TITLE = "All-reduce is as fast as the links between the cards"
_LINE = Line(NAME, TITLE)

COMMAND = "poise testbed interconnect"


class Judgement(NamedTuple):
    """What figures say, in a sentence about the cards; `cause` and `fix` when they are bad."""

    status: Status
    sentence: str
    cause: str = ""
    fix: str = ""


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per living engine whose ranks NVLink joins, and one for the node about other measured groups."""
    del window
    if snapshot.simulated:
        return
    measured = [each for each in snapshot.interconnect.measurements if each.cards]
    told: set[int] = set()
    for engine in snapshot.engines:
        groups = [frozenset(card.uuid for card in group) for group in groups_of(engine)]
        joined = [group for group in groups if len(group) > 1 and _by_nvlink(snapshot, group)]
        if not joined or not engine.observed.process_up:
            continue
        fitting = [_fitting(measured, group) for group in joined]
        known = [each for each in fitting if each is not None]
        told |= {id(each) for each in known}
        yield _of_engine(snapshot, engine, known) if len(known) == len(joined) else _unmeasured(snapshot, engine)
    rest = [_result(snapshot, each, NODE, State.WATCH) for each in measured if id(each) not in told]
    if rest:
        yield min(rest, key=lambda result: FAIL_FIRST.index(result.status))


def judge(measurement: Measurement, cards: str) -> Judgement:
    """What a measurement over `cards` ("GPUs 0 and 1") shows. The figures of the CPU (gloo) pass as what they are."""
    on, off = measurement.run("on"), measurement.run("off")
    if on is None:
        run = off or measurement.runs[0]
        told = f"{_rate(peak(run, measurement.ranks)[0])}, {_time(latency(run))} for the smallest message"
        where = f"{measurement.ranks} processes over main memory and loopback: {told}" if not measurement.cards else f"{cards}: {told}"
        return Judgement(Status.UNKNOWN, f"{where}; that says nothing of NVLink")
    best, size = peak(on, measurement.ranks)
    said = f"all-reduce over {cards} ({measurement.path}) reaches {_rate(best)}"
    if not measurement.path.startswith("NV"):
        return Judgement(Status.PASS, f"{said}; there is no NVLink to hold it against")
    if off is not None and best < t.ALL_REDUCE_GAIN * _at(off, measurement.ranks):
        return Judgement(
            Status.FAIL,
            f"{said}, and without peer-to-peer {_rate(_at(off, measurement.ranks))}: NVLink is not used",
            cause="NCCL found no peer-to-peer path: a container with separate IPC or without /dev/shm, IOMMU or ACS, links that are down, a fabric manager that does not run",
            fix=f"NCCL_DEBUG=INFO {COMMAND} and read which transport it names (P2P, SHM, NET); `nvidia-smi topo -p2p r`, `nvidia-smi nvlink -s`",
        )
    if measurement.nominal is None:
        return Judgement(Status.PASS, f"{said}; the driver does not tell what the links can carry")
    share = best / measurement.nominal
    said = f"{said}, {words.percent(share)} of the {_rate(measurement.nominal)} that the links carry"
    if share >= t.ALL_REDUCE_SHARE:
        return Judgement(Status.PASS, said)
    if size < t.ALL_REDUCE_LARGE:
        return Judgement(Status.UNKNOWN, f"{said}, with messages that are too small to fill them", fix=f"{COMMAND} --sizes 1K..256M")
    return Judgement(
        Status.FAIL,
        said,
        cause="links that are down or replay, a link that was trained slower, work of others on the cards, or an NCCL_ variable that forbids the best algorithm",
        fix="`nvidia-smi nvlink -s` and `-e`, the checks nvlink_links and nccl_environment; measure again with the cards idle",
    )


def _at(run: Run, ranks: int) -> float:
    return peak(run, ranks)[0]


def _of_engine(snapshot: NodeSnapshot, engine: Engine, known: list[Measurement]) -> CheckResult:
    about = Subject(engine=engine.identity.engine)
    results = [_result(snapshot, each, about, State.PROBLEM) for each in known]
    return min(results, key=lambda result: FAIL_FIRST.index(result.status))


def _unmeasured(snapshot: NodeSnapshot, engine: Engine) -> CheckResult:
    refused = snapshot.interconnect.refused
    why = refused[0] if refused else "nobody has measured an all-reduce over these cards since the node was booted"
    indices = sorted({gpu.index for gpu in snapshot.gpus if gpu.uuid in (engine.used or ())})
    command = f"{COMMAND} --gpus {','.join(map(str, indices))}"
    return _LINE.unknown(why, Subject(engine=engine.identity.engine), fix=f"`{command}` while nothing runs on the cards; it takes a minute")


def _result(snapshot: NodeSnapshot, each: Measurement, about: Subject, state: State) -> CheckResult:
    found = judge(each, words.cards([gpu.index for gpu in snapshot.gpus if gpu.uuid in each.cards]))
    evidence = {f"peer-to-peer {run.p2p}": f"{_rate(_at(run, each.ranks))}, {_time(latency(run))}" for run in each.runs}
    evidence["measured"] = f"{max(0.0, snapshot.taken_at - each.measured_at) / 3600:.0f} h ago with {each.backend} {each.library}"
    if found.status is Status.FAIL:
        return _LINE.failed(state, found.sentence, about, evidence, cause=found.cause, fix=found.fix)
    if found.status is Status.UNKNOWN:
        return _LINE.unknown(found.sentence, about, evidence, fix=found.fix)
    return _LINE.passed(found.sentence, about, evidence)


def _fitting(measured: list[Measurement], group: frozenset[str]) -> Measurement | None:
    """The measurement over these cards, else over the fewest that these are part of: a link that is slow there is slow for them."""
    able = [each for each in measured if group <= set(each.cards)]
    return min(able, key=lambda each: len(each.cards), default=None)


def _by_nvlink(snapshot: NodeSnapshot, group: frozenset[str]) -> bool:
    """Whether the driver says that NVLink joins each pair."""
    joined = {
        frozenset((gpu.uuid, peer))
        for gpu in snapshot.gpus
        for _, peer, path, _ in gpu.readings.get(m.GPU_PAIR_INFO, {})
        if path.startswith("NV")
    }
    return all(frozenset(pair) in joined for pair in combinations(group, 2))


def _rate(value: float) -> str:
    """ "362 GB/s", in powers of ten as vendors and nccl-tests count."""
    return f"{value / 1e9:.0f} GB/s" if value >= 1e10 else f"{value / 1e9:.2g} GB/s"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs" if seconds < 0.01 else f"{seconds * 1e3:.0f} ms"
