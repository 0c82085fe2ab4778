"""Check `pd_rtt`: the engines of a deployment that splits prefill from decode are near: a TCP connect to each is short."""

from __future__ import annotations

from collections.abc import Iterator

from poise.exporter.checks import thresholds as t
from poise.exporter.checks.pools import SPLIT_ROLES, Split, splits
from poise.exporter.checks.result import CheckResult, Line, State
from poise.exporter.checks.window import Window
from poise.exporter.snapshot import NodeSnapshot

NAME = "pd_rtt"
TITLE = "Round trips between prefill and decode are short"
_LINE = Line(NAME, TITLE)


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per deployment of which engines of both roles are known here."""
    for split in splits(snapshot):
        if all(split.pool(role) for role in SPLIT_ROLES):
            yield _check(split, window)


def _check(split: Split, window: Window) -> CheckResult:
    engines = [engine.identity.engine for role in SPLIT_ROLES for engine in split.pool(role)]
    known = {name: seconds for name in engines if (seconds := window.round_trip(name)) is not None}
    evidence = {name: f"{seconds * 1000:.1f} ms" for name, seconds in known.items()}
    if not known:
        return _LINE.unknown("no engine has been connected to yet", split.about)
    name, longest = max(known.items(), key=lambda item: item[1])
    if longest > t.ROUND_TRIP:
        return _LINE.failed(
            State.WATCH,
            f"a TCP connect to {name} takes {longest * 1000:.0f} ms at best",
            split.about,
            evidence,
            cause="the engine is far away: each handshake and notification of a transfer takes round trips, and long paths are slow ones",
            fix="place prefill and decode of one deployment in one rack or one node",
        )
    return _LINE.passed(f"at most {longest * 1000:.1f} ms from this node", split.about, evidence)
