"""Parts of a deployment that die: workers, servers, the router. The processes are real, and so is their end (SIGKILL)."""

from __future__ import annotations

import signal
import time

from poise.testbed import processes
from poise.testbed.errors import TestbedError
from poise.testbed.faults.fault import FAILED_ANSWERS, Fault, Needs, Raises, Sign, Target
from poise.testbed.processes import wait_gone

# A killed worker takes its server with it: vLLM 0.32 needed 9 s when idle machines ran it.
SERVER_END_SECONDS = 60.0


def _kill_last_rank(target: Target) -> None:
    name = target.engine.name
    record, ranks = target.deployment.record(name), target.deployment.workers(name)
    if record is None or not ranks:
        raise TestbedError(f"{name} has no worker that could be killed: `poise testbed status`")
    processes.send(ranks[-1].identity, signal.SIGKILL)
    began = time.monotonic()
    if wait_gone([record.identity], SERVER_END_SECONDS):
        raise TestbedError(f"{name} still lives {time.monotonic() - began:.0f} s after its last rank was killed")


def _kill_engine(target: Target) -> None:
    target.deployment.kill(target.engine.name)


def _kill_router(target: Target) -> None:
    router = target.deployment.plan.router
    if router is not None:
        target.deployment.kill(router.name)


FAULTS = (
    Fault(
        name="kill-rank",
        group="processes",
        what="the worker of the last rank is killed (SIGKILL)",
        needs=Needs(),
        raises=Raises(
            series=(Sign("poise_engine_up", "falls"), Sign("poise_engine_process_up", "falls")),
            checks=("engine_answers",),
            alerts=("EngineDown",),
        ),
        apply=_kill_last_rank,
    ),
    Fault(
        name="kill-prefill",
        group="processes",
        what="the prefill server is killed with its workers (SIGKILL)",
        needs=Needs(role="prefill", router=True),
        raises=Raises(
            series=(Sign("poise_engine_up", "falls", part="prefill", to=0),),
            checks=("engine_answers",),
            alerts=("EngineDown", "PDRoleMissing"),
            tolerated=(*FAILED_ANSWERS, "PDKVExpired"),
        ),
        apply=_kill_engine,
    ),
    Fault(
        name="kill-decode",
        group="processes",
        what="the decode server is killed with its workers (SIGKILL)",
        needs=Needs(role="decode", router=True),
        raises=Raises(
            series=(Sign("poise_engine_up", "falls", part="decode", to=0),),
            checks=("engine_answers",),
            alerts=("EngineDown", "PDRoleMissing"),
            tolerated=(*FAILED_ANSWERS, "PDKVExpired"),
        ),
        apply=_kill_engine,
    ),
    Fault(
        name="kill-router",
        group="processes",
        what="the router is killed (SIGKILL) while the servers behind it live",
        needs=Needs(router=True),
        raises=Raises(series=(Sign("poise_router_up", "falls", part="router", to=0),), checks=("router_answers",), alerts=("RouterDown",)),
        apply=_kill_router,
    ),
)
