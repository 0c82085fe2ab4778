"""Arguments that a user may not give to vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest
from poise.testbed import vllm_arguments
from poise.testbed.errors import TestbedError

# Every flag of `vllm serve` 0.32.0 (the option strings of make_arg_parser of vllm/entrypoints/launchers/cli_args.py), one a line.
FLAGS = (Path(__file__).parent / "recorded" / "vllm_0.32_serve_flags.txt").read_text(encoding="utf-8").split()
REFUSED = {*vllm_arguments.SECRET, *vllm_arguments.PLANNED}


@pytest.mark.parametrize(
    "argument",
    ["--api-key", "--api-key=sk-planted", "--api_key=sk-planted", "--hf-token=hf_planted", "--api-ke=planted", "--api_k=planted", "--hf-t"],
)
def test_arguments_that_carry_a_secret_are_refused_without_repeating_it(argument: str) -> None:
    with pytest.raises(TestbedError, match="set VLLM_API_KEY or HF_TOKEN") as caught:
        vllm_arguments.check(["--max-num-seqs=2", argument])
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize(
    ("argument", "way_out"),
    [
        ("--tensor-parallel-size=4", "set tensor_parallel_size in a shape of your own"),
        ("--tensor_parallel_size=4", "set tensor_parallel_size in a shape of your own"),
        ("--tensor-parallel=4", "set tensor_parallel_size in a shape of your own"),
        ("-pp", "set pipeline_parallel_size in a shape of your own"),
        ("-t", "set tensor_parallel_size in a shape of your own"),
        ("-n4", "the testbed is one node"),
        ("--port", "give --port PART=PORT"),
        ("--data-parallel-size=2", "the testbed has no data parallelism: take several engines"),
        ("--data-parallel-size-l", "the testbed has no data parallelism: take several engines"),
        ("--kv-transfer-config.kv_role=kv_both", "set role and kv_connector in a shape of your own"),
        ("--kv_transfer.kv_role", "set role and kv_connector in a shape of your own"),
        ("--config", "a file of vLLM's arguments may hold any of them"),
    ],
)
def test_what_the_plan_decides_is_not_given_past_it(argument: str, way_out: str) -> None:
    with pytest.raises(TestbedError, match=f"is decided by the plan of the deployment: {way_out}"):
        vllm_arguments.check([argument, "4"])


def test_a_short_word_is_told_with_what_it_is_short_for() -> None:
    with pytest.raises(TestbedError, match=r"^--tensor-parallel \(short for --tensor-parallel-size\) is decided by the plan"):
        vllm_arguments.check(["--tensor_parallel=2"])
    with pytest.raises(TestbedError, match=r"^--gpu-mem \(short for --gpu-memory-utilization\) is read by the plan .*: write it out"):
        vllm_arguments.check(["--gpu-mem=0.5"])
    vllm_arguments.check(["--gpu-memory-utilization=0.5", "--device-memory-utilization", "0.5"])


def test_every_other_flag_of_vllm_may_be_given() -> None:
    assert len(FLAGS) > 400
    refused = set()
    for flag in FLAGS:
        try:
            vllm_arguments.check([f"{flag}=1"])
        except TestbedError:
            refused.add(flag)
    assert refused == REFUSED & set(FLAGS)


def test_every_word_that_vllm_would_take_for_a_refused_flag_is_refused() -> None:
    """argparse takes a beginning for the one flag that begins so, and a whole flag for itself."""
    tried = 0
    for flag in REFUSED & set(FLAGS):
        for word in (flag[:length] for length in range(2 + flag.startswith("--"), len(flag) + 1)):
            if word in FLAGS and word not in REFUSED:
                continue
            tried += 1
            for spelling in (word, f"--{word[2:].replace('-', '_')}" if word.startswith("--") else word):
                with pytest.raises(TestbedError):
                    vllm_arguments.check([f"{spelling}=x"])
    assert tried > 100


@pytest.mark.parametrize(
    "argument",
    [
        '--model-loader-extra-config={"token": "planted-1234"}',
        "--model-loader-extra-config={'aws_secret_access_key':'planted'}",
        "--model-loader-extra-config.token",
        "--model_loader_extra_config.auth.api_key=planted",
        "--model-loader-extra-config.tokens.use_auth_token+=planted",
        '{"hf_token": "planted"}',
        '{"password":"planted"}',
        "Authorization: Bearer planted",
        "--otlp-traces-endpoint=http://user:planted@collector:4317",
        "sk-planted-0123456789",
        "hf_" + "plantedABCDEFGHIJ0123456789",
        "--spec-model=ghp_" + "planted0123456789abcdefABCDEF",
        "AKIA" + "PLANTED012345678",
        "eyJhbGciOiJIUzI1NiJ9.eyJwbGFudGVkIjoxfQ.planted",
        "-----BEGIN PRIVATE KEY-----\nplanted",
    ],
)
def test_a_value_that_looks_like_a_secret_is_refused_without_repeating_it(argument: str) -> None:
    with pytest.raises(TestbedError, match="looks like a secret, which would be written to files") as caught:
        vllm_arguments.check(["--max-num-seqs=2", argument])
    assert "planted" not in str(caught.value).lower()


@pytest.mark.parametrize(
    "argument",
    [
        '--speculative-config={"method": "ngram", "num_speculative_tokens": 3}',
        '--hf-overrides={"eos_token_id": 151645, "pad_token": "<|endoftext|>", "use_cache": true}',
        "--hf_overrides.max_position_embeddings=4096",
        '--compilation-config={"cudagraph_mode": "NONE"}',
        '--allowed-origins=["http://localhost:3000"]',
        '--model-loader-extra-config={"token": null, "password": ""}',
        "--tokenizer-mode=auto",
        "-O3",
        "--long-prefill-token-threshold=64",
        "-1",
        "Qwen/Qwen2.5-0.5B-Instruct",
        "--ssl-keyfile=/etc/key.pem",
    ],
)
def test_what_only_speaks_of_tokens_is_no_secret(argument: str) -> None:
    vllm_arguments.check([argument])


def test_the_last_value_of_a_flag_holds_in_both_spellings_and_under_all_names() -> None:
    given = ["--gpu-memory-utilization", "0.4", "--x", "--gpu_memory_utilization=0.5"]
    assert vllm_arguments.value_of(given, "--gpu-memory-utilization") == "0.5"
    assert vllm_arguments.value_of(given[:3], "--gpu-memory-utilization") == "0.4"
    assert vllm_arguments.value_of(["--gpu-memory-utilization"], "--gpu-memory-utilization") is None
    assert vllm_arguments.value_of([*given, "--device-memory-utilization=0.6"], *vllm_arguments.MEMORY_SHARE) == "0.6"
