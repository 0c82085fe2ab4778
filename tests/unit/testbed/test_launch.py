"""Command lines and environments of the parts."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from poise.testbed import launch
from poise.testbed.paths import StateLayout
from poise.testbed.plan import EnginePlan

from tests.unit.testbed.test_plan import PLAN, SPLIT

LAYOUT = StateLayout(Path("/state"))
ENGINE = EnginePlan("server", 8000, 2, None, ("--max-num-seqs=2",))
USER = {
    "PATH": "/usr/bin",
    "PYTHONPATH": "/somewhere",
    "PYTHONDONTWRITEBYTECODE": "1",
    "VIRTUAL_ENV": "/venv",
    "CUDA_VISIBLE_DEVICES": "3",
    "HF_TOKEN": "hf_planted",
}


def test_a_server_on_cpus_listens_on_loopback_and_gets_a_small_kv_cache() -> None:
    command = launch.engine_command(PLAN, ENGINE, "/models/tiny")
    assert command[:3] == ["/cache/vllm-cpu-1/bin/vllm", "serve", "/models/tiny"]
    pairs = dict(pairwise(command))
    assert (pairs["--host"], pairs["--port"], pairs["--tensor-parallel-size"]) == ("127.0.0.1", "8000", "2")
    assert (pairs["--served-model-name"], pairs["--kv-cache-memory-bytes"]) == ("tiny-qwen2", str(2**27))
    assert command[-1] == "--max-num-seqs=2", "the user's arguments come last and win"


def test_stages_are_asked_for_where_there_are_some() -> None:
    assert "--pipeline-parallel-size" not in launch.engine_command(PLAN, ENGINE, "/models/tiny")
    command = launch.engine_command(PLAN, replace(ENGINE, pipeline_parallel_size=3), "/models/tiny")
    assert dict(pairwise(command))["--pipeline-parallel-size"] == "3"


def test_ranks_are_bound_to_the_cores_of_the_plan() -> None:
    assert launch.engine_environment(PLAN, ENGINE, LAYOUT, USER)["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    bound = launch.engine_environment(PLAN, replace(ENGINE, cpu_binding="4|5"), LAYOUT, USER)
    assert (bound["VLLM_CPU_OMP_THREADS_BIND"], bound["VLLM_WORKER_MULTIPROC_METHOD"]) == ("4|5", "spawn")
    fewer = launch.engine_environment(PLAN, replace(ENGINE, tensor_parallel_size=1, cpu_binding="4,6|5,7"), LAYOUT, USER)
    assert fewer["VLLM_CPU_OMP_THREADS_BIND"] == "4,6", "vLLM refuses a list for more ranks than it has"


def test_a_server_on_gpus_is_left_to_its_own_defaults() -> None:
    command = launch.engine_command(replace(PLAN, build="gpu", served_name="q"), ENGINE, "Qwen/Qwen2.5-32B-Instruct")
    assert "--enforce-eager" not in command
    assert "--dtype" not in command


def test_a_server_on_cpus_sees_all_simulated_cards_and_none_of_what_leads_python_astray() -> None:
    environ = launch.engine_environment(PLAN, ENGINE, LAYOUT, USER)
    assert not {"CUDA_VISIBLE_DEVICES", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV"} & environ.keys()
    assert Path(environ["PYTHONPATH"], "sitecustomize.py").exists()
    assert environ["TMPDIR"] == "/state/tmp"
    assert environ["PATH"] == "/cache/vllm-cpu-1/bin:/usr/bin"
    assert environ["HF_HUB_OFFLINE"] == "1"
    assert environ["VLLM_WORKER_MULTIPROC_METHOD"] == "fork"
    spawning = launch.engine_environment(PLAN, ENGINE, LAYOUT, {**USER, "VLLM_WORKER_MULTIPROC_METHOD": "spawn"})
    assert spawning["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert "LD_LIBRARY_PATH" not in environ, "vLLM must not meet the simulated library"


def test_the_plan_decides_what_a_server_sees_and_on_gpus_the_user_where_the_plan_does_not() -> None:
    one = replace(ENGINE, cuda_visible_devices="0")
    gpu = replace(PLAN, build="gpu", model="Qwen/Qwen2.5-0.5B-Instruct")
    assert launch.engine_environment(PLAN, one, LAYOUT, USER)["CUDA_VISIBLE_DEVICES"] == "0"
    given = launch.engine_environment(gpu, one, LAYOUT, USER)
    assert (given["CUDA_VISIBLE_DEVICES"], given["CUDA_DEVICE_ORDER"]) == ("0", "PCI_BUS_ID")
    environ = launch.engine_environment(gpu, ENGINE, LAYOUT, USER)
    assert environ["CUDA_VISIBLE_DEVICES"] == "3"
    assert not {"PYTHONPATH", "HF_HUB_OFFLINE", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_WORKER_MULTIPROC_METHOD"} & environ.keys()


def test_prefill_makes_the_kv_cache_and_decode_uses_it_over_side_channels_of_their_own() -> None:
    ports = []
    for engine, role in zip(SPLIT.engines, ("kv_producer", "kv_consumer"), strict=True):
        command = launch.engine_command(SPLIT, engine, "/models/tiny")
        given = json.loads(dict(pairwise(command))["--kv-transfer-config"])
        assert given == {"kv_connector": "NixlConnector", "kv_role": role, "kv_buffer_device": "cpu"}
        environ = launch.engine_environment(SPLIT, engine, LAYOUT, USER)
        assert environ["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "127.0.0.1"
        assert (environ["UCX_TLS"], environ["UCX_NET_DEVICES"]) == ("tcp,self,sm", "lo")
        ports.append(environ["VLLM_NIXL_SIDE_CHANNEL_PORT"])
    assert ports == ["5600", "5700"]


def test_on_gpus_nixl_chooses_where_the_kv_cache_lies_and_how_it_travels() -> None:
    gpu = replace(SPLIT, build="gpu")
    command = launch.engine_command(gpu, gpu.engines[0], "Qwen/Qwen2.5-0.5B-Instruct")
    assert "kv_buffer_device" not in dict(pairwise(command))["--kv-transfer-config"]
    environ = launch.engine_environment(gpu, gpu.engines[0], LAYOUT, USER)
    assert "VLLM_NIXL_SIDE_CHANNEL_PORT" in environ
    assert not {"UCX_TLS", "UCX_NET_DEVICES"} & environ.keys()


def test_a_server_of_both_has_no_side_channel() -> None:
    assert "--kv-transfer-config" not in launch.engine_command(PLAN, ENGINE, "/models/tiny")
    assert not [name for name in launch.engine_environment(PLAN, ENGINE, LAYOUT, USER) if name.startswith(("VLLM_NIXL", "UCX"))]


def test_the_router_knows_who_is_prefill_and_who_decode_and_is_seen_on_loopback_alone() -> None:
    assert SPLIT.router is not None
    command = launch.router_command(SPLIT, SPLIT.router)
    pairs = dict(pairwise(command))
    assert command[0] == "/cache/vllm-cpu-1/bin/vllm-router"
    assert (pairs["--prefill"], pairs["--decode"]) == ("http://127.0.0.1:8100", "http://127.0.0.1:8200")
    assert (pairs["--host"], pairs["--port"], pairs["--prometheus-host"], pairs["--prometheus-port"]) == (
        *("127.0.0.1", "8000"),
        *("127.0.0.1", "29000"),
    )
    environ = launch.router_environment(SPLIT, LAYOUT, USER)
    assert not {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV"} & environ.keys()
    assert environ["TMPDIR"] == "/state/tmp"


def test_usage_reports_to_others_are_off() -> None:
    environ = launch.engine_environment(PLAN, ENGINE, LAYOUT, USER)
    assert (environ["VLLM_NO_USAGE_STATS"], environ["DO_NOT_TRACK"]) == ("1", "1")


def test_the_exporter_expects_the_simulated_cards_and_is_seen_on_loopback_alone() -> None:
    assert launch.exporter_command(9747, 2)[-4:] == ["--listen", "127.0.0.1:9747", "--expected-gpus", "2"]
    assert launch.exporter_command(9747, None)[-2:] == ["--listen", "127.0.0.1:9747"]
