"""Check `data_parallel_balance`: the data-parallel ranks of an engine hold about as many requests each."""

from __future__ import annotations

from collections.abc import Iterator

from poise.exporter.checks import thresholds as t
from poise.exporter.checks.result import CheckResult, Line, State, Subject
from poise.exporter.checks.window import Window
from poise.exporter.snapshot import Engine, NodeSnapshot

NAME = "data_parallel_balance"
TITLE = "Data-parallel ranks share the requests"
_LINE = Line(NAME, TITLE)


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per engine whose page shows several data-parallel ranks."""
    for engine in snapshot.engines:
        page = engine.observed.page
        if page is not None and len({work.dp_rank for work in page.work}) > 1:
            yield _check(engine, window)


def _check(engine: Engine, window: Window) -> CheckResult:
    about = Subject(engine=engine.identity.engine)
    part = window.over(t.PROBLEM_WINDOW) or window.over(t.WATCH_WINDOW)
    if part is None:
        return _LINE.unknown("less than ten seconds observed", about)
    held = part.rank_requests(engine.identity.engine)
    mean = sum(held.values()) / len(held) if held else 0.0
    evidence = {f"DP rank {rank}": f"{requests:.1f} requests" for rank, requests in held.items()}
    if mean < t.RANK_REQUESTS_FLOOR:
        return _LINE.passed("too few requests to share", about, evidence)
    most, least = max(held, key=lambda rank: held[rank]), min(held, key=lambda rank: held[rank])
    if held[most] > t.RANK_REQUESTS_MOST * mean or held[least] < t.RANK_REQUESTS_LEAST * mean:
        return _LINE.failed(
            State.WATCH,
            f"DP rank {most} holds {held[most]:.0f} requests and rank {least} {held[least]:.0f}, mean of {part.seconds:.0f} s",
            about,
            evidence,
            cause="whoever spreads the requests does not see the ranks' queues, or a rank does not take any",
            fix="use vLLM's own balancing (one server, --data-parallel-size), or a router that counts requests per rank; look at the quiet rank's log",
        )
    return _LINE.passed(f"from {held[least]:.0f} to {held[most]:.0f} requests per rank, mean of {part.seconds:.0f} s", about, evidence)
