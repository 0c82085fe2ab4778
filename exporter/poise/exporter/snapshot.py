"""What one node looked like at one moment: frozen values that sources fill, and that exposition, checks and pages read.

Flow: NVML sampler → `Gpu` · engine source → `ObservedEngine` · ownership.join → `Gpu` and `Engine` → `NodeSnapshot`.
This file knows no driver, no socket and no output format. Absence is a value: what could not be read is not in `readings`, and why is
in `absent`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from poise.exporter.interconnect_results import Usable
from poise.exporter.metrics import Metric

#: Label values (in the order of `Metric.labels`, without the owner's) → value. A metric without own labels has the key ``()``.
Readings = Mapping[Metric, Mapping[tuple[str, ...], float]]


class Reason(StrEnum):
    """Why a series is absent; the values of the label `reason` of `poise_gpu_unsupported_info`."""

    NOT_SUPPORTED = "not_supported"
    NO_PERMISSION = "no_permission"
    FUNCTION_NOT_FOUND = "function_not_found"
    GPU_LOST = "gpu_lost"
    TIMEOUT = "timeout"
    ERROR = "error"


class Role(StrEnum):
    """What part of a request an engine serves."""

    MIXED = "mixed"
    PREFILL = "prefill"
    DECODE = "decode"
    UNKNOWN = "unknown"


class Use(StrEnum):
    """Who has a card that an engine can see."""

    OWN = "own"
    OTHER = "other"
    FREE = "free"


def value_of(readings: Readings, metric: Metric, *labels: str) -> float | None:
    """The value of one series, or None when it was not read."""
    return readings.get(metric, {}).get(labels)


@dataclass(frozen=True, slots=True)
class CollectorStatus:
    """How the last run of one collector went, over all cards. Durations and intervals in seconds, times in Unix seconds."""

    name: str
    interval: float
    duration: float | None = None
    success: bool = False
    last_success: float | None = None
    failures: int = 0
    error: str = ""


# ------------------------------------------------------------------------------------------------------------------- cards
@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """What does not change while a card stays in its slot. Empty strings where the driver does not say."""

    name: str = ""
    pci_bus_id: str = ""  # sysfs form: lower case, 4-digit domain, "0000:1a:00.0"
    architecture: str = ""  # "hopper"
    serial: str = ""
    vbios: str = ""
    minor: str = ""  # N of /dev/nvidiaN
    numa_node: str = ""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process with memory on a card, as NVML lists it. `used_bytes` is None where the driver does not say (e.g. in a container)."""

    pid: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card: identity, whether it answers, and everything read from it at `sampled_at` (Unix seconds).

    A card that is not `up` keeps its identity and has no readings but its XIDs (docs/adr/0011); `down_reason` is `gpu_lost`, `timeout` or `error`, which `absent` then
    gives for each metric that the card would have.
    `processes` is None when the driver did not give the list: unknown, not empty. With `processes_complete` False it lacks those of other
    pid namespaces.
    """

    index: int
    uuid: str
    identity: GpuIdentity = GpuIdentity()
    up: bool = True
    down_reason: Reason | None = None
    sampled_at: float | None = None
    readings: Readings = field(default_factory=dict)
    absent: Mapping[Metric, Reason] = field(default_factory=dict)
    processes: tuple[GpuProcess, ...] | None = None
    processes_complete: bool = True
    simulated: bool = False

    def value(self, metric: Metric, *labels: str) -> float | None:
        """One reading, or None when it is absent."""
        return value_of(self.readings, metric, *labels)


# ----------------------------------------------------------------------------------------------------------------- engines
@dataclass(frozen=True, slots=True)
class Rank:
    """One worker process of an engine. A rank number is None where that dimension has size 1 or the title does not tell."""

    pid: int
    title: str
    tp_rank: int | None = None
    pp_rank: int | None = None
    dp_rank: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerCards:
    """The cards that a container of its own gives an engine.

    `minors`: the numbers of its device nodes /dev/nvidiaN, None where they could not be listed. `asked`: NVIDIA_VISIBLE_DEVICES, by which
    the container was made; None when not set.
    """

    minors: frozenset[int] | None
    asked: str | None = None


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the command line and environment of the server say (allow-listed flags and variables only); None where they do not."""

    model: str | None = None  # first served name, else the model argument
    model_path: str | None = None
    revision: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    block_size: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    data_parallel_size_local: int | None = None
    distributed_executor_backend: str | None = None
    nnodes: int = 1
    node_rank: int = 0
    headless: bool = False
    host: str | None = None
    port: int | None = None
    kv_connector: str | None = None
    kv_role: str | None = None
    cuda_visible_devices: str | None = None  # as set for the server; None: not set (or not readable, see environment_read)
    cuda_device_order: str | None = None
    environment_read: bool = False  # False: no permission or a foreign namespace, so `cuda_visible_devices` says nothing
    container: ContainerCards | None = None  # None: in no container of its own, so that all cards of the node are there
    communication: Mapping[str, str] = field(default_factory=dict)  # allow-listed NCCL_… and NIXL variables, as set for the server

    @property
    def world_size(self) -> int:
        """Ranks over all nodes."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def told_cards(self) -> bool:
        """Whether it was told which cards are its own: by CUDA_VISIBLE_DEVICES, or by a container that was made with some."""
        return self.cuda_visible_devices is not None or (self.container is not None and self.container.asked != "all")


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """The labels of an engine, latched before first publication."""

    engine: str
    deployment: str
    role: Role
    role_source: str  # config, environment, argv, router, observed, default
    discovered: str  # argv, config


@dataclass(frozen=True, slots=True)
class Pod:
    """Where in Kubernetes (or a container engine) a process runs; "" where that is unknown."""

    namespace: str = ""
    name: str = ""
    container: str = ""


@dataclass(frozen=True, slots=True)
class Libraries:
    """Versions of libraries that an engine's processes have loaded ("2.27.3", "12.8"); "" where not loaded or not readable.

    `nccl_cuda`: the CUDA version that NCCL was built for. `cuda_driver`: the version of the loaded libcuda ("570.133.20"), which is not the
    node's driver where CUDA's forward compatibility package is in use.
    """

    nccl: str = ""
    cuda_runtime: str = ""
    nccl_cuda: str = ""
    cuda_driver: str = ""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the model's config.json says; None where it does not, or could not be read."""

    attention_heads: int | None = None
    kv_heads: int | None = None
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram exactly as scraped: `buckets` are (le as written, cumulative count), the last one "+Inf"."""

    buckets: tuple[tuple[str, float], ...]
    sum: float
    count: float


@dataclass(frozen=True, slots=True)
class Work:
    """One data-parallel rank's part of an engine's page, in the contract's words. `dp_rank` is vLLM's own label `engine`."""

    model: str
    dp_rank: str
    readings: Readings = field(default_factory=dict)
    histograms: Mapping[Metric, Mapping[tuple[str, ...], Histogram]] = field(default_factory=dict)

    def value(self, metric: Metric, *labels: str) -> float | None:
        """One reading, or None when the page did not have it."""
        return value_of(self.readings, metric, *labels)


@dataclass(frozen=True, slots=True)
class EnginePage:
    """A vLLM metrics page that was fetched and understood. Times in Unix seconds, `duration` in seconds."""

    scraped_at: float
    duration: float
    version: str  # "" when the engine does not tell
    work: tuple[Work, ...] = ()
    http_requests: Mapping[str, float] = field(default_factory=dict)  # "2xx" → count
    missing: tuple[str, ...] = ()  # names of series of ours that this version should feed and does not
    cache_config: Mapping[str, str] = field(default_factory=dict)  # allow-listed labels of vLLM's cache_config_info


@dataclass(frozen=True, slots=True)
class ObservedEngine:
    """An engine as /proc, configuration and its page show it, before it is joined with the cards.

    `process_up` is None for an engine known by URL only. `ranks` are the worker processes that may own cards: the workers, or the
    EngineCore itself where vLLM starts no worker. `pids` are all processes of the engine, for "own" and "foreign". `page` is None
    while the page does not answer, and `page_error` then says why in words. `notes` say what of the engine could not be read. `gpus_meant`:
    how many cards of this node the user said that it is meant to use, None when that was not said.
    """

    identity: EngineIdentity
    config: EngineConfig
    url: str | None = None
    pid: int | None = None
    process_up: bool | None = None
    start_time: float | None = None
    gone_since: float | None = None
    ranks: tuple[Rank, ...] = ()
    pids: frozenset[int] = frozenset()
    page: EnginePage | None = None
    page_error: str = ""
    last_page_at: float | None = None
    rtt: float | None = None
    client_connections: int | None = None
    notes: tuple[str, ...] = ()
    gpus_meant: int | None = None
    pod: Pod | None = None
    libraries: Libraries | None = None
    model_shape: ModelShape | None = None


@dataclass(frozen=True, slots=True)
class EngineGpu:
    """A card that an engine can see. `cuda_index` is the engine's own ordinal; None where the order is unknown."""

    index: int
    uuid: str
    cuda_index: int | None
    use: Use
    rank: Rank | None = None


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine joined with the cards of this node.

    `visible` is None when it is unknown which cards the engine can see; `used` (UUIDs of cards that hold one of its processes) is None
    when the driver's process lists are unknown. `source` tells how: ``processes`` (NVML) or ``environment`` (CUDA_VISIBLE_DEVICES).
    """

    observed: ObservedEngine
    visible: tuple[EngineGpu, ...] | None = None
    used: frozenset[str] | None = None
    local_world_size: int | None = None
    source: str = ""
    readings: Readings = field(default_factory=dict)  # all server-level series, infos included

    @property
    def identity(self) -> EngineIdentity:
        """The labels of the engine."""
        return self.observed.identity

    @property
    def config(self) -> EngineConfig:
        """What its command line and environment say."""
        return self.observed.config

    @property
    def up(self) -> bool:
        """Whether its page answered and was understood."""
        return self.observed.page is not None

    @property
    def has_all_meant(self) -> bool:
        """Whether the user said how many cards it is meant to use, and it uses as many: cards that it leaves are left on purpose."""
        meant = self.observed.gpus_meant
        return meant is not None and self.used is not None and len(self.used) >= meant

    @property
    def own(self) -> tuple[EngineGpu, ...]:
        """The cards that hold its ranks, in rank order."""
        return tuple(card for card in self.visible or () if card.use is Use.OWN)


# ----------------------------------------------------------------------------------------------------------------- routers
class RouterKind(StrEnum):
    """The routers that Poise knows; the values of the label `kind` of `poise_router_info`."""

    VLLM_ROUTER = "vllm-router"  # github.com/vllm-project/router
    PRODUCTION_STACK = "production-stack"  # github.com/vllm-project/production-stack, src/vllm_router
    TOY_PROXY = "toy-proxy"  # vLLM's example proxies: two steps, no pages


@dataclass(frozen=True, slots=True)
class RouterBackend:
    """An engine as its router knows it: base URL, role there, health (None where the router does not tell), and our id of the engine.

    `engine` of one that is not known here is what its own node would call it; "" where the URL names no host.
    """

    url: str
    role: Role
    healthy: bool | None = None
    engine: str = ""


@dataclass(frozen=True, slots=True)
class Router:
    """A router before engines. `readings` are its series (owner router).

    `up` is False while it does not answer, and `error` then says why. `disaggregated`: it sends prefill and decode to different engines.
    """

    name: str
    deployment: str
    kind: RouterKind | None  # None while it never answered and nothing else tells
    url: str | None = None
    pid: int | None = None
    up: bool = False
    error: str = ""
    disaggregated: bool = False
    backends: tuple[RouterBackend, ...] = ()
    readings: Readings = field(default_factory=dict)


# -------------------------------------------------------------------------------------------------------------------- node
@dataclass(frozen=True, slots=True)
class RdmaPort:
    """A port of an InfiniBand or RoCE device of this node, from sysfs. `state` as written there ("ACTIVE"), byte counters since boot."""

    device: str
    port: int
    state: str
    link_layer: str  # InfiniBand, Ethernet
    rate: str  # "400 Gb/sec (4X NDR)"
    sent_bytes: int | None = None
    received_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ViewLimit:
    """Something that Poise cannot see of the node's processes, in words that go on after "Poise: ", and what would change that.

    `unseen`: whole processes are missing; else they are seen and not all of them can be read.
    """

    sentence: str
    fix: str
    unseen: bool = False


@dataclass(frozen=True, slots=True)
class DriverInfo:
    """Versions as the driver tells them; `error` says in words why there is no driver, and is empty when there is one."""

    driver: str = ""
    nvml: str = ""
    cuda: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """Everything known about this node at `taken_at` (Unix seconds). `gpus` are in index order, `engines` in order of their names."""

    node: str
    taken_at: float
    driver: DriverInfo = DriverInfo()
    gpus: tuple[Gpu, ...] = ()
    gpus_expected: int | None = None
    engines: tuple[Engine, ...] = ()
    collectors: tuple[CollectorStatus, ...] = ()
    kernel: str = ""
    gpu_process_readings: Mapping[str, Readings] = field(default_factory=dict)  # uuid → process and foreign memory, from the join
    routers: tuple[Router, ...] = ()
    rdma_ports: tuple[RdmaPort, ...] | None = None  # None: sysfs could not be read
    view_limits: tuple[ViewLimit, ...] | None = None  # None: nobody looks at processes
    interconnect: Usable = field(default_factory=Usable)  # measured all-reduces that hold for the node as it is

    @property
    def simulated(self) -> bool:
        """Whether any card is a simulated one."""
        return any(gpu.simulated for gpu in self.gpus)

    def gpu(self, uuid: str) -> Gpu | None:
        """The card with this UUID, or None."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)
