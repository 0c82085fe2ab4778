"""Arguments that a user may not give to vLLM."""

from __future__ import annotations

import pytest
from poise.testbed import vllm_arguments
from poise.testbed.errors import TestbedError


@pytest.mark.parametrize("argument", ["--api-key", "--api-key=sk-planted", "--api_key=sk-planted", "--hf-token=hf_planted"])
def test_arguments_that_carry_a_secret_are_refused_without_repeating_it(argument: str) -> None:
    with pytest.raises(TestbedError, match="set VLLM_API_KEY or HF_TOKEN") as caught:
        vllm_arguments.check(["--max-num-seqs=2", argument])
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize(
    ("argument", "way_out"),
    [
        ("--tensor-parallel-size=4", "set tensor_parallel_size in a shape of your own"),
        ("--tensor_parallel_size=4", "set tensor_parallel_size in a shape of your own"),
        ("-pp", "set pipeline_parallel_size in a shape of your own"),
        ("--port", "give --port PART=PORT"),
        ("--data-parallel-size=2", "the testbed has no data parallelism: take several engines"),
    ],
)
def test_what_the_plan_decides_is_not_given_past_it(argument: str, way_out: str) -> None:
    with pytest.raises(TestbedError, match=f"is decided by the plan of the deployment: {way_out}"):
        vllm_arguments.check([argument, "4"])


def test_the_last_value_of_a_flag_holds_in_both_spellings() -> None:
    given = ["--gpu-memory-utilization", "0.4", "--x", "--gpu_memory_utilization=0.5"]
    assert vllm_arguments.value_of(given, "--gpu-memory-utilization") == "0.5"
    assert vllm_arguments.value_of(given[:3], "--gpu-memory-utilization") == "0.4"
    assert vllm_arguments.value_of(["--gpu-memory-utilization"], "--gpu-memory-utilization") is None
