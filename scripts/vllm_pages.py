"""Writes the metrics page that a given version of vLLM would export, from that version's own source tree, without installing or running vLLM.

    python scripts/vllm_pages.py TREE --engine v1 --ranks 2 > page.prom

TREE is an unpacked source distribution. Its metric classes (vllm/engine/metrics.py of the V0 engine, vllm/v1/metrics/loggers.py and the KV
connectors' statistics of V1) are executed as they are under prometheus_client; all else that they import (torch, the configuration, the
connectors) is replaced by objects that stand for anything. They are then given the work of `WORK` twice for each data-parallel rank, so names,
labels, types, buckets and what the loggers make of their statistics are vLLM's, and the sums are known. Not vLLM's own and written here: the
labels of cache_config_info (vLLM exports all fields of a class that is not loaded) and http_requests_total (from another package).

tests/captures/generations holds the pages; tests need neither this file nor vLLM.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import re
import sys
import tempfile
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

MODEL = "tiny"
BLOCK_SIZE = 16
#: What one iteration of one rank does. Tokens, seconds, requests.
WORK: dict[str, Any] = {
    "running": 3,
    "waiting": 2,
    "deferred": 1,
    "cache_usage": 0.25,
    "queries": 640,
    "hits": 320,
    "external_queries": 100,
    "external_hits": 60,
    "prompt": 700,
    "computed": 320,
    "local_hit": 280,
    "external": 100,
    "generated": 90,
    "preempted": 2,
    "ttft": [0.03, 0.3, 3.0],
    "itl": [0.02, 0.02, 0.04, 0.4],
    "finished": ["stop", "stop", "length"],
    "e2e": 2.0,
    "queue": 0.125,
    "prefill": 0.375,
    "decode": 1.5,
    "inference": 1.875,
    "tpot": 0.05,
    "request_prompt": 200,
    "request_generated": 30,
    "transfer": [0.03, 0.06],
    "transfer_bytes": [65536, 131072],
    "load_bytes": 3_000_000,
    "store_bytes": 7_000_000,
    "drafts": 10,
    "draft_tokens": 30,
    "accepted": 18,
}
ITERATIONS = 2

#: Modules of vLLM that are executed as they stand.
REAL = (
    "vllm.engine.metrics",
    "vllm.engine.metrics_types",
    "vllm.v1.metrics",
    "vllm.v1.engine",
    "vllm.v1.spec_decode.metrics",
    "vllm.distributed.kv_transfer.kv_connector.v1.metrics",
    "vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats",
    "vllm.distributed.kv_transfer.kv_connector.v1.nixl_connector",
    "vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics",
    "vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector",
    "vllm.v1.kv_offload.base",
)
#: Of those, the packages whose other modules are not.
PACKAGES = ("vllm.v1.metrics",)


class _AnythingType(type):
    """The class of classes that stand for anything: base class, decorator, function, namespace, type argument."""

    def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, Any], **_ignored: Any) -> Any:
        return super().__new__(mcs, name, bases, body)

    def __init__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **_ignored: Any) -> None:
        super().__init__(name, bases, body)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _anything(name)

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        if "_stands_for_anything" not in cls.__dict__:
            return super().__call__(*arguments, **keywords)
        # As a decorator it leaves what it decorates.
        return arguments[0] if len(arguments) == 1 and not keywords and inspect.isfunction(arguments[0]) else cls

    def __getitem__(cls, _item: Any) -> Any:
        return cls

    def __or__(cls, _other: Any) -> Any:
        return cls

    __ror__ = __or__

    def __iter__(cls) -> Any:
        return iter(())


def _anything(name: str) -> Any:
    return _AnythingType(name, (), {"_stands_for_anything": True})


class _Stub(types.ModuleType):
    """A module with everything in it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _anything(name)
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the real modules in the tree, and stubs for the rest of vLLM and for what is not installed."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] == "vllm":
            file = self._file(name)
            if file is not None:
                search = [str(file.parent)] if file.name == "__init__.py" else None
                return importlib.util.spec_from_file_location(name, file, submodule_search_locations=search)
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        installed = importlib.machinery.PathFinder.find_spec(name, path, target)
        return installed or importlib.machinery.ModuleSpec(name, self, is_package=True)

    def _file(self, name: str) -> Path | None:
        if name not in REAL and name.rpartition(".")[0] not in PACKAGES:
            return None
        place = self.tree.joinpath(*name.split("."))
        return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        stub = _Stub(spec.name)
        stub.__path__ = []
        return stub

    def exec_module(self, module: types.ModuleType) -> None:
        return


class _Settings(types.SimpleNamespace):
    """A configuration whose other values are None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def configuration(*, tokens_known: bool) -> Any:
    """What the loggers read of vLLM's configuration. `tokens_known`: cache_config_info tells kv_cache_size_tokens (vLLM 0.24 and newer)."""
    cache = {
        "block_size": str(BLOCK_SIZE),
        "cache_dtype": "auto",
        "enable_prefix_caching": "True",
        "gpu_memory_utilization": "0.9",
        "num_cpu_blocks": "0",
        "num_gpu_blocks": "1000",
        "swap_space_bytes": "4294967296",
    }
    if tokens_known:
        cache["kv_cache_size_tokens"] = "16000"
    return _Settings(
        model_config=_Settings(served_model_name=MODEL, max_model_len=2048, enforce_eager=True, is_diffusion=False),
        cache_config=_Settings(metrics_info=lambda: dict(cache), num_gpu_blocks=1000, block_size=BLOCK_SIZE),
        observability_config=_Settings(show_hidden_metrics=False, kv_cache_metrics=False, enable_mfu_metrics=False),
        speculative_config=_Settings(num_speculative_tokens=3),
        compilation_config=_Settings(cudagraph_capture_sizes=[1, 2, 4, 8]),
        parallel_config=_Settings(data_parallel_size=1),
        scheduler_config=_Settings(),
    )


def _fill(target: Any, values: dict[str, Any]) -> Any:
    """Sets those attributes that `target` has in this version."""
    for name, value in values.items():
        if hasattr(target, name) and not isinstance(getattr(type(target), name, None), property):
            setattr(target, name, value)
    return target


def _module(name: str) -> Any:
    """A module of the tree (an attribute of its package would be a stub)."""
    return importlib.import_module(name)


# ---------------------------------------------------------------------------------------------------------------------- V0
def record_v0(config: Any) -> None:
    """Gives the V0 engine's logger the work. It has no data-parallel ranks and no `engine` label."""
    metrics, metrics_types = _module("vllm.engine.metrics"), _module("vllm.engine.metrics_types")
    logger_class = metrics.PrometheusStatLogger
    keywords: dict[str, Any] = {"local_interval": 1e9, "labels": {"model_name": MODEL}}
    if "vllm_config" in inspect.signature(logger_class.__init__).parameters:
        keywords["vllm_config"] = config
    else:  # 0.6.0
        keywords["max_model_len"] = config.model_config.max_model_len
    logger = logger_class(**keywords)
    logger.info("cache_config", config.cache_config)
    three = len(WORK["finished"])
    values = {
        "now": 1.0,
        "num_running_sys": WORK["running"],
        "num_waiting_sys": WORK["waiting"] + WORK["deferred"],
        "num_swapped_sys": 0,
        "gpu_cache_usage_sys": WORK["cache_usage"],
        "cpu_cache_usage_sys": 0.0,
        "cpu_prefix_cache_hit_rate": -1.0,
        "gpu_prefix_cache_hit_rate": 0.5,
        "num_prompt_tokens_iter": WORK["prompt"],
        "num_generation_tokens_iter": WORK["generated"],
        "num_tokens_iter": WORK["computed"] + WORK["generated"],
        "time_to_first_tokens_iter": WORK["ttft"],
        "time_per_output_tokens_iter": WORK["itl"],
        "inter_token_latencies_iter": WORK["itl"],
        "num_preemption_iter": WORK["preempted"],
        "time_e2e_requests": [WORK["e2e"]] * three,
        "time_queue_requests": [WORK["queue"]] * three,
        "time_inference_requests": [WORK["inference"]] * three,
        "time_prefill_requests": [WORK["prefill"]] * three,
        "time_decode_requests": [WORK["decode"]] * three,
        "time_in_queue_requests": [WORK["queue"]] * three,
        "model_forward_time_requests": [5.0] * three,
        "model_execute_time_requests": [6.0] * three,
        "num_prompt_tokens_requests": [WORK["request_prompt"]] * three,
        "num_generation_tokens_requests": [WORK["request_generated"]] * three,
        "n_requests": [1] * three,
        "best_of_requests": [1] * three,
        "max_num_generation_tokens_requests": [100] * three,
        "max_tokens_requests": [100] * three,
        "finished_reason_requests": WORK["finished"],
        "waiting_lora_adapters": [],
        "running_lora_adapters": [],
        "max_lora": "0",
    }
    names = {item.name for item in dataclasses.fields(metrics_types.Stats)}
    stats = metrics_types.Stats(**{name: value for name, value in values.items() if name in names})
    for _ in range(ITERATIONS):
        logger.log(stats)


# ---------------------------------------------------------------------------------------------------------------------- V1
def record_v1(logger_class: Any, config: Any, ranks: int, *, blocks: bool, connectors: bool) -> None:
    """Gives the V1 engine's logger the work of each rank. `blocks`: this version counts prefix cache blocks (before 0.9)."""
    indexes = list(range(ranks))
    takes_all = "engine_indexes" in inspect.signature(logger_class.__init__).parameters
    logger = logger_class(config, indexes) if takes_all else logger_class(config)
    if hasattr(logger, "log_engine_initialized"):
        logger.log_engine_initialized()
    if hasattr(logger, "record_sleep_state"):
        logger.record_sleep_state(0, 0)
    note = logger.record if hasattr(logger, "record") else logger.log  # before 0.8
    for _ in range(ITERATIONS):
        for index in indexes:
            keywords = {"engine_idx": index} if takes_all else {}
            note(_scheduler_stats(config, blocks), _iteration_stats(), **keywords)
    if connectors:
        labels = {index: [MODEL, str(index)] for index in indexes}
        _record_nixl(config, labels)
        _record_offloading(config, labels)


def _scheduler_stats(config: Any, blocks: bool) -> Any:
    stats = _module("vllm.v1.metrics.stats")
    size = BLOCK_SIZE if blocks else 1
    prefix = stats.PrefixCacheStats(requests=3, queries=WORK["queries"] // size, hits=WORK["hits"] // size)
    found = _fill(
        stats.SchedulerStats(prefix_cache_stats=prefix),
        {
            "num_running_reqs": WORK["running"],
            "num_waiting_reqs": WORK["waiting"],
            "num_skipped_waiting_reqs": WORK["deferred"],
            "gpu_cache_usage": WORK["cache_usage"],
            "kv_cache_usage": WORK["cache_usage"],
        },
    )
    if not hasattr(found, "num_skipped_waiting_reqs"):
        found.num_waiting_reqs = WORK["waiting"] + WORK["deferred"]
    if hasattr(found, "connector_prefix_cache_stats"):
        found.connector_prefix_cache_stats = stats.PrefixCacheStats(
            requests=3, queries=WORK["external_queries"], hits=WORK["external_hits"]
        )
    if config.speculative_config is not None and hasattr(found, "spec_decoding_stats"):
        drafts = _module("vllm.v1.spec_decode.metrics").SpecDecodingStats.new(config.speculative_config.num_speculative_tokens)
        per_draft, accepted = WORK["draft_tokens"] // WORK["drafts"], WORK["accepted"]
        for _ in range(WORK["drafts"]):
            taken = min(accepted, per_draft)
            accepted -= taken
            drafts.observe_draft(per_draft, taken)
        found.spec_decoding_stats = drafts
    return found


def _iteration_stats() -> Any:
    stats = _module("vllm.v1.metrics.stats")
    iteration = stats.IterationStats()
    if hasattr(iteration, "prompt_token_stats"):
        _fill(
            iteration.prompt_token_stats,
            {
                "computed": WORK["computed"],
                "local_cache_hit": WORK["local_hit"],
                "external_kv_transfer": WORK["external"],
                "cached_tokens": WORK["local_hit"] + WORK["external"],
                "total": WORK["prompt"],
            },
        )
    _fill(
        iteration,
        {
            "num_prompt_tokens": WORK["prompt"],
            "num_generation_tokens": WORK["generated"],
            "num_preempted_reqs": WORK["preempted"],
            "time_to_first_tokens_iter": WORK["ttft"],
            "time_per_output_tokens_iter": WORK["itl"],
            "inter_token_latencies_iter": WORK["itl"],
            "max_num_generation_tokens_iter": [100] * 3,
            "n_params_iter": [1] * 3,
            "queue_times_iter": [WORK["queue"]] * 3,  # 0.7
            "prefill_times_iter": [WORK["prefill"]] * 3,
        },
    )
    reasons = {str(reason).lower(): reason for reason in _module("vllm.v1.engine").FinishReason}
    known = {item.name for item in dataclasses.fields(stats.FinishedRequestStats)}
    values = {
        "e2e_latency": WORK["e2e"],
        "num_prompt_tokens": WORK["request_prompt"],
        "num_generation_tokens": WORK["request_generated"],
        "max_tokens_param": 100,
        "queued_time": WORK["queue"],
        "prefill_time": WORK["prefill"],
        "inference_time": WORK["inference"],
        "decode_time": WORK["decode"],
        "mean_time_per_output_token": WORK["tpot"],
    }
    iteration.finished_requests = [
        stats.FinishedRequestStats(finish_reason=reasons[word], **{name: value for name, value in values.items() if name in known})
        for word in WORK["finished"]
    ]
    return iteration


def _first_module(*names: str) -> Any:
    """The first of these modules that the tree has, or None."""
    for name in names:
        module = importlib.import_module(name)
        if not isinstance(module, _Stub):
            return module
    return None


def _prom(cls: Any, config: Any, labels: dict[int, list[Any]]) -> Any:
    from prometheus_client import Counter, Gauge, Histogram

    return cls(config, {Counter: Counter, Gauge: Gauge, Histogram: Histogram}, ["model_name", "engine"], labels)


_CONNECTORS = "vllm.distributed.kv_transfer.kv_connector.v1."


def _record_nixl(config: Any, labels: dict[int, list[Any]]) -> None:
    module = _first_module(_CONNECTORS + "nixl.stats", _CONNECTORS + "nixl_connector")
    if module is None or not hasattr(module, "NixlPromMetrics"):
        return
    prom = _prom(module.NixlPromMetrics, config, labels)
    data = dict(module.NixlKVConnectorStats().data)
    values = {
        "transfer_duration": WORK["transfer"],
        "post_duration": [0.001, 0.001],
        "bytes_transferred": WORK["transfer_bytes"],
        "num_descriptors": [32, 64],
    }
    data = {name: values.get(name, [1]) for name in data}  # one of each failure
    for index in labels:
        for _ in range(ITERATIONS):
            prom.observe(data, index)


def _record_offloading(config: Any, labels: dict[int, list[Any]]) -> None:
    flat = _first_module(_CONNECTORS + "offloading.metrics")
    module = flat or _first_module(_CONNECTORS + "offloading_connector")
    if module is None or not hasattr(module, "OffloadPromMetrics"):
        return
    if hasattr(module.OffloadingConnectorStats, "increase_counter"):
        spec = type(
            "CPUOffloadingSpec", (), {name: staticmethod(lambda *_: {}) for name in ("build_metric_definitions", "config_info_keys")}
        )
        module.OffloadingSpecFactory = types.SimpleNamespace(get_spec_cls=lambda *_: spec)
        sys.modules["vllm.v1.kv_offload.cpu.spec"] = types.ModuleType("vllm.v1.kv_offload.cpu.spec")
        sys.modules["vllm.v1.kv_offload.cpu.spec"].CPUOffloadingSpec = spec  # type: ignore[attr-defined]  # a module made on the spot
        config.kv_transfer_config = _Settings(kv_connector_extra_config={})
        stats = module.OffloadingConnectorStats()
        for way, size in (("load", WORK["load_bytes"]), ("store", WORK["store_bytes"])):
            stats.increase_counter(f"vllm:kv_offload_{way}_bytes", size)
            stats.increase_counter(f"vllm:kv_offload_{way}_time", 0.5)
            stats.observe_histogram(f"vllm:kv_offload_{way}_size", size)
        data: Any = stats.data
    else:
        data = {
            "CPU_to_GPU": [{"op_size": WORK["load_bytes"], "op_time": 0.5}],
            "GPU_to_CPU": [{"op_size": WORK["store_bytes"], "op_time": 0.5}],
        }
    prom = _prom(module.OffloadPromMetrics, config, labels)
    for index in labels:
        for _ in range(ITERATIONS):
            prom.observe(data, index)


# --------------------------------------------------------------------------------------------------------------------- Ray
class _RayMetric:
    """One of ray.util.metrics' classes, as far as vLLM's wrappers use them, as Ray's metrics agent then exports it.

    The agent puts `ray_` before a name and its own labels beside the metric's (ray-project/ray, python/ray/_private/metrics_agent.py).
    """

    def __init__(self, metric: Any, tag_keys: tuple[str, ...]) -> None:
        self._tag_keys = tag_keys
        self._metric = metric

    def _child(self, tags: dict[str, str]) -> Any:
        return self._metric.labels(**tags, Component="core_worker", WorkerId=f"worker-{tags['ReplicaId']}")

    def set(self, value: float, tags: dict[str, str]) -> None:
        self._child(tags).set(value)

    def inc(self, value: float, tags: dict[str, str]) -> None:
        self._child(tags).inc(value)

    def observe(self, value: float, tags: dict[str, str]) -> None:
        self._child(tags).observe(value)


def install_ray(replica: Callable[[], str]) -> None:
    """Puts modules in Ray's place; `replica` names the one that is running."""
    from prometheus_client import Counter, Gauge, Histogram

    made: dict[str, _RayMetric] = {}  # the agent has one page for all replicas of a node

    def maker(kind: Any) -> Any:
        def make(name: str, description: str = "", tag_keys: tuple[str, ...] = (), boundaries: Sequence[float] = ()) -> _RayMetric:
            if name not in made:
                keywords = {"buckets": boundaries} if boundaries else {}
                made[name] = _RayMetric(kind(f"ray_{name}", description, [*tag_keys, "Component", "WorkerId"], **keywords), tag_keys)
            return made[name]

        return make

    def context() -> Any:
        return types.SimpleNamespace(replica_id=types.SimpleNamespace(unique_id=replica()))

    serve = types.SimpleNamespace(get_replica_context=context)
    metrics = types.SimpleNamespace(Gauge=maker(Gauge), Histogram=maker(Histogram), Counter=maker(Counter), Metric=_RayMetric)
    sys.modules["regex"] = re  # as the wrappers use it, the standard library's is the same
    for name, content in (("ray", {"serve": serve}), ("ray.util", {"metrics": metrics}), ("ray.util.metrics", vars(metrics))):
        module = sys.modules[name] = types.ModuleType(name)
        vars(module).update(content)


def record_ray(config: Any, replicas: Sequence[str], ranks: int) -> None:
    """Gives the work to vLLM's wrappers for Ray, once as each replica."""
    current = [""]
    install_ray(lambda: current[0])
    logger_class = _module("vllm.v1.metrics.ray_wrappers").RayPrometheusStatLogger
    for current[0] in replicas:
        record_v1(logger_class, config, ranks, blocks=False, connectors=False)


def as_ray_agent(page: bytes) -> bytes:
    """Ray's agent exports a counter both with and without ``_total``, and its own process."""
    page = b"".join(line for line in page.splitlines(keepends=True) if b"ray_" in line)
    return page + b"".join(b"%s%s\n" % match for match in re.findall(rb"^(ray_\w+)_total(\{.*)$", page, re.MULTILINE))


# ------------------------------------------------------------------------------------------------------------------- Rust
def as_rust_front_end(page: bytes, tree: Path) -> bytes:
    """The same figures as vLLM's Rust front end would export them (VLLM_USE_RUST_FRONTEND=1): OpenMetrics, and only families that it registers.

    Written after rust/src/metrics, not executed: the crate prometheus-client writes sum and count before the buckets, whole numbers where a
    value is one, no time of creation, and ends with ``# EOF``.
    """
    sources = "".join(path.read_text() for path in sorted((tree / "rust/src/metrics/src").glob("*.rs")))
    known = {name.removesuffix("_total") for name in re.findall(r'"((?:vllm:|http_request)\w+)"', sources)}
    lines: list[str] = []
    for family in re.split(r"(?=^# HELP )", page.decode(), flags=re.MULTILINE):
        head = re.match(r"# HELP (\S+)", family)
        if head is None or head[1].removesuffix("_total") not in known:
            continue
        samples = family.splitlines()
        help_text, kind, *values = samples
        name = head[1].removesuffix("_total") if "counter" in kind else head[1]
        lines += [help_text.replace(head[1], name, 1).removesuffix(".") + ".", kind.replace(head[1], name, 1)]
        lines += sorted((re.sub(r"\.0$", "", value) for value in values), key=lambda value: "_bucket{" in value)
    return ("\n".join(lines) + "\n# EOF\n").encode()


# ------------------------------------------------------------------------------------------------------------------- pages
def record(arguments: argparse.Namespace) -> None:
    """Does the work of one API server process."""
    from prometheus_client import Counter

    config = configuration(tokens_known=arguments.tokens_known)
    if not arguments.spec_decode:
        config.speculative_config = None
    if arguments.engine == "v0":
        record_v0(config)
    elif arguments.replica:
        record_ray(config, arguments.replica, arguments.ranks)
        return  # the agent has no HTTP requests of vLLM
    else:
        logger_class = _module("vllm.v1.metrics.loggers").PrometheusStatLogger
        record_v1(logger_class, config, arguments.ranks, blocks=arguments.blocks, connectors=arguments.connectors)
    requests = Counter("http_requests_total", "Total number of requests by method, status and handler.", ["handler", "method", "status"])
    requests.labels("/v1/completions", "POST", "2xx").inc(6)
    requests.labels("/v1/completions", "POST", "4xx").inc(1)


def main(arguments: Sequence[str]) -> int:
    """Writes one page to standard output."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tree", type=Path)
    parser.add_argument("--engine", choices=("v0", "v1"), default="v1")
    parser.add_argument("--ranks", type=int, default=1, help="data-parallel ranks (V1)")
    parser.add_argument(
        "--servers", type=int, default=0, help="processes behind one page, as with --api-server-count; 0: one, without files"
    )
    parser.add_argument("--blocks", action="store_true", help="prefix cache counters are in blocks (before 0.9)")
    parser.add_argument("--tokens-known", action="store_true", help="cache_config_info tells kv_cache_size_tokens (0.24)")
    parser.add_argument("--connectors", action="store_true", help="with the NIXL and the offloading connector")
    parser.add_argument("--spec-decode", action="store_true", help="with speculative decoding (V1)")
    parser.add_argument("--replica", action="append", help="through vLLM's wrappers for Ray, as this replica (V1); repeatable")
    parser.add_argument("--rust", action="store_true", help="as the Rust front end would write it (0.33)")
    given = parser.parse_args(arguments)
    if not (given.tree / "vllm").is_dir():
        parser.error(f"{given.tree} has no folder vllm: it is no source tree of vLLM")
    sys.meta_path.insert(0, _Finder(given.tree))
    with tempfile.TemporaryDirectory() as folder:
        if given.servers:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # read by prometheus_client when it is imported
        from prometheus_client import REGISTRY, CollectorRegistry, generate_latest, multiprocess

        registry: CollectorRegistry = REGISTRY
        if given.servers:
            for _ in range(given.servers):
                child = os.fork()
                if not child:
                    record(given)
                    os._exit(0)
                if os.waitpid(child, 0)[1]:
                    return 1
            registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # prometheus_client does not type it
        else:
            record(given)
        page = generate_latest(registry)
        if given.replica:
            page = as_ray_agent(page)
        if given.rust:
            page = as_rust_front_end(page, given.tree)
        sys.stdout.buffer.write(page)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
