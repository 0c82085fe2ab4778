"""A server that serves and whose metrics page never answers: vllm_patch holds each request for it while a file is there."""

from __future__ import annotations

from poise.testbed.deployment import Deployment
from poise.testbed.errors import TestbedError
from poise.testbed.faults.fault import Fault, Needs, Raises, Sign, Target


def _swallow(target: Target) -> None:
    if target.deployment.plan.build != "cpu":
        raise TestbedError("scrape-blackhole can only be done to the testbed's CPU build of vLLM: its GPU build runs unchanged")
    target.deployment.layout.blackhole(target.engine.name).touch()


def _answer(deployment: Deployment) -> list[str]:
    for engine in deployment.plan.engines:
        deployment.layout.blackhole(engine.name).unlink(missing_ok=True)
    return []


FAULTS = (
    Fault(
        name="scrape-blackhole",
        group="processes",
        what="the server goes on serving and its metrics page never answers",
        needs=Needs(),
        raises=Raises(
            series=(Sign("poise_engine_up", "falls"), Sign("poise_engine_requests_running", "goes")),
            checks=("engine_answers",),
            alerts=("EngineDown",),
        ),
        apply=_swallow,
        undo=_answer,
    ),
)
