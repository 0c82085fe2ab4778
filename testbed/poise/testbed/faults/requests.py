"""Clients who ask the wrong server, ask too much, or leave. They are real, the fault's own, and end with it."""

from __future__ import annotations

from dataclasses import replace

from poise.testbed.faults import clients
from poise.testbed.faults.fault import SLOW_ANSWERS, Fault, Needs, Raises, Sign, Target
from poise.testbed.launch import CPU_MAX_NUM_SEQS
from poise.testbed.load import LoadSettings

PROCESS = "fault_clients"

# Enough that an engine is never out of work.
CLIENTS = 8
# So many times as many clients as the engine takes into its batch: the others wait.
FLOOD = 10
# Answers so long that those who wait do so for more than the half minute from which on an alert counts them as waiting (alerts/thresholds).
FLOOD_ANSWER = 256
# vLLM 0.32's largest default of --max-num-seqs (engine/arg_utils.py: the API server on H100 and larger).
GPU_MAX_NUM_SEQS = 1024
# A cache for two requests of the greatest length that the tiny model takes (2048 tokens).
SMALL_CACHE_TOKENS = 4096
# Tokens in a block of vLLM 0.32's KV cache, by build.
BLOCK_TOKENS = {"cpu": 128, "gpu": 16}
# Answers so long that a full batch outgrows that cache.
LONG_ANSWER = 700
# Clients who leave have read so many outputs of an answer of so many tokens.
READ_OUTPUTS = 4
UNREAD_ANSWER = 512


def start_clients(
    target: Target, url: str, count: int = CLIENTS, prompt_words: int = 48, max_tokens: int = 64, leave_after: int | None = None
) -> None:
    """Starts clients of `url` without end."""
    settings = LoadSettings(
        url,
        target.deployment.plan.served_name,
        concurrency=count,
        prompt_words=prompt_words,
        max_tokens=max_tokens,
        leave_after=leave_after,
    )
    target.deployment.spawn(PROCESS, "fault", clients.command(settings))


def _direct(target: Target) -> None:
    start_clients(target, target.engine.url)


def _queue_flood(target: Target) -> None:
    most = CPU_MAX_NUM_SEQS if target.deployment.plan.build == "cpu" else GPU_MAX_NUM_SEQS
    start_clients(target, target.deployment.plan.url, FLOOD * most, max_tokens=FLOOD_ANSWER)


def _kv_exhausted(target: Target) -> None:
    blocks = SMALL_CACHE_TOKENS // BLOCK_TOKENS[target.deployment.plan.build]
    changed = replace(target.engine, arguments=(*target.engine.arguments, f"--num-gpu-blocks-override={blocks}"))
    target.deployment.restart_engine(changed, "kv-exhausted", target.progress)
    start_clients(target, target.deployment.plan.url, CPU_MAX_NUM_SEQS, max_tokens=LONG_ANSWER)


def _client_aborts(target: Target) -> None:
    start_clients(target, target.deployment.plan.url, max_tokens=UNREAD_ANSWER, leave_after=READ_OUTPUTS)


DIRECT = (
    Fault(
        name="decode-direct",
        group="prefill and decode",
        what="clients go to decode, past the router: it computes their prompts itself",
        needs=Needs(role="decode", router=True),
        raises=Raises(
            series=(
                Sign("poise_engine_prompt_tokens_by_source_total", "counts", (("source", "local_compute"),), part="decode"),
                Sign("poise_engine_requests_finished_total", "slows", part="prefill"),
            ),
            checks=("pd_routing", "kv_transfer"),
            alerts=("PDPoolStarved", "PDKVTransferAbsent", "PDDecodeComputesPrompts"),
        ),
        apply=_direct,
        brings_load=True,
    ),
    Fault(
        name="prefill-direct",
        group="prefill and decode",
        what="clients go to prefill, past the router: it generates their answers itself",
        needs=Needs(role="prefill", router=True),
        raises=Raises(
            series=(
                Sign("poise_engine_generation_tokens_total", "counts", part="prefill"),
                Sign("poise_engine_requests_finished_total", "slows", part="decode"),
            ),
            checks=("pd_routing",),
            alerts=("PDPoolStarved", "PDPrefillGenerates"),
        ),
        apply=_direct,
        brings_load=True,
    ),
)

FAULTS = (
    Fault(
        name="queue-flood",
        group="load",
        what=f"{FLOOD} times as many clients as the batch holds (max-num-seqs): the others wait",
        needs=Needs(),
        raises=Raises(
            series=(Sign("poise_engine_requests_waiting", "rises"), Sign("poise_engine_queue_time_seconds", "rises")),
            checks=("batch_limit",),
            alerts=("EngineQueueTimeHigh",),
            tolerated=SLOW_ANSWERS,
        ),
        apply=_queue_flood,
    ),
    Fault(
        name="kv-exhausted",
        group="load",
        what=f"the server has a KV cache of {SMALL_CACHE_TOKENS} tokens and gets long answers to write: it pushes requests out of the batch",
        needs=Needs(),
        raises=Raises(
            series=(Sign("poise_engine_preemptions_total", "counts"), Sign("poise_engine_kv_cache_usage_ratio", "rises")),
            checks=("batch_limit",),
            alerts=("EngineKVCacheSaturated",),
            tolerated=(*SLOW_ANSWERS, "EngineQueueTimeHigh"),
        ),
        apply=_kv_exhausted,
        restarts=True,
    ),
    Fault(
        name="client-aborts",
        group="load",
        what=f"clients who leave after {READ_OUTPUTS} of {UNREAD_ANSWER} tokens",
        needs=Needs(),
        raises=Raises(
            series=(
                Sign("poise_engine_http_requests_total", "counts", (("code", "2xx"),)),
                Sign("poise_engine_requests_finished_total", "slows"),
            ),
        ),
        apply=_client_aborts,
        brings_load=True,
    ),
)
