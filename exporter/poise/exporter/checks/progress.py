"""Check `progress`: an engine that holds requests also makes tokens; ranks that wait for one another in a collective show 100 % busy and make none.

Known forms: vllm-project/vllm#6370, #8087 (NCCL stuck), #39863 (a dead core behind an API that answers).
"""

from __future__ import annotations

from collections.abc import Iterator

from poise.exporter import metrics as m
from poise.exporter.checks import thresholds as t
from poise.exporter.checks import words
from poise.exporter.checks.load import evidence_of
from poise.exporter.checks.result import CheckResult, Line, State, Subject
from poise.exporter.checks.window import Window
from poise.exporter.snapshot import Engine, NodeSnapshot, Role

NAME = "progress"
TITLE = "Requests make progress"
_LINE = Line(NAME, TITLE)


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per engine that answers."""
    for engine in snapshot.engines:
        if engine.up and engine.observed.page is not None and engine.observed.page.work:
            yield _check(snapshot, engine, window)


def _check(snapshot: NodeSnapshot, engine: Engine, window: Window) -> CheckResult:
    name = engine.identity.engine
    about = Subject(engine=name)
    if _sleeps(engine):
        return _LINE.passed("the engine sleeps", about)
    for seconds in (t.PROBLEM_WINDOW, t.STALL_WINDOW):
        part = window.over(seconds)
        stuck = part.stuck_ranks(name) if part is not None else []
        if part is not None and stuck:
            return _failing(snapshot, engine, part, stuck)
    if window.stuck_ranks(name) and window.over(t.STALL_WINDOW) is None:
        return _LINE.unknown(
            f"no token in {window.seconds:.0f} s, which is too short to judge", about, fix=f"look for {t.STALL_WINDOW:.0f} s"
        )
    rate = window.longest().token_rate(name)
    held = window.most_requests(name)
    return _LINE.passed("no request" if not held else f"{rate:.0f} tokens/s" if rate else "requests come and go", about)


def _sleeps(engine: Engine) -> bool:
    work = engine.observed.page.work if engine.observed.page is not None else ()
    return any(value for part in work for value in part.readings.get(m.ENGINE_SLEEPING, {}).values())


def _failing(snapshot: NodeSnapshot, engine: Engine, part: Window, stuck: list[str]) -> CheckResult:
    cards = [gpu for card in engine.own if (gpu := snapshot.gpu(card.uuid)) is not None and gpu.up]
    ratios = [ratio for gpu in cards if (ratio := part.busy_ratio(gpu.uuid)) is not None]
    held = part.least_requests(engine.identity.engine)
    several = engine.observed.page is not None and len(engine.observed.page.work) > 1
    of = f" of DP rank {words.joined(stuck)}" if several else ""
    if len(ratios) > 1 and min(ratios) >= t.SATURATED_RATIO:
        spinning = f", and all its cards are {words.percent(min(ratios))} busy"
        cause = "its ranks wait for one another in a collective, which shows as full load: one of them hangs, died, or is on another path"
    elif engine.identity.role is Role.DECODE:
        spinning, cause = "", "decode waits for KV that does not come (kv_transfer), or hangs"
    else:
        spinning, cause = "", "the engine's core or a worker hangs, is stopped, or died behind an API that still answers"
    return _LINE.failed(
        State.PROBLEM if part.seconds >= t.PROBLEM_WINDOW * t.WINDOW_COVERAGE else State.WATCH,
        f"no token{of} in {part.seconds:.0f} s while at least {held:.0f} requests are held{spinning}",
        Subject(engine=engine.identity.engine),
        evidence_of(part, cards, part.seconds),
        cause=cause,
        fix="dump the stacks of all workers (`py-spy dump --pid PID`), read `dmesg` for XIDs; restart the engine",
    )
