"""What an engine's own counters show of its role: a contradiction to the role that it has, or the role itself where nothing told it. Pure.

vLLM ≥ 0.16 tells prompt tokens by source. Prefill: one token per request, then the router takes it from there. Decode: prompt tokens come through
the KV connector, whichever side moves them (NIXL pulls from decode, its push mode and Mooncake write from prefill).
"""

from __future__ import annotations

from collections.abc import Mapping

from poise.exporter import metrics as m
from poise.exporter.engines.kv_transfer import moves_between_engines
from poise.exporter.metrics import Metric
from poise.exporter.snapshot import EngineConfig, EnginePage, Role

#: So many finished requests must be seen before counters say anything about the role.
ROLE_MIN_REQUESTS = 20
#: A prefill engine answers with one token (the router asks for max_tokens=1); above this mean it also decodes.
PREFILL_MAX_MEAN_TOKENS = 1.5
#: A decode engine that computes more than this share of its prompt tokens prefills itself.
DECODE_MAX_LOCAL_SHARE = 0.5
#: To give a role to an engine for good takes more than to doubt one: a decode engine computes next to no prompt token (measured: none with vLLM
#: 0.32; one a request before 0.21), and every request of a prefill engine ends at one token for its length.
SHOWN_DECODE_MAX_LOCAL_SHARE = 0.1
SHOWN_PREFILL_MAX_MEAN_TOKENS = 1.05
SHOWN_PREFILL_MIN_LENGTH_SHARE = 0.95


def observed_role(page: EnginePage, role: Role) -> str | None:
    """The role that the counters since the engine's start show, when it contradicts `role`; None when it fits or says nothing."""
    finished, generated, local, transferred = _counts(page)
    if finished < ROLE_MIN_REQUESTS or local + transferred <= 0:
        return None
    takes_kv = transferred > local
    if role is Role.DECODE:
        return Role.MIXED if local > DECODE_MAX_LOCAL_SHARE * (local + transferred) else None
    if role is Role.PREFILL:
        if takes_kv:
            return Role.DECODE
        return Role.MIXED if generated > PREFILL_MAX_MEAN_TOKENS * finished else None
    return Role.DECODE if role is Role.MIXED and takes_kv else None


def shown_role(page: EnginePage, config: EngineConfig) -> Role | None:
    """The role that the counters show beyond doubt of an engine that nothing told one; None when they do not.

    Only with a connector that moves KV between engines: without one, answers of one token say nothing (a classifier gives them too).
    """
    if not _moves_kv_between_engines(page, config):
        return None
    finished, generated, local, transferred = _counts(page)
    if finished < ROLE_MIN_REQUESTS or local + transferred <= 0:
        return None
    if local <= SHOWN_DECODE_MAX_LOCAL_SHARE * (local + transferred):
        return Role.DECODE
    ended_by_length = _total(page, m.ENGINE_REQUESTS_FINISHED, "length")
    is_prefill = generated <= SHOWN_PREFILL_MAX_MEAN_TOKENS * finished and ended_by_length >= SHOWN_PREFILL_MIN_LENGTH_SHARE * finished
    return Role.PREFILL if is_prefill and transferred == 0 else None


def _moves_kv_between_engines(page: EnginePage, config: EngineConfig) -> bool:
    """By the command line, or by the page: only such connectors have histograms of their transfers (NIXL 0.11.1, Mooncake 0.33).

    Out of a store an engine that serves whole requests takes most of a long prompt too, so that its counters look like a decode engine's.
    """
    return moves_between_engines(config.kv_connector or "") or any(m.ENGINE_KV_TRANSFER_TIME in work.histograms for work in page.work)


def _counts(page: EnginePage) -> tuple[float, float, float, float]:
    """Finished requests, generated tokens, prompt tokens computed here, prompt tokens through the connector."""
    return (
        _total(page, m.ENGINE_REQUESTS_FINISHED),
        _total(page, m.ENGINE_GENERATION_TOKENS),
        _total(page, m.ENGINE_PROMPT_TOKENS_BY_SOURCE, "local_compute"),
        _total(page, m.ENGINE_PROMPT_TOKENS_BY_SOURCE, "external_kv_transfer"),
    )


def _total(page: EnginePage, metric: Metric, *labels: str) -> float:
    series: list[Mapping[tuple[str, ...], float]] = [work.readings.get(metric, {}) for work in page.work]
    return sum(value for readings in series for own, value in readings.items() if not labels or own == labels)
