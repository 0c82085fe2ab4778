"""Servers that are started with settings that somebody forgot or mistook."""

from __future__ import annotations

from dataclasses import replace

from poise.testbed.faults.fault import Fault, Needs, Raises, Sign, Target
from poise.testbed.plan import EnginePlan


def one_visible(engine: EnginePlan) -> EnginePlan:
    """What a container with one GPU gives."""
    first = (engine.cuda_visible_devices or "0").split(",")[0]
    return replace(engine, tensor_parallel_size=1, pipeline_parallel_size=1, cuda_visible_devices=first)


def one_card(engine: EnginePlan) -> EnginePlan:
    """What a forgotten --tensor-parallel-size gives."""
    return replace(engine, tensor_parallel_size=1, pipeline_parallel_size=1)


def _one_visible(target: Target) -> None:
    target.deployment.restart_engine(one_visible(target.engine), "one-visible", target.progress)


def _one_card(target: Target) -> None:
    target.deployment.restart_engine(one_card(target.engine), "one-card", target.progress)


FAULTS = (
    Fault(
        name="one-visible",
        group="settings",
        what="the server sees one card only (CUDA_VISIBLE_DEVICES=0) and runs with tensor-parallel size 1",
        needs=Needs(ranks=2),
        raises=Raises(
            series=(Sign("poise_engine_gpus_visible", "falls", to=1), Sign("poise_gpu_busy_seconds_total", "slows", (("gpu", "1"),))),
            checks=("idle_unowned_card",),
            alerts=("NodeGPUUnowned",),
        ),
        apply=_one_visible,
        restarts=True,
    ),
    Fault(
        name="one-card",
        group="settings",
        what="the server sees all cards but runs with tensor-parallel size 1",
        needs=Needs(ranks=2),
        raises=Raises(
            series=(Sign("poise_engine_gpus_used", "falls", to=1), Sign("poise_gpu_busy_seconds_total", "slows", (("gpu", "1"),))),
            checks=("parallel_size",),
            alerts=("EngineSaturatedAndIdle", "EngineGPUsUnused"),
            tolerated=("EngineImbalanceHigh",),
        ),
        apply=_one_card,
        restarts=True,
    ),
)
