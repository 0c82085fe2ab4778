"""Server-level series of an engine: what is published of a living, a loading, a gone and a remote one; roles that contradict."""

from __future__ import annotations

from dataclasses import replace

from poise.exporter import metrics as m
from poise.exporter.engine_readings import engine_readings
from poise.exporter.engines.dialects import read_page, wanted
from poise.exporter.engines.page import PageParser
from poise.exporter.metrics import ALL, Metric, Owner
from poise.exporter.snapshot import Engine, EngineConfig, EngineIdentity, EnginePage, Libraries, ObservedEngine, Pod, Readings, Role

from tests.recorded import CAPTURES

CONFIG = EngineConfig(
    model="qwen",
    model_path="/models/qwen",
    dtype="bfloat16",
    max_model_len=4096,
    max_num_seqs=16,
    max_num_batched_tokens=8192,
    gpu_memory_utilization=0.8,
    tensor_parallel_size=2,
)


def page(name: str, version: str = "0.32.0") -> EnginePage:
    return read_page(PageParser(wanted).parse((CAPTURES / f"{name}.prom").read_bytes()), version, 100.0, 0.25)


def engine(**changes: object) -> Engine:
    observed = ObservedEngine(
        EngineIdentity("n:8000", "chat", Role.MIXED, "default", "argv"),
        CONFIG,
        url="http://127.0.0.1:8000",
        pid=1,
        process_up=True,
        start_time=50.0,
        rtt=0.001,
        client_connections=3,
    )
    return Engine(replace(observed, **changes), used=frozenset({"GPU-0"}), local_world_size=2, source="processes")  # type: ignore[arg-type]  # as given


def labels_of(readings: Readings, metric: Metric) -> dict[str, str]:
    ((values, number),) = readings[metric].items()
    assert number == 1.0
    return dict(zip(metric.labels, values, strict=True))


def test_a_living_engine_publishes_all_it_knows() -> None:
    readings = engine_readings(engine(page=page("tp2-server-after"), gpus_meant=2), 2)
    plain = {metric: values[()] for metric, values in readings.items() if () in values}
    assert plain == {
        m.ENGINE_UP: 1,
        m.ENGINE_PROCESS_UP: 1,
        m.ENGINE_START_TIME: 50,
        m.ENGINE_RTT: 0.001,
        m.ENGINE_SCRAPE_DURATION: 0.25,
        m.ENGINE_WORLD_SIZE: 2,
        m.ENGINE_LOCAL_WORLD_SIZE: 2,
        m.ENGINE_GPUS_VISIBLE: 2,
        m.ENGINE_GPUS_USED: 1,
        m.ENGINE_GPUS_MEANT: 2,
        m.ENGINE_MAX_NUM_SEQS: 16,
        m.ENGINE_MAX_NUM_BATCHED_TOKENS: 8192,
        m.ENGINE_GPU_MEMORY_UTILIZATION: 0.8,
        m.ENGINE_CLIENT_CONNECTIONS: 3,
    }
    assert readings[m.ENGINE_PARALLEL_SIZE] == {("tensor",): 2, ("pipeline",): 1, ("data",): 1}
    assert readings[m.ENGINE_HTTP_REQUESTS] == {("2xx",): 128}
    info = labels_of(readings, m.ENGINE_INFO)
    assert (info["version"], info["model"], info["model_path"], info["max_model_len"]) == ("0.32.0", "qwen", "/models/qwen", "4096")
    assert (info["block_size"], info["kv_cache_dtype"], info["revision"]) == ("128", "auto", "")


def test_an_engine_known_by_url_only_says_nothing_of_processes_and_sizes() -> None:
    remote = engine(pid=None, process_up=None, start_time=None, config=EngineConfig(), page=page("single-server-after"))
    readings = engine_readings(replace(remote, used=None, local_world_size=None), None)
    assert set(readings) == {
        m.ENGINE_INFO,
        m.ENGINE_UP,
        m.ENGINE_RTT,
        m.ENGINE_SCRAPE_DURATION,
        m.ENGINE_HTTP_REQUESTS,
        m.ENGINE_GPU_MEMORY_UTILIZATION,
    }
    assert labels_of(readings, m.ENGINE_INFO)["model"] == "tiny"
    assert readings[m.ENGINE_GPU_MEMORY_UTILIZATION] == {(): 0.92}


def test_a_loading_engine_is_there_and_not_up() -> None:
    readings = engine_readings(engine(page=None, rtt=None), None)
    assert readings[m.ENGINE_UP] == {(): 0}
    assert readings[m.ENGINE_PROCESS_UP] == {(): 1}
    assert not {m.ENGINE_RTT, m.ENGINE_SCRAPE_DURATION, m.ENGINE_GPUS_VISIBLE, m.ENGINE_HTTP_REQUESTS} & set(readings)


def test_a_living_engine_that_is_not_asked_is_neither_up_nor_down() -> None:
    readings = engine_readings(engine(page=None, url=None), 2)
    assert m.ENGINE_UP not in readings
    assert readings[m.ENGINE_PROCESS_UP] == {(): 1}
    gone = engine_readings(engine(page=None, url=None, process_up=False), None)
    assert (gone[m.ENGINE_UP], gone[m.ENGINE_PROCESS_UP]) == ({(): 0}, {(): 0})
    assert set(gone) == {m.ENGINE_INFO, m.ENGINE_UP, m.ENGINE_PROCESS_UP, m.ENGINE_RTT}


def test_missing_families_are_published_by_our_names() -> None:
    readings = engine_readings(engine(page=page("api2-server-after")), 2)
    assert readings[m.ENGINE_MISSING_INFO] == {("poise_engine_iteration_tokens",): 1}


def test_readings_are_declared_with_as_many_labels() -> None:
    for capture in ("tp2-server-after", "pd-decode-after"):
        for metric, series in engine_readings(engine(page=page(capture)), 2).items():
            assert metric.owner is Owner.ENGINE
            assert all(len(own) == len(metric.labels) for own in series)


def test_libraries_of_the_engine_are_published_where_it_has_loaded_any() -> None:
    loaded = engine_readings(engine(page=page("single-server-after"), libraries=Libraries("2.27.3", "12.9", "12.8", "570.1")), 2)
    assert labels_of(loaded, m.ENGINE_NCCL_INFO) == {"nccl": "2.27.3", "cuda_runtime": "12.9"}
    assert m.ENGINE_NCCL_INFO not in engine_readings(engine(libraries=Libraries()), 2)
    assert m.ENGINE_NCCL_INFO not in engine_readings(engine(process_up=False, libraries=Libraries("2.27.3")), 2)


def test_every_server_level_series_is_filled_by_some_engine() -> None:
    contradicting = replace(page("api2-server-after"), missing=("x",))
    identity = EngineIdentity("n", "n", Role.DECODE, "argv", "argv")
    inside = {"pod": Pod("chat", "vllm-0", "vllm"), "libraries": Libraries("2.27.3", "12.9")}
    filled = set(engine_readings(engine(page=contradicting, identity=identity, gpus_meant=2, **inside), 2))
    assert {metric for metric in ALL if metric.owner is Owner.ENGINE} - filled == {m.ENGINE_GPU_INFO}
