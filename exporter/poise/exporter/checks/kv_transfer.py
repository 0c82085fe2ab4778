"""Check `kv_transfer`: KV moves from prefill to decode, no transfer fails or comes too late, and decode does not compute prompts itself.

Where vLLM counts (NIXL, v1/…/nixl/stats.py): transfers, bytes and failures on decode, expired requests and late notifications on prefill.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from poise.exporter import metrics as m
from poise.exporter.checks import thresholds as t
from poise.exporter.checks import words
from poise.exporter.checks.pools import Split, names, prompt_tokens, splits
from poise.exporter.checks.result import CheckResult, Line, State
from poise.exporter.checks.window import Window, engine_counters
from poise.exporter.engines.kv_transfer import moves_between_engines
from poise.exporter.metrics import Metric
from poise.exporter.snapshot import Engine, NodeSnapshot, Role

NAME = "kv_transfer"
TITLE = "KV transfers happen and succeed"
_LINE = Line(NAME, TITLE)

_COUNTED = (
    m.ENGINE_KV_TRANSFER_TIME,
    m.ENGINE_KV_TRANSFER_BYTES,
    m.ENGINE_KV_TRANSFER_FAILURES,
    m.ENGINE_KV_TRANSFER_EXPIRED,
    m.ENGINE_KV_TRANSFER_LATE,
)


@dataclass(frozen=True, slots=True)
class _Counts:
    """What was counted in `span` (words) over a deployment; a metric that nobody counts is absent. `prompts`: tokens by source, decode's only."""

    span: str
    counted: Mapping[Metric, float]
    prompts: Mapping[str, float]

    def of(self, metric: Metric) -> float:
        """A count, 0 where nobody counts it."""
        return self.counted.get(metric, 0.0)

    @property
    def prompt_tokens(self) -> float:
        return sum(self.prompts.values())

    @property
    def local_share(self) -> float:
        """Share of the prompt tokens that decode computed itself."""
        return self.prompts.get("local_compute", 0.0) / self.prompt_tokens if self.prompt_tokens else 0.0


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per deployment that splits and of which an engine answers here."""
    for split in splits(snapshot):
        engines = [engine for engine in (*split.pool(Role.PREFILL), *split.pool(Role.DECODE)) if engine.up]
        if engines:
            yield _check(split, engines, window.longest())


def _check(split: Split, engines: Sequence[Engine], part: Window) -> CheckResult:
    now = _in_window(engines, part)
    ever = _since_start(engines)
    connectors = sorted({engine.config.kv_connector or "unknown" for engine in engines})
    evidence = {"connector": words.joined(connectors)}
    for name, metric in (
        ("transfers", m.ENGINE_KV_TRANSFER_TIME),
        ("failed", m.ENGINE_KV_TRANSFER_FAILURES),
        ("expired", m.ENGINE_KV_TRANSFER_EXPIRED),
        ("late notifications", m.ENGINE_KV_TRANSFER_LATE),
    ):
        if metric in ever.counted:
            evidence[name] = f"{now.of(metric):.0f} {now.span}, {ever.of(metric):.0f} since the start"
    for counts in (now, ever):
        if counts.prompt_tokens >= t.PROMPT_TOKENS_FLOOR:
            evidence[f"prompt tokens computed by decode {counts.span}"] = words.percent(counts.local_share)
    decode = names([engine for engine in engines if engine.identity.role is Role.DECODE])
    # Connectors that go through a store hand over whole chunks only, and decode computes the rest: ExampleConnector 41 % of prompts of 60 tokens
    # (measured, vLLM 0.32).
    whole = bool(ever.of(m.ENGINE_KV_TRANSFER_TIME)) or any(moves_between_engines(name) for name in connectors)
    allowed = t.RECOMPUTED_SHARE if whole else t.RECOMPUTED_NEARLY_ALL
    return (
        _troubled(split, now, evidence) or _recomputing(split, now, ever, allowed, decode, evidence) or _quiet(split, now, ever, evidence)
    )


def _troubled(split: Split, now: _Counts, evidence: Mapping[str, str]) -> CheckResult | None:
    """Transfers that failed, expired or came too late in the window."""
    late, failed, expired = (
        now.of(metric) for metric in (m.ENGINE_KV_TRANSFER_LATE, m.ENGINE_KV_TRANSFER_FAILURES, m.ENGINE_KV_TRANSFER_EXPIRED)
    )
    if late:
        return _LINE.failed(
            State.PROBLEM,
            f"{late:.0f} transfers were reported done after their lease ended {now.span}",
            split.about,
            evidence,
            cause="prefill may have given the blocks to another request before they were read: such answers can be wrong, with HTTP 200",
            fix="add decode engines or lengthen the lease (VLLM_NIXL_ABORT_REQUEST_TIMEOUT); look at decode's queue",
        )
    if failed:
        tried = failed + now.of(m.ENGINE_KV_TRANSFER_TIME)
        bad = failed >= t.FAILED_TRANSFERS and failed / tried > t.FAILED_TRANSFER_SHARE
        return _LINE.failed(
            State.PROBLEM if bad else State.WATCH,
            f"{failed:.0f} of {tried:.0f} KV transfers failed {now.span}",
            split.about,
            evidence,
            cause="the side channel or the transport does not work, or the engines do not fit (see pd_match)",
            fix="read decode's log for NIXL; check VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT, UCX_TLS, UCX_NET_DEVICES and firewalls",
        )
    if expired:
        return _LINE.failed(
            State.WATCH,
            f"the KV of {expired:.0f} requests expired on prefill {now.span}",
            split.about,
            evidence,
            cause="decode did not fetch it in time: too slow, gone, or the clients left",
            fix="look at decode's queue and KV cache; add decode engines",
        )
    return None


def _recomputing(split: Split, now: _Counts, ever: _Counts, allowed: float, decode: str, evidence: Mapping[str, str]) -> CheckResult | None:
    """Decode that computes prompts, in the window, or since its start where the window saw too few prompts."""
    counts = now if now.prompt_tokens >= t.PROMPT_TOKENS_FLOOR else ever
    if counts.prompt_tokens < t.PROMPT_TOKENS_FLOOR or counts.local_share <= allowed:
        return None
    nearly_all = counts.local_share > t.RECOMPUTED_NEARLY_ALL
    return _LINE.failed(
        State.PROBLEM if nearly_all and counts is now else State.WATCH,
        f"decode ({decode}) computed {words.percent(counts.local_share)} of its prompt tokens itself {counts.span}",
        split.about,
        evidence,
        cause="no KV reaches it, so it prefills silently"
        if nearly_all
        else "a part of the KV does not reach it, or it was pushed out and is computed again",
        fix="check that the router passes kv_transfer_params on, that requests go through prefill (pd_routing), and decode's preemptions",
    )


def _quiet(split: Split, now: _Counts, ever: _Counts, evidence: Mapping[str, str]) -> CheckResult:
    transfers, moved = now.of(m.ENGINE_KV_TRANSFER_TIME), now.of(m.ENGINE_KV_TRANSFER_BYTES)
    if transfers:
        size = f" of {moved / transfers / 2**20:.1f} MiB" if moved else ""
        return _LINE.passed(f"{transfers:.0f} transfers{size} {now.span}, none failed", split.about, evidence)
    if ever.of(m.ENGINE_KV_TRANSFER_TIME):
        return _LINE.passed(f"no transfer {now.span}; {ever.of(m.ENGINE_KV_TRANSFER_TIME):.0f} since the start", split.about, evidence)
    if ever.prompts.get("external_kv_transfer"):
        return _LINE.passed("decode takes its prompts' KV from prefill", split.about, evidence)
    if ever.prompt_tokens >= t.PROMPT_TOKENS_FLOOR:
        return _LINE.passed("decode found the KV of its prompts in its own cache", split.about, evidence)
    if split.pool(Role.DECODE):
        return _LINE.passed("no request has needed a transfer yet", split.about, evidence)
    return _LINE.passed("nothing expired on prefill; decode counts the transfers and is not known here", split.about, evidence)


def _in_window(engines: Sequence[Engine], part: Window) -> _Counts:
    counted: dict[Metric, float] = {}
    for engine in engines:
        for metric in _COUNTED:
            grown = part.increase(engine.identity.engine, metric)
            if grown is not None:
                counted[metric] = counted.get(metric, 0.0) + grown
    return _Counts(f"in the last {part.seconds:.0f} s", counted, prompt_tokens(engines, part))


def _since_start(engines: Sequence[Engine]) -> _Counts:
    counted: dict[Metric, float] = {}
    prompts: dict[str, float] = {}
    for engine in engines:
        for (metric, labels), value in (engine_counters(engine.observed.page) if engine.observed.page is not None else {}).items():
            if metric in _COUNTED:
                counted[metric] = counted.get(metric, 0.0) + value
            elif metric is m.ENGINE_PROMPT_TOKENS_BY_SOURCE and engine.identity.role is Role.DECODE:
                prompts[labels[0]] = prompts.get(labels[0], 0.0) + value
    return _Counts("since the start", counted, prompts)
