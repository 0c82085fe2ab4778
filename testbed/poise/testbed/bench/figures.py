"""The figures of one step, from the result that `vllm bench serve` writes (0.32, benchmarks/serve.py: milliseconds there, seconds here).

Owns what a latency, a throughput and an error is in the file of a run. Pure. A figure without a sample is absent, never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from poise.exporter.logs import visible
from poise.testbed.bench.client import LONGEST_WORDS, METRICS, PERCENTILES
from poise.testbed.bench.schema import LARGEST
from poise.testbed.errors import TestbedError

# Of tens of thousands of failed requests, the kinds that are told.
KEPT_ERRORS = 10
# Under which name each of the client's lists of samples stands in its result; time per output token is reckoned from the others.
_SAMPLES = {"ttft": "ttfts", "tpot": "itls", "itl": "itls", "e2el": "latencies"}


@dataclass(frozen=True, slots=True)
class Latency:
    """In seconds."""

    mean: float
    std: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class StepFigures:
    """What the client saw. Rates per second over `duration_seconds`, from the first request sent to the last answer; `goodput` counts the
    requests a second within all limits, None when none were given. `latency` by "ttft", "tpot", "itl", "e2el". `errors` by text.
    `raw` holds every number of the client's own result under its own name."""

    duration_seconds: float
    completed: int
    failed: int
    input_tokens: int
    output_tokens: int
    requests_per_second: float
    output_tokens_per_second: float
    total_tokens_per_second: float
    goodput: float | None
    latency: Mapping[str, Latency]
    errors: Mapping[str, int]
    raw: Mapping[str, float]


def read_result(result: Mapping[str, object]) -> StepFigures:
    """Raises TestbedError when the result lacks a figure that every version has had, or it is no number. A latency that is NaN is absent."""
    raw = {name: value for name, value in result.items() if isinstance(value, int | float) and _is_number(value)}
    try:
        completed = int(raw["completed"])
        return StepFigures(
            duration_seconds=raw["duration"],
            completed=completed,
            failed=int(raw["failed"]),
            input_tokens=int(raw["total_input_tokens"]),
            output_tokens=int(raw["total_output_tokens"]),
            requests_per_second=raw["request_throughput"],
            output_tokens_per_second=raw["output_throughput"],
            total_tokens_per_second=raw["total_token_throughput"],
            goodput=raw.get("request_goodput"),
            latency={
                name: _latency(raw, name)
                for name in METRICS
                if completed and _sampled(result.get(_SAMPLES[name])) and _is_known(result, name)
            },
            errors=_errors(result.get("errors")),
            raw=raw,
        )
    except KeyError as error:
        raise TestbedError(f"the result of `vllm bench serve` lacks {error}: this version of vLLM is not known yet") from None


def _latency(raw: Mapping[str, float], name: str) -> Latency:
    shares = {f"p{share}": raw[f"p{share}_{name}_ms"] / 1000 for share in PERCENTILES}
    return Latency(mean=raw[f"mean_{name}_ms"] / 1000, std=raw[f"std_{name}_ms"] / 1000, **shares)


def _is_number(value: float) -> bool:
    """Not NaN, not infinite, no switch. The client's JSON holds all of them as numpy has them."""
    return not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def _is_known(result: Mapping[str, object], name: str) -> bool:
    """Whether none of a latency's figures is there and no number."""
    keys = [f"{kind}_{name}_ms" for kind in ("mean", "std", *(f"p{share}" for share in PERCENTILES))]
    return all(isinstance(value, int | float) and _is_number(value) for key in keys if (value := result.get(key)) is not None)


def _sampled(samples: object) -> bool:
    """Whether there is any sample: the client writes 0 where there is none. Latencies between tokens are a list for each request."""
    return isinstance(samples, list) and any(bool(sample) for sample in samples)


def _errors(texts: object) -> dict[str, int]:
    """How often each error came, by the last line of its text (some are whole tracebacks), the most frequent first."""
    if not isinstance(texts, list):
        return {}
    lines = [visible(text.strip().splitlines()[-1].strip())[:LONGEST_WORDS] for text in texts if isinstance(text, str) and text.strip()]
    return dict(Counter(lines).most_common(KEPT_ERRORS))
