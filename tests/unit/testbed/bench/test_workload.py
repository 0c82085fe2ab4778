"""What is sent, and the hash that says whether two runs sent the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.testbed.bench import profile
from poise.testbed.bench.profile import Overrides
from poise.testbed.bench.workload import SEED_STRIDE, Workload, plan_workload, tokenizer_fingerprint

CHAT = profile.load("chat", "cpu")


def planned(**options: object) -> Workload:
    return plan_workload(profile.changed(CHAT, Overrides(**options)), "0.32.0", "t")  # type: ignore[arg-type]  # by name


def test_the_same_profile_and_seed_are_the_same_workload() -> None:
    assert planned().sha256 == planned().sha256
    assert planned().as_dict()["sha256"] == planned().sha256


@pytest.mark.parametrize("options", [{"seed": 2}, {"requests": 65}, {"input_tokens": 97}, {"concurrency": 9}, {"warmup_requests": 0}])
def test_whatever_changes_what_is_sent_changes_the_hash(options: dict[str, object]) -> None:
    assert planned(**options).sha256 != planned().sha256


def test_generator_and_tokenizer_belong_to_the_workload_and_limits_do_not() -> None:
    other = plan_workload(CHAT, "0.33.0", "t")
    assert other.sha256 != planned().sha256 != plan_workload(CHAT, "0.32.0", "u").sha256
    assert plan_workload(replace(CHAT, slo=(("ttft", 5.0),)), "0.32.0", "t").sha256 == planned().sha256


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_seeds_that_differ_never_share_a_hash(first: int, second: int) -> None:
    assert (planned(seed=first).sha256 == planned(seed=second).sha256) == (first == second)


def test_each_step_of_a_ramp_draws_other_prompts() -> None:
    steps = plan_workload(profile.load("ramp", "cpu"), "0.32.0", "t").steps
    assert [step.seed for step in steps] == [1 + SEED_STRIDE * number for number in range(len(steps))]
    assert [step.requests for step in steps] == [round(8 * step.rate) for step in steps if step.rate]


def test_a_tokenizer_is_known_by_its_files_and_else_by_the_name_of_its_model(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    before = tokenizer_fingerprint(str(tmp_path))
    assert len(before) == 64
    (tmp_path / "README.md").write_text("no part of it")
    assert tokenizer_fingerprint(str(tmp_path)) == before
    (tmp_path / "merges.txt").write_text("a b")
    assert tokenizer_fingerprint(str(tmp_path)) != before
    assert tokenizer_fingerprint("Qwen/Qwen2.5-0.5B-Instruct") == "Qwen/Qwen2.5-0.5B-Instruct"
