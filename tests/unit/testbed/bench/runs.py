"""Runs made of recorded parts: what `vllm bench serve` wrote and what the exporter showed before and after it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from poise.testbed.bench import facts, profile, run, usage
from poise.testbed.bench.figures import StepFigures, read_result
from poise.testbed.bench.observe import NodePage, read_page
from poise.testbed.bench.run import RunFacts, Step
from poise.testbed.bench.workload import StepPlan, plan_workload
from poise.testbed.plan import DeploymentPlan, EnginePlan

RECORDED = Path(__file__).parents[3] / "captures" / "bench"
#: Of the server whose pages were recorded.
PORT = 49421
ENGINE = EnginePlan("server", PORT, 2, None, ("--max-num-seqs=16",))
TP = DeploymentPlan("tp", "cpu", Path("/nowhere"), "tiny", "tiny-qwen2", 2, (ENGINE,), 9747)


def recorded(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RECORDED / name).read_text(encoding="utf-8"))
    return content


def figures(name: str = "chat.json") -> StepFigures:
    return read_result(recorded(name))


def page(name: str) -> NodePage:
    return read_page((RECORDED / name).read_bytes())


def tp_usage() -> usage.Usage:
    """Of the recorded chat on TP=2; the window is the whole time between the pages."""
    before, after = page("tp-before.prom"), page("tp-after.prom")
    seen = figures()
    tokens = (seen.input_tokens, seen.output_tokens)
    return usage.usage(usage.Pages(before, before, after, after), [(ENGINE, 2)], seen.duration_seconds, tokens, True)


def run_facts(seed: int = 1) -> RunFacts:
    chat = profile.changed(profile.load("chat", "cpu"), profile.Overrides(seed=seed))
    return RunFacts(
        workload=plan_workload(chat, "0.32.0+cpu", "a" * 64),
        deployment=facts.deployment_facts(TP, None),
        versions={"poise": "0.1.0", "python": "3.11.7", "vllm": "0.32.0+cpu", "driver": "simulated"},
        machine={"system": "Linux 6", "architecture": "x86_64", "cores": 2, "processor": "a processor", "memory_bytes": 24 << 30},
        cards=[{"gpu": gpu, "uuid": f"GPU-{gpu}", "name": "Simulated NVIDIA H20-3e"} for gpu in (0, 1)],
        simulated=True,
        began=1_796_000_000.0,
    )


def chat_step() -> Step:
    return Step(StepPlan(64, None, 1), 1_796_000_010.0, 1_796_000_030.0, figures(), tp_usage())


def document(shape: str = "tp", tokens: float | None = None, seed: int = 1, gpus: int = 2) -> dict[str, Any]:
    """A saved run; `tokens` replaces its output tokens a second."""
    content = copy.deepcopy(run.document(run_facts(seed), [chat_step()], False, f"20261130-000000-{shape}-chat-{seed}"))
    content["deployment"] |= {"shape": shape, "gpus": gpus}
    if tokens is not None:
        content["steps"][0]["client"]["output_tokens_per_second"] = tokens
    return content


Content = dict[str, Any]


def three_times(shape: str, tokens: float, gpus: int) -> list[Content]:
    """Three repetitions of one shape, one output token a second apart."""
    return [document(shape, tokens + step, seed, gpus) for seed, step in ((1, 0.0), (2, 1.0), (3, -1.0))]


def shapes_three_times() -> list[Content]:
    return [*three_times("single", 100.0, 1), *three_times("tp", 60.0, 2), *three_times("pd", 150.0, 2)]
