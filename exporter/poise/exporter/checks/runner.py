"""Runs the checklist over each snapshot: keeps the last minute, isolates each check, remembers since when, and draws the verdict.

The one place with state. Not thread-safe: whoever assembles snapshots calls it.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from poise.exporter.checks import (
    batch_limit,
    card_health,
    card_slowdown,
    cards_present,
    cuda_runtime,
    data_parallel_balance,
    engine_answers,
    fabric,
    foreign_process,
    heads,
    idle_unowned_card,
    interconnect,
    interconnect_bandwidth,
    kv_transfer,
    memory_balance,
    memory_settings,
    nccl_environment,
    node_view,
    nvlink_errors,
    nvlink_links,
    parallel_size,
    pd_match,
    pd_roles,
    pd_routing,
    pd_rtt,
    progress,
    rank_clock,
    rank_load,
    rdma,
    router_answers,
    thresholds,
    visible_devices,
    words,
)
from poise.exporter.checks.result import WORST_FIRST, CheckResult, State, Status, Verdict
from poise.exporter.checks.window import Moment, Window, moment_of
from poise.exporter.snapshot import NodeSnapshot, Role

log = logging.getLogger(__name__)

CheckFunction = Callable[[NodeSnapshot, Window], Iterable[CheckResult]]

#: The checklist in the order in which it is shown: (name, title, function).
CHECKS: tuple[tuple[str, str, CheckFunction], ...] = tuple(
    (module.NAME, module.TITLE, module.check)
    for module in (
        cards_present,
        node_view,
        card_health,
        card_slowdown,
        idle_unowned_card,
        visible_devices,
        parallel_size,
        foreign_process,
        memory_balance,
        rank_load,
        rank_clock,
        nvlink_links,
        nvlink_errors,
        fabric,
        interconnect,
        interconnect_bandwidth,
        rdma,
        engine_answers,
        progress,
        heads,
        cuda_runtime,
        nccl_environment,
        memory_settings,
        batch_limit,
        data_parallel_balance,
        router_answers,
        pd_roles,
        pd_routing,
        pd_match,
        kv_transfer,
        pd_rtt,
    )
)

#: Within one state these come first, in this order: what stands still, what is broken, what idles, what is done twice. Evidence of load comes
#: before mere configuration, so that the first sentence is the one that costs money now.
FIRST_SAID = (
    "cards",
    "engine_answers",
    "router_answers",
    "progress",
    "pd_roles",
    "card_health",
    "rank_load",
    "idle_unowned_card",
    "pd_match",
    "kv_transfer",
    "pd_routing",
)

#: How many sentences a verdict has at most.
VERDICT_LINES = 3

#: A little more than the longest window, so that it is always covered.
_KEPT_SECONDS = thresholds.PROBLEM_WINDOW + 5.0


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """What the checklist says of one snapshot: every result in checklist order, and the verdict."""

    results: tuple[CheckResult, ...]
    verdict: Verdict


class Runner:
    """The checklist with its memory of the last minute."""

    def __init__(self) -> None:
        self._moments: deque[Moment] = deque()
        self._since: dict[tuple[str, ...], tuple[Status, float]] = {}
        self._broken: set[str] = set()

    def observe(self, snapshot: NodeSnapshot) -> CheckOutcome:
        """Judge a snapshot. Never raises for what a snapshot holds: a check that breaks reports itself unknown and is logged once."""
        moment = moment_of(snapshot)
        if self._moments and moment.at < self._moments[-1].at:
            self._moments.clear()  # the clock was set back: moments of the future would be in every window
        self._moments.append(moment)
        while self._moments[0].at < moment.at - _KEPT_SECONDS:
            self._moments.popleft()
        window = Window(tuple(self._moments))
        results = self._with_since(tuple(self._run_all(snapshot, window)), snapshot.taken_at)
        return CheckOutcome(results, verdict_of(snapshot, window, results))

    def _run_all(self, snapshot: NodeSnapshot, window: Window) -> Iterable[CheckResult]:
        for name, title, function in CHECKS:
            try:
                yield from tuple(function(snapshot, window))
            except Exception as error:
                if name not in self._broken:
                    self._broken.add(name)
                    log.exception("check %s broke; it reports unknown", name)
                yield CheckResult(name, title, Status.UNKNOWN, State.UNKNOWN, f"the check itself failed: {error}")

    def _with_since(self, results: tuple[CheckResult, ...], now: float) -> tuple[CheckResult, ...]:
        since: dict[tuple[str, ...], tuple[Status, float]] = {}
        dated = []
        for result in results:
            key = (result.check, result.deployment, result.engine, result.uuid)
            before = self._since.get(key)
            # Never after now: the clock may have been set back.
            start = min(before[1], now) if before is not None and before[0] is result.status else now
            since[key] = (result.status, start)
            dated.append(dataclasses.replace(result, since=start))
        self._since = since
        return tuple(dated)


def verdict_of(snapshot: NodeSnapshot, window: Window, results: Iterable[CheckResult]) -> Verdict:
    """The worst state with its sentences, or one calm sentence."""
    rank = {state: position for position, state in enumerate(WORST_FIRST)}
    order = {name: position for position, name in enumerate(FIRST_SAID)}
    bad = [result for result in results if result.state is not State.OK]
    # A card that is named comes before the number of cards that it explains.
    bad.sort(key=lambda r: (rank[r.state], order.get(r.check, len(order)), r.engine, not r.gpu, int(r.gpu or 0)))
    if not bad:
        return Verdict(State.OK, (), _calm(snapshot, window))
    lines = tuple(_without_echoes(bad)[:VERDICT_LINES])
    return Verdict(bad[0].state, lines, sentence_of(lines[0], subject_of(snapshot, lines[0])))


def _without_echoes(bad: list[CheckResult]) -> list[CheckResult]:
    """Drop lines that say again what an earlier line says about the same card or deployment, or about the cards as a whole.

    Engines that do not fit, transfers that fail and prompts that are computed twice are one story of their deployment.
    """
    kept: list[CheckResult] = []
    for result in bad:
        subjects = {line.uuid for line in kept if line.uuid}
        if result.uuid and result.uuid in subjects:
            continue
        if result.deployment and any(line.deployment == result.deployment for line in kept):
            continue
        if result.check == cards_present.NAME and not result.uuid and any(line.check == cards_present.NAME for line in kept):
            continue
        kept.append(result)
    return kept


def subject_of(snapshot: NodeSnapshot, result: CheckResult) -> str:
    """Who a result is about: "tiny TP=2 (node:8000)", a deployment, or the node."""
    if result.deployment:
        return f"deployment {result.deployment}"
    engine = next((engine for engine in snapshot.engines if engine.identity.engine == result.engine), None)
    if engine is None:
        return result.engine or snapshot.node
    model = engine.config.model
    name = engine.identity.engine if not model or model in engine.identity.engine else f"{model} on {engine.identity.engine}"
    role = f" {engine.identity.role}" if engine.identity.role in (Role.PREFILL, Role.DECODE) else ""
    return f"{name}{role} {words.parallelism(engine)}"


def sentence_of(result: CheckResult, subject: str) -> str:
    """One line for people: subject, what holds, why."""
    parts = [subject, result.sentence, result.cause]
    return " · ".join(part for part in parts if part)


def _calm(snapshot: NodeSnapshot, window: Window) -> str:
    cards = words.count(sum(gpu.up for gpu in snapshot.gpus), "card")
    living = [engine for engine in snapshot.engines if engine.observed.process_up is not False]
    if not living:
        return f"{cards}, no vLLM engine found"
    engines = words.count(len(living), "engine")
    loading = [engine for engine in living if engine.observed.url is not None and engine_answers.is_loading(engine, snapshot.taken_at)]
    if loading:
        return f"{cards}, {engines}; {words.joined([engine.identity.engine for engine in loading])} loading"
    part = window.over(thresholds.WATCH_WINDOW)
    rates = [part.token_rate(engine.identity.engine) for engine in living] if part else []
    if rates and all(rate is not None and rate < thresholds.TOKENS_FLOOR for rate in rates):
        return f"{cards}, {engines}; idle"
    return f"{cards}, {engines}; every card that an engine owns does its share"
