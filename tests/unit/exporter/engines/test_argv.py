"""Command lines of vLLM servers, and of programs that only look like one; values that make no sense; secrets."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.exporter.engines.argv import ServerCommand, clean, flag_names, human_integer, parse_server
from poise.exporter.engines.program import server_arguments

from tests.fake_proc import recorded_processes
from tests.recorded import INFO

SERVE = ["/opt/vllm/bin/python", "/opt/vllm/bin/vllm", "serve"]
MODULE = ["python3", "-m", "vllm.entrypoints.openai.api_server"]


def parsed(*arguments: str) -> ServerCommand:
    command = parse_server([*SERVE, *arguments])
    assert command is not None
    return command


@pytest.mark.parametrize(
    "argv",
    [
        ["vllm", "serve", "m"],
        ["/usr/local/bin/vllm", "serve", "m"],
        ["/usr/bin/python3.11", "/usr/local/bin/vllm", "serve", "m"],
        ["python", "-u", "-X", "dev", "-W", "ignore", "/usr/bin/vllm", "serve", "m"],
        ["python", "-m", "vllm", "serve", "m"],
        ["python", "-m", "vllm.entrypoints.cli.main", "serve", "m"],
        ["python", "-mvllm.entrypoints.openai.api_server", "--model", "m"],
        ["python", "/site-packages/vllm/entrypoints/openai/api_server.py", "--model", "m"],
        ["pypy3", "-m", "vllm.entrypoints.openai.api_server", "--model=m"],
    ],
)
def test_ways_to_start_a_server(argv: list[str]) -> None:
    command = parse_server(argv)
    assert command is not None
    assert command.config.model == "m"


@pytest.mark.parametrize(
    "argv",
    [
        [],
        [""],
        ["bash", "-c", "vllm serve m --port 8000"],
        ["sh", "-c", "exec vllm serve m"],
        ["timeout", "60", "vllm", "serve", "m"],
        ["vim", "vllm", "serve"],
        ["grep", "-r", "vllm serve", "."],
        ["grep", "vllm.entrypoints.openai.api_server"],
        ["tail", "-f", "/var/log/vllm"],
        ["python", "-c", "import vllm", "serve"],
        ["python", "-", "vllm", "serve"],
        ["python", "bench.py", "vllm", "serve", "m"],
        ["python", "-m", "pytest", "vllm", "serve"],
        ["python", "-m", "http.server"],
        ["python", "-m"],
        ["python"],
        ["vllm"],
        ["vllm", "bench", "serve", "--model", "m"],
        ["vllm", "chat"],
        ["vllm-router", "--prefill", "http://a", "serve"],
        ["vllm::router"],
        ["docker", "run", "vllm/vllm-openai", "vllm", "serve", "m"],
        ["uv", "run", "vllm", "serve", "m"],
        ["vllm", "serve", "--help"],
        ["vllm", "serve", "-h"],
    ],
)
def test_other_programs_are_no_server(argv: list[str]) -> None:
    assert parse_server(argv) is None


def test_model_and_its_served_name() -> None:
    config = parsed("/models/qwen", "--served-model-name", "qwen", "alias").config
    assert (config.model, config.model_path) == ("qwen", "/models/qwen")
    assert parsed("/models/qwen").config.model == "/models/qwen"
    assert parsed("--model", "m").config.model_path == "m"
    assert parsed("--port", "1", "m").config.model_path == "m"
    assert parsed("--headless", "m").config.model_path == "m"


def test_every_flag_of_the_allow_list_is_read() -> None:
    command = parsed(
        "m",
        *[
            "--revision",
            "r",
            "--dtype",
            "bfloat16",
            "--quantization",
            "fp8",
            "--kv-cache-dtype",
            "fp8_e5m2",
            "--block-size",
            "32",
            "--max-model-len",
            "32k",
        ],
        *[
            "--max-num-seqs",
            "128",
            "--max-num-batched-tokens",
            "8K",
            "--gpu-memory-utilization",
            "0.85",
            "-tp",
            "4",
            "-pp=2",
            "--data-parallel-size=3",
        ],
        *[
            "-dpl",
            "1",
            "--nnodes",
            "2",
            "--node-rank",
            "1",
            "--master-addr",
            "10.0.0.1",
            "--headless",
            "--host",
            "0.0.0.0",
            "--port",
            "9000",
        ],
        *["--distributed-executor-backend", "mp", "--ssl-certfile", "/etc/cert.pem", "--uds", "/run/v.sock"],
    )
    config = command.config
    assert (config.revision, config.dtype, config.quantization, config.kv_cache_dtype) == ("r", "bfloat16", "fp8", "fp8_e5m2")
    assert (config.block_size, config.max_model_len, config.max_num_seqs, config.max_num_batched_tokens) == (32, 32_000, 128, 8192)
    assert config.gpu_memory_utilization == 0.85
    assert (config.tensor_parallel_size, config.pipeline_parallel_size, config.data_parallel_size, config.world_size) == (4, 2, 3, 24)
    assert (config.data_parallel_size_local, config.nnodes, config.node_rank, config.headless) == (1, 2, 1, True)
    assert (config.host, config.port, config.distributed_executor_backend) == ("0.0.0.0", 9000, "mp")
    assert (command.tls, command.unix_socket, command.master_address, command.problems) == (True, True, "10.0.0.1", ())


def test_underscores_abbreviations_and_the_last_of_a_repeated_flag() -> None:
    assert parsed("m", "--tensor_parallel_size", "2").config.tensor_parallel_size == 2
    assert parsed("m", "--tensor_parallel_size=2").config.tensor_parallel_size == 2
    assert parsed("m", "--tensor-par", "2").config.tensor_parallel_size == 2
    assert parsed("m", "-tp", "2", "-tp", "4").config.tensor_parallel_size == 4
    # Ambiguous (max-num-seqs, max-num-batched-tokens): argparse refuses it, so it is not guessed.
    assert parsed("m", "--max-num", "2").config.max_num_seqs is None


def test_defaults_where_nothing_is_said() -> None:
    config = parsed("m").config
    assert (config.tensor_parallel_size, config.port, config.kv_role, config.max_num_seqs, config.headless) == (1, None, None, None, False)


def test_connector_from_json_and_from_dotted_flags() -> None:
    document = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_producer", "kv_buffer_device": "cpu", "secret": "sk-1"})
    for arguments in (
        ["--kv-transfer-config", document],
        [f"--kv-transfer-config={document}"],
        ["--kv_transfer_config", document],
        ["--kv-transfer-config.kv_connector", "NixlConnector", "--kv-transfer-config.kv_role=kv_producer"],
        ["--kv-transfer-config.kv-connector", "NixlConnector", "--kv-transfer-config.kv-role", "kv_producer"],
    ):
        config = parsed("m", *arguments).config
        assert (config.kv_connector, config.kv_role) == ("NixlConnector", "kv_producer")
    assert parsed("m", "--kv-transfer-config", document, "--kv-transfer-config.kv_role", "kv_both").config.kv_role == "kv_both"


@pytest.mark.parametrize("document", ["{", "[]", '"x"', "null", "", '{"kv_role": 1}', "[" * 5000])
def test_a_broken_connector_document_is_told_and_not_shown(document: str) -> None:
    command = parsed("m", "--kv-transfer-config", document)
    assert (command.config.kv_connector, command.config.kv_role) == (None, None)
    assert all("sk-" not in problem for problem in command.problems)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["-tp", "many"], "--tensor-parallel-size=many is not a number from 1 up"),
        (["-tp", "0"], "--tensor-parallel-size=0 is not a number from 1 up"),
        (["--max-num-seqs", "1e9"], "--max-num-seqs=1e9 is not a number from 1 up"),
        (["--gpu-memory-utilization", "90"], "--gpu-memory-utilization=90 is not a share between 0 and 1"),
        (["--port", "70000"], "--port=70000 is not a port"),
        (["--port"], "--port is given without a value"),
        (["-tp", "--port", "8000"], "-tp is given without a value"),
        (["--config", "/etc/v.yaml"], "--config names a file, which Poise does not read: what only it sets is unknown"),
    ],
)
def test_values_that_make_no_sense_are_remembered(arguments: list[str], problem: str) -> None:
    command = parsed("m", *arguments)
    assert command.problems == (problem,)
    assert command.config.tensor_parallel_size == 1


def test_lengths_that_vllm_chooses_are_unknown_and_no_problem() -> None:
    for value in ("auto", "-1"):
        command = parsed("m", "--max-model-len", value)
        assert (command.config.max_model_len, command.problems) == (None, ())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("1k", 1000),
        ("1K", 1024),
        ("25.6k", 25_600),
        ("2M", 2_097_152),
        ("1.5K", None),
        ("1.5", None),
        ("", None),
        ("k", None),
        ("1kk", None),
        ("٣", None),
    ],
)
def test_numbers_as_vllm_reads_them(text: str, value: int | None) -> None:
    assert human_integer(text) == value


def test_one_rank_of_an_outside_balanced_group_is_alone_on_its_node() -> None:
    config = parsed("m", "-dp", "8", "--data-parallel-rank", "3").config
    assert (config.data_parallel_size, config.data_parallel_size_local) == (8, 1)


def test_ray_as_data_parallel_backend_is_told() -> None:
    assert parsed("m", "-dp", "4", "--data-parallel-backend", "ray").config.distributed_executor_backend == "ray"


SECRETS = ["sk-planted-key", "hf_planted", "planted-password"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["m", "--api-key", "sk-planted-key"],
        ["m", "--api-key=sk-planted-key"],
        ["m", "--api_key", "sk-planted-key", "hf_planted"],
        ["--api-key", "sk-planted-key"],
        ["--port", "8000", "--api-key", "sk-planted-key"],
        ["--headless", "--hf-token", "hf_planted"],
        ["--model", "https://user:planted-password@host/m"],
        ["s3://key:planted-password@bucket/m?token=hf_planted"],
        ["m", "--served-model-name", "x", "sk-planted-key"],
        ["m", "--hf-overrides", '{"token": "hf_planted"}'],
        ["m", "--kv-transfer-config", '{"kv_connector": "C", "kv_connector_extra_config": {"password": "planted-password"}}'],
        ["m", "--kv-transfer-config.kv_connector_extra_config.password", "planted-password"],
        ["m", "--kv-transfer-config", "planted-password"],
        ["m", "--config", "/home/planted-password/v.yaml", "--ssl-certfile", "/hf_planted", "--uds", "/hf_planted"],
    ],
)
def test_secrets_exist_in_no_result(arguments: list[str]) -> None:
    for prefix in (SERVE, MODULE):
        shown = repr(parse_server([*prefix, *arguments]))
        assert not any(secret in shown for secret in SECRETS)


def test_no_flag_of_the_allow_list_carries_a_secret() -> None:
    assert not any(flag.endswith(("key", "token", "password", "secret", "header")) for flag in flag_names())


def test_a_value_becomes_one_short_line() -> None:
    assert clean("a\nb\x00c") == "a b c"
    assert len(clean("x" * 10_000)) == 256
    assert clean("http://u:p@h/x#frag") == "http://h/x"


def test_the_recorded_servers() -> None:
    servers = {}
    for recording in sorted(INFO.glob("*-proctree.txt")):
        for pid, _, _, argv in recorded_processes(recording):
            command = parse_server(argv)
            if command is not None:
                servers[pid] = command
    assert {command.config.port for command in servers.values()} == {18000, 18100, 18200}
    assert {command.config.model for command in servers.values()} == {"tiny", "/models/tiny-qwen2"}
    assert {command.config.kv_role for command in servers.values()} == {None, "kv_producer", "kv_consumer"}
    assert len(servers) == 8


ARGUMENT = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [
            "--model",
            "-tp",
            "-tp=2",
            "--port",
            "--kv-transfer-config",
            "--kv-transfer-config.kv_role",
            "--served-model-name",
            "--headless",
            "-1",
            "8k",
            "{}",
        ]
    ),
)


@given(st.lists(ARGUMENT, max_size=12), st.sampled_from([SERVE, MODULE, ["vllm", "serve"]]))
def test_no_command_line_breaks_the_reader(arguments: list[str], prefix: list[str]) -> None:
    command = parse_server([*prefix, *arguments])
    assert command is None or command.config.tensor_parallel_size >= 1


@given(st.lists(st.text(max_size=10), max_size=6))
def test_no_words_break_the_recognition(argv: list[str]) -> None:
    server_arguments(argv)


@given(st.integers(1, 512), st.integers(1, 64), st.integers(1, 65535), st.booleans())
def test_flags_mean_the_same_in_both_spellings(tensor: int, pipeline: int, port: int, joined: bool) -> None:
    pairs = [("--tensor-parallel-size", tensor), ("--pipeline-parallel-size", pipeline), ("--port", port)]
    arguments = [item for flag, value in pairs for item in ([f"{flag}={value}"] if joined else [flag, str(value)])]
    config = parsed("m", *arguments).config
    assert (config.tensor_parallel_size, config.pipeline_parallel_size, config.port) == (tensor, pipeline, port)
