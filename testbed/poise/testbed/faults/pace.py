"""Engines that are slow, or stand still while clients wait. Their processes are stopped by signals, for a share of the time or for good."""

from __future__ import annotations

from poise.testbed.errors import TestbedError
from poise.testbed.faults import freezing
from poise.testbed.faults.fault import SLOW_ANSWERS, Fault, Needs, Raises, Sign, Target
from poise.testbed.faults.requests import start_clients

PROCESS = "fault_brake"

# An engine that is held back for this share of the time needs eight times as long.
HELD_BACK = 0.875
# More clients than two batches hold: where one engine is slower than the other, they queue before it.
CROWD = 48
# What prefill has to do for such a request, and next to nothing for decode.
LONG_PROMPT = 1536
SHORT_ANSWER = 4
# Clients that hold requests on an engine that hangs, when nobody else does.
WAITING_CLIENTS = 4


def _brake(target: Target) -> None:
    target.deployment.spawn(PROCESS, "fault", freezing.command(target.deployment, target.engine.name, HELD_BACK))


def _slow_prefill(target: Target) -> None:
    _brake(target)
    start_clients(target, target.deployment.plan.url, CROWD, prompt_words=LONG_PROMPT, max_tokens=SHORT_ANSWER)


def _slow_decode(target: Target) -> None:
    _brake(target)
    start_clients(target, target.deployment.plan.url, CROWD)


def _hang(target: Target) -> None:
    start_clients(target, target.deployment.plan.url, WAITING_CLIENTS, max_tokens=512)
    if not freezing.stop(target.deployment, target.engine.name):
        raise TestbedError(f"{target.engine.name} has no worker that could be stopped: `poise testbed status`")


SLOW = (
    Fault(
        name="slow-prefill",
        group="prefill and decode",
        what=f"prefill is held back for {HELD_BACK:.1%} of the time while a crowd sends long prompts",
        needs=Needs(role="prefill", router=True),
        raises=Raises(
            series=(
                Sign("poise_engine_requests_waiting", "rises", part="prefill"),
                Sign("poise_engine_time_to_first_token_seconds", "rises", part="prefill"),
            ),
            alerts=("PDPrefillBottleneck",),
            # A prompt takes longer than the five minutes without a token are where times are a twentieth.
            tolerated=(*SLOW_ANSWERS, "EngineQueueTimeHigh", "EngineStalled"),
        ),
        apply=_slow_prefill,
    ),
    Fault(
        name="slow-decode",
        group="prefill and decode",
        what=f"decode is held back for {HELD_BACK:.1%} of the time while a crowd waits for answers",
        needs=Needs(role="decode", router=True),
        raises=Raises(
            series=(
                Sign("poise_engine_requests_waiting", "rises", part="decode"),
                Sign("poise_engine_inter_token_latency_seconds", "rises", part="decode"),
            ),
            alerts=("PDDecodeBottleneck",),
            tolerated=(*SLOW_ANSWERS, "PDKVExpired", "EngineQueueTimeHigh"),
        ),
        apply=_slow_decode,
    ),
)

FAULTS = (
    Fault(
        name="hang",
        group="processes",
        what="the workers are stopped while requests run (SIGSTOP); the API goes on answering",
        needs=Needs(),
        raises=Raises(
            series=(Sign("poise_engine_generation_tokens_total", "slows", to=0),),
            checks=("progress",),
            alerts=("EngineStalled",),
            tolerated=("EngineHungInCollective", *SLOW_ANSWERS),
        ),
        apply=_hang,
    ),
)
