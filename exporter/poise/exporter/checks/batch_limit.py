"""Check `batch_limit`: --max-num-seqs neither holds requests back while the KV cache has room, nor lets in more than fit."""

from __future__ import annotations

from collections.abc import Iterator

from poise.exporter import metrics as m
from poise.exporter.checks import thresholds as t
from poise.exporter.checks import words
from poise.exporter.checks.result import CheckResult, Line, State, Subject
from poise.exporter.checks.window import Window
from poise.exporter.snapshot import Engine, NodeSnapshot

NAME = "batch_limit"
TITLE = "max-num-seqs fits queue and KV cache"
_LINE = Line(NAME, TITLE)


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per engine that answers."""
    for engine in snapshot.engines:
        if engine.up and engine.observed.page is not None and engine.observed.page.work:
            yield _check(engine, window.longest())


def _check(engine: Engine, part: Window) -> CheckResult:
    name = engine.identity.engine
    about = Subject(engine=name)
    running, waiting = part.gauge(name, m.ENGINE_REQUESTS_RUNNING), part.gauge(name, m.ENGINE_REQUESTS_WAITING)
    used = part.gauge(name, m.ENGINE_KV_CACHE_USAGE)
    limit = engine.config.max_num_seqs
    if running is None or waiting is None or used is None:
        return _LINE.unknown("its page does not tell running and waiting requests and the use of the KV cache", about)
    pushed = part.increase(name, m.ENGINE_PREEMPTIONS) or 0.0
    span = f"mean of {part.seconds:.0f} s" if part.seconds else "now"
    evidence = {
        "max-num-seqs": "vLLM's default" if limit is None else str(limit),
        "running": f"{running:.1f}",
        "waiting": f"{waiting:.1f}",
        "KV cache": words.percent(used),
        "preempted": f"{pushed:.0f}",
    }
    if pushed and used > t.KV_FULL:
        return _LINE.failed(
            State.WATCH,
            f"{pushed:.0f} requests pushed out of the batch in {part.seconds:.0f} s: the KV cache is full ({words.percent(used)})",
            about,
            evidence,
            cause="more sequences run than the KV cache holds to their end; what is pushed out is computed again",
            fix="lower --max-num-seqs or --max-model-len, give the KV cache more (--gpu-memory-utilization, --kv-cache-dtype fp8), or add an engine",
        )
    ranks = len({work.dp_rank for work in engine.observed.page.work}) if engine.observed.page is not None else 1
    if limit is not None and waiting >= 1 and running >= t.BATCH_FULL * limit * ranks and used < t.KV_ROOM:
        return _LINE.failed(
            State.WATCH,
            f"max-num-seqs={limit} holds {waiting:.0f} requests back while the KV cache is {words.percent(used)} full, {span}",
            about,
            evidence,
            cause="the batch is as large as it may be, and the KV cache has room for more",
            fix=f"start it with --max-num-seqs {2 * limit}, and watch the latency between tokens",
        )
    if waiting >= 1 and used > t.KV_FULL:
        return _LINE.passed(
            f"{waiting:.0f} wait for a full KV cache ({words.percent(used)}): it needs more engines, not other settings", about, evidence
        )
    return _LINE.passed(f"{running:.0f} running, {waiting:.0f} waiting, KV cache {words.percent(used)} full, {span}", about, evidence)
