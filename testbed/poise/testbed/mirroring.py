"""From what a worker process did to what its simulated card would show. Pure arithmetic: values in, values out.

Every figure comes from the worker (its schedule statistics, its resident set, the tokens of its server); nothing is invented
but the card's own limits, which are in its profile, and the few constants below, which only shape the curves between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from poise.testbed.model import ModelShape

# Below this share a card counts as idle: a worker without work looks at its queue now and then, for one or two percent.
IDLE_SHARE = 0.05
# A thread that waited nearly all the time is judged by no less than this part of it: the kernel adds up waiting when it
# ends, so that a long wait can show in the second after it.
LEAST_SHARE = 0.1
# A GPU under full load settles within about a minute: first-order lag of its temperature.
TEMPERATURE_SECONDS = 20.0
# Under full LLM load cards draw close to, not at, their limit.
FULL_LOAD_OF_LIMIT = 0.9


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """Nanoseconds since a thread began: on a core, and waiting for one while it could have run."""

    ran: int
    waited: int


def parse_schedstat(text: str) -> ThreadTimes:
    """The first two fields of /proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst of the kernel).

    Raises ValueError for anything else.
    """
    ran, waited, _ = text.split()
    return ThreadTimes(int(ran), int(waited))


def busy_share(before: Mapping[int, ThreadTimes], after: Mapping[int, ThreadTimes], seconds: float) -> float:
    """Share 0..1 of `seconds` in which a process had work, from the times of its threads (by thread id).

    A thread's share is the time it ran, of the time in which it was not kept waiting for a core: what it would have run with
    a core of its own, as a card's kernels have the card. (Waiting alone says nothing: on a busy machine an idle worker that
    looks at its queue fifty times a second waits longer than it runs.) Threads count together, cut at 1: a card with one
    kernel running is as busy, by NVML's meaning, as a card with many. A thread that began in between counts from its birth;
    one that ended is lost with its last part.
    """
    if seconds <= 0:
        return 0.0
    whole = seconds * 1e9
    share = 0.0
    for thread, times in after.items():
        earlier = before.get(thread, ThreadTimes(0, 0))
        ran, waited = times.ran - earlier.ran, times.waited - earlier.waited
        if ran > 0:
            share += ran / max(whole - max(0, waited), LEAST_SHARE * whole)
    return min(1.0, share)


@dataclass(frozen=True, slots=True)
class CardLimits:
    """What a card's profile says of it: watts, degrees Celsius, megahertz of the SM clock."""

    idle_watts: float
    limit_watts: float
    idle_celsius: float
    full_load_celsius: float
    idle_megahertz: float
    full_megahertz: float


def power_watts(limits: CardLimits, share: float) -> float:
    """Between idle and nearly the limit, in proportion to the busy share."""
    return limits.idle_watts + (FULL_LOAD_OF_LIMIT * limits.limit_watts - limits.idle_watts) * share


def temperature_celsius(limits: CardLimits, previous: float, watts: float, seconds: float) -> float:
    """The temperature `seconds` later: it follows the power with a lag."""
    span = FULL_LOAD_OF_LIMIT * limits.limit_watts - limits.idle_watts
    load = (watts - limits.idle_watts) / span if span > 0 else 0.0
    goal = limits.idle_celsius + (limits.full_load_celsius - limits.idle_celsius) * max(0.0, load)
    return goal + (previous - goal) * math.exp(-max(0.0, seconds) / TEMPERATURE_SECONDS)


def clock_megahertz(limits: CardLimits, share: float) -> float:
    """A card raises its SM clock to the top as soon as it has work, and drops it when it has none."""
    return limits.full_megahertz if share >= IDLE_SHARE else limits.idle_megahertz


def all_reduce_bytes_per_token(shape: ModelShape, tensor_parallel_size: int) -> float:
    """Bytes that each rank sends (and receives) over NVLink for one token that goes through the model.

    A tensor-parallel transformer reduces the hidden state of every token over all ranks twice in each layer (behind the
    attention's output projection and behind the MLP's down projection: Megatron-LM, arXiv 1909.08053) and once behind the
    vocabulary-parallel embedding. A ring all-reduce of S bytes over n ranks sends 2·(n−1)/n·S from each. The gathering of
    logits, one row for each sampled token, is left out.
    """
    if tensor_parallel_size < 2:
        return 0.0
    reduced = (2 * shape.num_hidden_layers + 1) * shape.hidden_size * shape.element_bytes
    return 2 * (tensor_parallel_size - 1) / tensor_parallel_size * reduced


# vLLM's counters of tokens that went through the model: prompt tokens that were not in a cache, and generated ones.
_COMPUTED_PROMPT = "vllm:prompt_tokens_by_source_total{"
_GENERATED = "vllm:generation_tokens_total"


def computed_tokens(page: Iterable[str]) -> float | None:
    """Tokens that went through the model since the server began, from its metrics page (vLLM 0.11 and newer); None when the
    page does not have them."""
    prompt: float | None = None
    generated: float | None = None
    for line in page:
        if line.startswith(_COMPUTED_PROMPT) and 'source="local_compute"' in line:
            prompt = (prompt or 0.0) + float(line.rsplit(" ", 1)[1])
        elif line.startswith(_GENERATED):
            generated = (generated or 0.0) + float(line.rsplit(" ", 1)[1])
    return None if prompt is None or generated is None else prompt + generated
