"""What exactly is sent: the steps of a profile, and one hash that is equal when, and only when, two runs sent the same.

The prompts themselves are not kept. vLLM's generator (`--dataset-name random`, 0.32) draws them from a seed and the model's vocabulary, so
its version, the tokenizer and what it is told stand for them. Pure but for reading the tokenizer's files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from poise.testbed.bench.profile import LoadProfile, requests_of

GENERATOR = "vllm bench serve --dataset-name random"
ENDPOINT = "/v1/completions"
# Each step of a ramp draws other prompts, or the second would find those of the first in the prefix cache. Repetitions of a
# comparison count up by one.
SEED_STRIDE = 1000
# What decides how a Hugging Face tokenizer splits text.
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "tokenizer.model")


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One run of the client. `rate` in requests a second, None in a closed loop."""

    requests: int
    rate: float | None
    seed: int


@dataclass(frozen=True, slots=True)
class Workload:
    """`generator` and `generator_version` name the program that draws the prompts, `tokenizer` the SHA-256 of its files, or the model's
    name where they are not local. `slo` takes no part in the hash: it judges what was sent."""

    profile: LoadProfile
    steps: tuple[StepPlan, ...]
    generator: str
    generator_version: str
    tokenizer: str

    def as_dict(self) -> dict[str, object]:
        """For the file of a run, the hash included."""
        return {**self.sent(), "sha256": self.sha256}

    def sent(self) -> dict[str, object]:
        """All that decides what is sent and when."""
        return {
            "generator": self.generator,
            "generator_version": self.generator_version,
            "tokenizer": self.tokenizer,
            "endpoint": ENDPOINT,
            "greedy": True,
            "ignore_eos": True,
            "seed": self.profile.seed,
            "prompts": asdict(self.profile.prompts),
            "arrival": {
                "concurrency": self.profile.arrival.concurrency,
                "rates": list(self.profile.arrival.rates),
                "burstiness": self.profile.arrival.burstiness,
            },
            "requests": [step.requests for step in self.steps],
            "warmup_requests": self.profile.warmup_requests,
        }

    @property
    def sha256(self) -> str:
        return sha256_of(self.sent())


def sha256_of(sent: Mapping[str, object]) -> str:
    """Of a workload as JSON with sorted keys, its own key `sha256` left out."""
    told = {key: value for key, value in sent.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def plan_workload(profile: LoadProfile, generator_version: str, tokenizer: str) -> Workload:
    """The steps of a profile: one for each rate, or the one of a closed loop."""
    rates: tuple[float | None, ...] = profile.arrival.rates or (None,)
    steps = tuple(StepPlan(requests_of(profile, rate), rate, profile.seed + SEED_STRIDE * number) for number, rate in enumerate(rates))
    return Workload(profile, steps, GENERATOR, generator_version, tokenizer)


def tokenizer_fingerprint(model: str) -> str:
    """SHA-256 over the tokenizer's files of a local model, in the order of TOKENIZER_FILES; else the model's name."""
    folder = Path(model)
    present = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    if not present:
        return model
    digest = hashlib.sha256()
    for path in present:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()
