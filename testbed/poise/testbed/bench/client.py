"""`vllm bench serve` as the client: its command line, its environment, what it says while it runs, and why it ended.

Pure: values in, values out. Options and output are those of vLLM 0.32 (benchmarks/serve.py). Knows nothing of runs that are saved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from poise.exporter.logs import visible
from poise.testbed import launch
from poise.testbed.bench.profile import LoadProfile
from poise.testbed.bench.workload import ENDPOINT, StepPlan
from poise.testbed.model import TINY
from poise.testbed.paths import StateLayout
from poise.testbed.plan import DeploymentPlan
from poise.testbed.ports import LOOPBACK

METRICS = ("ttft", "tpot", "itl", "e2el")
PERCENTILES = (50, 90, 95, 99)
RESULT_NAME = "result.json"
# Longest text of an error or of last words that is shown and kept.
LONGEST_WORDS = 200

# tqdm's bar: "  3%|▎         | 2/64 [00:02<01:08,  1.10s/it]".
_BAR = re.compile(r"(\d+)/(\d+) \[")
_STARTED = "Starting main benchmark run"
_ENDED = "Serving Benchmark Result"


def bench_command(plan: DeploymentPlan, url: str, model: str, profile: LoadProfile, step: StepPlan, folder: Path) -> list[str]:
    """The client for one step; `model` is a folder or a name on Hugging Face, the result goes to `folder`.

    No probe and no warm-up of its own (both would send a prompt of the measured ones and leave it in the prefix cache): all that the
    servers count is the step.
    """
    prompts, arrival = profile.prompts, profile.arrival
    command = [
        *(str(plan.environment / "bin" / "vllm"), "bench", "serve"),
        *("--backend", "openai", "--base-url", url, "--endpoint", ENDPOINT),
        *("--model", model, "--served-model-name", plan.served_name),
        *("--dataset-name", "random", "--seed", str(step.seed), "--num-prompts", str(step.requests)),
        *("--random-input-len", str(prompts.input_tokens), "--random-output-len", str(prompts.output_tokens)),
        *("--random-range-ratio", f"{prompts.spread:g}", "--random-prefix-len", str(prompts.prefix_tokens)),
        *("--ignore-eos", "--temperature", "0", "--num-warmups", "0", "--ready-check-timeout-sec", "0"),
        *("--percentile-metrics", ",".join(METRICS), "--metric-percentiles", ",".join(map(str, PERCENTILES))),
        *("--save-result", "--save-detailed", "--result-dir", str(folder), "--result-filename", RESULT_NAME),
    ]
    if step.rate is not None:
        command += ["--request-rate", f"{step.rate:g}", "--burstiness", f"{arrival.burstiness:g}"]
    if arrival.concurrency is not None:
        command += ["--max-concurrency", str(arrival.concurrency)]
    if profile.slo:
        command += ["--goodput", *(f"{name}:{limit:g}" for name, limit in profile.slo)]
    return command


def bench_environment(plan: DeploymentPlan, layout: StateLayout, environ: Mapping[str, str]) -> dict[str, str]:
    """What the client finds in its environment. A key goes through it and never through a command line."""
    result = launch.clean(environ, layout)
    result["PATH"] = f"{plan.environment / 'bin'}:{environ.get('PATH', '/usr/bin:/bin')}"
    # Its lines are read as they come; it reports usage to vLLM's authors otherwise.
    result |= {"PYTHONUNBUFFERED": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    # It believes in the proxies of the environment, and the servers are on this machine.
    for name in ("NO_PROXY", "no_proxy"):
        result[name] = ",".join(part for part in (environ.get(name, ""), LOOPBACK) if part)
    if plan.model == TINY:
        result |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    key = environ.get("VLLM_API_KEY")
    if key:
        result["OPENAI_API_KEY"] = key  # benchmarks/lib/endpoint_request_func.py
    return result


@dataclass(frozen=True, slots=True)
class Event:
    """What a line of the client tells: the measured part began, so many requests are done, it ended."""

    kind: Literal["started", "progress", "ended"]
    done: int = 0


def read_line(text: str, requests: int) -> Event | None:
    """What one line tells, None when nothing. `requests` is how many were asked for: other bars (downloads) are not taken for it."""
    if _STARTED in text:
        return Event("started")
    if _ENDED in text:
        return Event("ended")
    bar = _BAR.search(text)
    if bar is not None and int(bar[2]) == requests:
        return Event("progress", int(bar[1]))
    return None


def last_words(lines: Sequence[str]) -> str:
    """The last line that says something: of a traceback the error itself, no progress bar. Without what a terminal acts on."""
    for line in reversed(lines):
        text = line.strip()
        if text and _BAR.search(text) is None:
            return visible(text)[:LONGEST_WORDS]
    return "it said nothing"
