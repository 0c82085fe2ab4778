"""The declaration of every series that Poise exposes: name, type, labels, meaning; nothing else declares one.

Collectors fill these, the exposition renders them, `docs/metrics.md` is generated from them, and a test refuses a rule, a page or
a panel that names anything else. This file knows no driver, no engine and no format.

The owner gives a series its leading labels, which a declaration does not repeat:

=========  ==================================================  ==========================================================
owner      leading labels                                      example
=========  ==================================================  ==========================================================
node       none                                                ``poise_node_gpus_visible``
gpu        ``gpu``, ``uuid``                                   ``poise_gpu_power_watts``
engine     ``engine``, ``deployment``, ``role``                ``poise_engine_up``
work       those of engine and ``model``, ``dp_rank``          ``poise_engine_requests_running``
router     ``router``, ``deployment``                          ``poise_router_up``
=========  ==================================================  ==========================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The Prometheus type of a series."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Owner(StrEnum):
    """What a series describes, and so which labels lead it."""

    NODE = "node"
    GPU = "gpu"
    ENGINE = "engine"
    WORK = "work"
    ROUTER = "router"


LEADING_LABELS: dict[Owner, tuple[str, ...]] = {
    Owner.NODE: (),
    Owner.GPU: ("gpu", "uuid"),
    Owner.ENGINE: ("engine", "deployment", "role"),
    Owner.WORK: ("engine", "deployment", "role", "model", "dp_rank"),
    Owner.ROUTER: ("router", "deployment"),
}


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One declared series.

    `name` is the name on the page, with `_total` for counters; `labels` are those behind the owner's leading labels, in the
    order in which readings give their values. Compared and hashed by identity: each name exists once.
    """

    name: str
    kind: Kind
    owner: Owner
    labels: tuple[str, ...]
    help: str

    @property
    def label_names(self) -> tuple[str, ...]:
        """All label names in order: the owner's, then the metric's own."""
        return LEADING_LABELS[self.owner] + self.labels

    @property
    def sample_names(self) -> tuple[str, ...]:
        """The names under which samples of this metric stand in a scrape (a histogram has three)."""
        if self.kind is Kind.HISTOGRAM:
            return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")
        return (self.name,)

    def __repr__(self) -> str:
        return f"<Metric {self.name}>"


def _gauge(owner: Owner, name: str, help_text: str, *labels: str) -> Metric:
    return Metric(name, Kind.GAUGE, owner, labels, help_text)


def _counter(owner: Owner, name: str, help_text: str, *labels: str) -> Metric:
    return Metric(name, Kind.COUNTER, owner, labels, help_text)


def _histogram(name: str, help_text: str, *labels: str) -> Metric:
    return Metric(name, Kind.HISTOGRAM, Owner.WORK, labels, help_text)


_NODE, _GPU, _ENGINE, _WORK, _ROUTER = Owner.NODE, Owner.GPU, Owner.ENGINE, Owner.WORK, Owner.ROUTER

# ---------------------------------------------------------------------------------------------------------- node and self
BUILD_INFO = _gauge(_NODE, "poise_build_info", "Version of Poise and of the Python that runs it; always 1", "version", "python")
NODE_INFO = _gauge(
    _NODE,
    "poise_node_info",
    'The node: host name, driver, NVML, CUDA driver and kernel versions; simulated="true" when the cards are simulated; always 1',
    "node",
    "driver",
    "nvml",
    "cuda",
    "kernel",
    "simulated",
)
NODE_GPUS_VISIBLE = _gauge(_NODE, "poise_node_gpus_visible", "Cards that answer the driver now")
NODE_GPUS_EXPECTED = _gauge(
    _NODE,
    "poise_node_gpus_expected",
    "Cards that should be here: configured, else NVIDIA display controllers on the PCI bus",
)
COLLECTOR_SUCCESS = _gauge(
    _NODE,
    "poise_collector_success",
    "1 if the collector's last run gave what it should, 0 if anything of it failed",
    "collector",
)
COLLECTOR_DURATION = _gauge(
    _NODE,
    "poise_collector_duration_seconds",
    "Time that the collector's last run took, the slowest card's",
    "collector",
)
COLLECTOR_INTERVAL = _gauge(_NODE, "poise_collector_interval_seconds", "How often the collector runs", "collector")
COLLECTOR_LAST_SUCCESS = _gauge(
    _NODE, "poise_collector_last_success_timestamp_seconds", "When the collector last succeeded, Unix time", "collector"
)
COLLECTOR_FAILURES = _counter(_NODE, "poise_collector_failures_total", "Failed runs of the collector", "collector")
SNAPSHOT_AGE = _gauge(_NODE, "poise_snapshot_age_seconds", "Age of the snapshot that this page was rendered from")
CHECK_STATUS = _gauge(
    _NODE,
    "poise_check_status",
    "Result of a check of `poise doctor`, as a state set: 1 for the status that holds, 0 for the others; engine and uuid are empty where they do not apply",
    "check",
    "status",
    "engine",
    "uuid",
)

INTERCONNECT_BUS_BANDWIDTH = _gauge(
    _NODE,
    "poise_interconnect_bus_bandwidth_bytes_per_second",
    "Best bus bandwidth of an all-reduce that `poise testbed interconnect` measured since boot, by backend (nccl, gloo), group of cards, p2p (on, off; none: "
    "without cards) and worst path between two of them",
    "backend",
    "gpus",
    "p2p",
    "path",
)
INTERCONNECT_LATENCY = _gauge(
    _NODE,
    "poise_interconnect_latency_seconds",
    "Time of a measured all-reduce of the smallest message",
    "backend",
    "gpus",
    "p2p",
    "path",
)
INTERCONNECT_MEASURED = _gauge(
    _NODE,
    "poise_interconnect_measured_timestamp_seconds",
    "When the group of cards was measured, Unix time",
    "backend",
    "gpus",
)

# ------------------------------------------------------------------------------------------------------------------- GPU
GPU_INFO = _gauge(
    _GPU,
    "poise_gpu_info",
    "What the card is; always 1",
    "name",
    "pci_bus_id",
    "architecture",
    "serial",
    "vbios",
    "minor",
    "numa_node",
)
GPU_UP = _gauge(_GPU, "poise_gpu_up", "1 if the card answers, 0 if it was seen and is now lost or hangs")
GPU_UNSUPPORTED_INFO = _gauge(
    _GPU,
    "poise_gpu_unsupported_info",
    "Why a series of this card is absent: not_supported, no_permission, function_not_found, gpu_lost, timeout or error; always 1",
    "metric",
    "reason",
)
GPU_LAST_SAMPLE = _gauge(_GPU, "poise_gpu_last_sample_timestamp_seconds", "When the card was last read, Unix time")
GPU_UTILIZATION = _gauge(
    _GPU,
    "poise_gpu_utilization_ratio",
    "Share of the driver's last sample period in which at least one kernel ran (not how full the card was)",
)
GPU_UTILIZATION_PEAK = _gauge(
    _GPU, "poise_gpu_utilization_peak_ratio", "Highest utilization sample that the driver took in the last 60 seconds"
)
GPU_BUSY_SECONDS = _counter(
    _GPU,
    "poise_gpu_busy_seconds_total",
    "Time in which at least one kernel ran, integrated over the driver's own samples",
)
GPU_MEMORY_BUSY = _gauge(_GPU, "poise_gpu_memory_busy_ratio", "Share of the last sample period in which device memory was read or written")
GPU_ENCODER_UTILIZATION = _gauge(_GPU, "poise_gpu_encoder_utilization_ratio", "Utilization of the video encoder")
GPU_DECODER_UTILIZATION = _gauge(_GPU, "poise_gpu_decoder_utilization_ratio", "Utilization of the video decoder")
GPU_SM_ACTIVE = _gauge(
    _GPU,
    "poise_gpu_sm_active_ratio",
    "Share of time in which an SM had at least one warp, mean over SMs and the interval (GPM, Hopper and newer)",
)
GPU_SM_OCCUPANCY = _gauge(
    _GPU, "poise_gpu_sm_occupancy_ratio", "Warps on the SMs as share of the most that fit, mean over SMs and the interval (GPM)"
)
GPU_TENSOR_ACTIVE = _gauge(_GPU, "poise_gpu_tensor_active_ratio", "Share of time in which a tensor pipe was busy, any data type (GPM)")
GPU_DRAM_ACTIVE = _gauge(_GPU, "poise_gpu_dram_active_ratio", "Device memory bandwidth in use as share of the peak (GPM)")
GPU_PCIE_TX = _gauge(
    _GPU,
    "poise_gpu_pcie_tx_bytes_per_second",
    "Bytes that the card sent over PCIe: GPM's mean over the interval, or NVML's sample of 20 ms where that was asked for",
)
GPU_PCIE_RX = _gauge(
    _GPU,
    "poise_gpu_pcie_rx_bytes_per_second",
    "Bytes that the card received over PCIe: GPM's mean over the interval, or NVML's sample of 20 ms where that was asked for",
)
GPU_MEMORY_TOTAL = _gauge(_GPU, "poise_gpu_memory_total_bytes", "Device memory of the card")
GPU_MEMORY_USED = _gauge(_GPU, "poise_gpu_memory_used_bytes", "Device memory allocated by processes, without what the driver reserves")
GPU_MEMORY_FREE = _gauge(_GPU, "poise_gpu_memory_free_bytes", "Device memory neither allocated nor reserved")
GPU_MEMORY_RESERVED = _gauge(_GPU, "poise_gpu_memory_reserved_bytes", "Device memory reserved by driver and firmware")
GPU_BAR1_TOTAL = _gauge(_GPU, "poise_gpu_bar1_total_bytes", "Size of the BAR1 aperture")
GPU_BAR1_USED = _gauge(_GPU, "poise_gpu_bar1_used_bytes", "Used part of the BAR1 aperture")
GPU_POWER = _gauge(
    _GPU,
    "poise_gpu_power_watts",
    "Power drawn; a mean of one second on Ampere (not A100) and newer, else instantaneous",
)
GPU_POWER_LIMIT = _gauge(_GPU, "poise_gpu_power_limit_watts", "Power limit in force")
GPU_ENERGY = _counter(_GPU, "poise_gpu_energy_joules_total", "Energy used since the driver was loaded")
GPU_TEMPERATURE = _gauge(_GPU, "poise_gpu_temperature_celsius", "Temperature by sensor: core, memory", "sensor")
GPU_TEMPERATURE_MARGIN = _gauge(
    _GPU, "poise_gpu_temperature_margin_celsius", "Degrees left before the card slows itself down, by its own threshold"
)
GPU_FAN = _gauge(_GPU, "poise_gpu_fan_ratio", "Fan speed as share of its maximum; cards without a fan have no such series")
GPU_PERFORMANCE_STATE = _gauge(_GPU, "poise_gpu_performance_state", "Performance state P0 (fastest) to P15")
GPU_PERSISTENCE_MODE = _gauge(_GPU, "poise_gpu_persistence_mode", "1 if persistence mode is on")
GPU_MIG_MODE = _gauge(_GPU, "poise_gpu_mig_mode", "1 if the card is partitioned (MIG); Poise does not measure the instances")
GPU_RECOVERY_ACTION = _gauge(
    _GPU,
    "poise_gpu_recovery_action",
    "What the driver asks for: 0 nothing, 1 reset the card, 2 reboot, 3 drain P2P, 4 drain and reset, 5 recover the IMEX domain, 6 reset the bus, 7 reboot the system",
)
GPU_CLOCK = _gauge(_GPU, "poise_gpu_clock_hertz", "Clock frequency now: graphics, sm, memory, video", "clock")
GPU_CLOCK_MAX = _gauge(_GPU, "poise_gpu_clock_max_hertz", "Highest clock frequency of the card", "clock")
GPU_CLOCKS_EVENT = _gauge(
    _GPU, "poise_gpu_clocks_event", "1 while the driver names this reason for the clocks being where they are", "reason"
)
GPU_CLOCKS_EVENT_SECONDS = _counter(
    _GPU,
    "poise_gpu_clocks_event_seconds_total",
    "Time in which the reason held: from the driver's own counter, else integrated from its sampled mask",
    "reason",
)
GPU_ECC_ERRORS = _counter(_GPU, "poise_gpu_ecc_errors_total", "Memory errors since the driver was loaded: corrected, uncorrected", "type")
GPU_ECC_ERRORS_LIFETIME = _counter(
    _GPU, "poise_gpu_ecc_errors_lifetime_total", "Memory errors in the card's life: corrected, uncorrected", "type"
)
GPU_REMAPPED_ROWS = _gauge(
    _GPU,
    "poise_gpu_remapped_rows",
    "Memory rows replaced by spare ones after errors: correctable, uncorrectable (Ampere and newer)",
    "type",
)
GPU_REMAP_PENDING = _gauge(_GPU, "poise_gpu_remap_pending", "1 if a row waits to be remapped: the card needs a reset")
GPU_REMAP_FAILED = _gauge(_GPU, "poise_gpu_remap_failed", "1 if a row could not be remapped: the card is to be replaced")
GPU_RETIRED_PAGES = _gauge(
    _GPU, "poise_gpu_retired_pages", "Memory pages taken out of use after errors, by cause: single_bit, double_bit (before Ampere)", "cause"
)
GPU_XID_ERRORS = _counter(
    _GPU,
    "poise_gpu_xid_errors_total",
    "XID errors that the driver reported since the exporter started, by code (docs/xid.md tells what each means); fatal codes start at 0, and a lost card keeps its counts",
    "xid",
)
GPU_XID_LAST = _gauge(_GPU, "poise_gpu_xid_last_timestamp_seconds", "When this XID was last reported, Unix time", "xid")
GPU_PCIE_LINK_GENERATION = _gauge(_GPU, "poise_gpu_pcie_link_generation", "PCIe generation of the link now; drops when idle")
GPU_PCIE_LINK_GENERATION_MAX = _gauge(_GPU, "poise_gpu_pcie_link_generation_max", "Highest PCIe generation that card and slot allow")
GPU_PCIE_LINK_WIDTH = _gauge(_GPU, "poise_gpu_pcie_link_width", "PCIe lanes in use")
GPU_PCIE_LINK_WIDTH_MAX = _gauge(_GPU, "poise_gpu_pcie_link_width_max", "PCIe lanes that card and slot allow")
GPU_PCIE_REPLAYS = _counter(_GPU, "poise_gpu_pcie_replays_total", "PCIe packets sent again")
GPU_NVLINK_TX = _counter(_GPU, "poise_gpu_nvlink_tx_bytes_total", "Payload bytes sent over the link", "link")
GPU_NVLINK_RX = _counter(_GPU, "poise_gpu_nvlink_rx_bytes_total", "Payload bytes received over the link", "link")
GPU_NVLINK_TOTAL_TX = _counter(_GPU, "poise_gpu_nvlink_total_tx_bytes_total", "Payload bytes sent over all links of the card")
GPU_NVLINK_TOTAL_RX = _counter(_GPU, "poise_gpu_nvlink_total_rx_bytes_total", "Payload bytes received over all links of the card")
GPU_NVLINK_UP = _gauge(_GPU, "poise_gpu_nvlink_up", "1 if the link is active, 0 if it is not", "link")
GPU_NVLINK_BANDWIDTH = _gauge(_GPU, "poise_gpu_nvlink_bandwidth_bytes_per_second", "What the link can carry in one direction", "link")
GPU_NVLINK_ERRORS = _counter(
    _GPU,
    "poise_gpu_nvlink_errors_total",
    "Errors of the link by type: replay, recovery, crc_flit, crc_data, ecc (to Hopper); malformed, buffer_overrun, receive, receive_remote, receive_general, local_link_integrity, transmit_discard, link_recovery_successful, link_recovery_failed, effective, symbol (Blackwell, where symbol errors before correction are normal)",
    "link",
    "type",
)
GPU_NVLINK_PEER_INFO = _gauge(
    _GPU,
    "poise_gpu_nvlink_peer_info",
    "What is at the other end of the link: gpu, switch or unknown; always 1",
    "link",
    "peer_type",
    "peer_uuid",
    "peer_pci_bus_id",
)
GPU_PAIR_INFO = _gauge(
    _GPU,
    "poise_gpu_pair_info",
    "Best path between two cards: NV# (links), PIX, PXB, PHB, NODE or SYS; p2p tells whether the driver allows peer access; always 1",
    "peer_gpu",
    "peer_uuid",
    "path",
    "p2p",
)
GPU_FABRIC_STATE = _gauge(
    _GPU,
    "poise_gpu_fabric_state",
    "Registration with the NVLink fabric, as a state set: not_supported, not_started, in_progress, completed, failed",
    "state",
)
GPU_PROCESS_MEMORY = _gauge(
    _GPU,
    "poise_gpu_process_memory_bytes",
    "Device memory held by a process; engine and rank are empty when it belongs to no known engine",
    "pid",
    "process",
    "engine",
    "rank",
)
GPU_FOREIGN_MEMORY = _gauge(_GPU, "poise_gpu_foreign_memory_bytes", "Device memory held by processes of no known engine")

# ---------------------------------------------------------------------------------------------------- engine, server level
ENGINE_INFO = _gauge(
    _ENGINE,
    "poise_engine_info",
    "What the engine serves and how it was found; always 1",
    "version",
    "model",
    "model_path",
    "revision",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "block_size",
    "max_model_len",
    "kv_connector",
    "role_source",
    "discovered",
)
ENGINE_POD_INFO = _gauge(
    _ENGINE,
    "poise_engine_pod_info",
    "The pod and container in which the engine's process runs; empty where unknown; always 1",
    "engine_namespace",
    "engine_pod",
    "engine_container",
)
ENGINE_NCCL_INFO = _gauge(
    _ENGINE,
    "poise_engine_nccl_info",
    "Versions of the NCCL and CUDA runtime libraries that the engine's processes have loaded; always 1",
    "nccl",
    "cuda_runtime",
)
ENGINE_UP = _gauge(_ENGINE, "poise_engine_up", "1 if the engine's metrics page answered and was understood; 0 also while it loads")
ENGINE_PROCESS_UP = _gauge(_ENGINE, "poise_engine_process_up", "1 while the engine's process lives; absent for an engine known by URL only")
ENGINE_SCRAPE_DURATION = _gauge(_ENGINE, "poise_engine_scrape_duration_seconds", "Time to fetch and read the engine's page")
ENGINE_START_TIME = _gauge(_ENGINE, "poise_engine_start_time_seconds", "When the engine's process started, Unix time")
ENGINE_RTT = _gauge(_ENGINE, "poise_engine_rtt_seconds", "Time of a TCP connect from exporter to engine")
ENGINE_PARALLEL_SIZE = _gauge(_ENGINE, "poise_engine_parallel_size", "Parallel size by dimension: tensor, pipeline, data", "dimension")
ENGINE_WORLD_SIZE = _gauge(_ENGINE, "poise_engine_world_size", "Ranks of the engine over all nodes: tensor × pipeline × data")
ENGINE_LOCAL_WORLD_SIZE = _gauge(_ENGINE, "poise_engine_local_world_size", "Ranks of the engine that belong on this node")
ENGINE_GPUS_VISIBLE = _gauge(_ENGINE, "poise_engine_gpus_visible", "Cards of this node that the engine can see")
ENGINE_GPUS_USED = _gauge(_ENGINE, "poise_engine_gpus_used", "Cards of this node that hold a process of the engine")
ENGINE_GPUS_MEANT = _gauge(
    _ENGINE,
    "poise_engine_gpus_meant",
    "Cards of this node that the engine is meant to use, as configured (gpus=); absent when not configured",
)
ENGINE_GPU_INFO = _gauge(
    _ENGINE,
    "poise_engine_gpu_info",
    'A card that the engine can see; use="own" it holds one of its ranks, "other" another engine\'s, "free" nobody\'s; ranks are empty when unused; always 1',
    "gpu",
    "uuid",
    "cuda_index",
    "tp_rank",
    "pp_rank",
    "dp_rank",
    "use",
)
ENGINE_MAX_NUM_SEQS = _gauge(_ENGINE, "poise_engine_max_num_seqs", "Most sequences that one step may hold (--max-num-seqs)")
ENGINE_MAX_NUM_BATCHED_TOKENS = _gauge(
    _ENGINE, "poise_engine_max_num_batched_tokens", "Most tokens that one step may hold (--max-num-batched-tokens)"
)
ENGINE_GPU_MEMORY_UTILIZATION = _gauge(
    _ENGINE,
    "poise_engine_gpu_memory_utilization_ratio",
    "Share of device memory that the engine may take (--gpu-memory-utilization)",
)
ENGINE_OBSERVED_ROLE_INFO = _gauge(
    _ENGINE,
    "poise_engine_observed_role_info",
    "The role that the engine's own counters show, published only when it contradicts its role; always 1",
    "observed",
)
ENGINE_MISSING_INFO = _gauge(
    _ENGINE,
    "poise_engine_missing_info",
    "A series that this vLLM version should feed and does not, or feeds unreliably; always 1",
    "family",
)
ENGINE_CLIENT_CONNECTIONS = _gauge(_ENGINE, "poise_engine_client_connections", "Established TCP connections to the engine's API port")
ENGINE_HTTP_REQUESTS = _counter(_ENGINE, "poise_engine_http_requests_total", "HTTP answers of the engine by class: 2xx, 4xx, 5xx", "code")

# ------------------------------------------------------------------------------------------------------ engine, work level
ENGINE_PROMPT_TOKENS = _counter(_WORK, "poise_engine_prompt_tokens_total", "Prompt tokens processed, cached and transferred ones included")
ENGINE_PROMPT_TOKENS_BY_SOURCE = _counter(
    _WORK,
    "poise_engine_prompt_tokens_by_source_total",
    "Prompt tokens by where their KV came from: local_compute, local_cache_hit, external_kv_transfer",
    "source",
)
ENGINE_GENERATION_TOKENS = _counter(_WORK, "poise_engine_generation_tokens_total", "Tokens generated")
ENGINE_REQUESTS_FINISHED = _counter(
    _WORK,
    "poise_engine_requests_finished_total",
    "Requests finished, by reason: stop, length, abort, error, repetition",
    "reason",
)
ENGINE_PREEMPTIONS = _counter(_WORK, "poise_engine_preemptions_total", "Requests pushed out of the batch for lack of KV cache")
ENGINE_PREFIX_QUERIES = _counter(
    _WORK, "poise_engine_prefix_cache_queries_tokens_total", "Prompt tokens looked up in the engine's own prefix cache"
)
ENGINE_PREFIX_HITS = _counter(_WORK, "poise_engine_prefix_cache_hits_tokens_total", "Prompt tokens found in the engine's own prefix cache")
ENGINE_EXTERNAL_QUERIES = _counter(
    _WORK, "poise_engine_external_cache_queries_tokens_total", "Prompt tokens looked up through the KV connector"
)
ENGINE_EXTERNAL_HITS = _counter(_WORK, "poise_engine_external_cache_hits_tokens_total", "Prompt tokens found through the KV connector")
ENGINE_ADMISSION_REJECTIONS = _counter(_WORK, "poise_engine_admission_rejections_total", "Requests refused by a queue limit", "reason")
ENGINE_KV_TRANSFER_FAILURES = _counter(
    _WORK,
    "poise_engine_kv_transfer_failures_total",
    "KV transfers that failed; from vLLM 0.31 with handshakes and notifications",
    "connector",
)
ENGINE_KV_TRANSFER_EXPIRED = _counter(
    _WORK,
    "poise_engine_kv_transfer_expired_total",
    "Requests whose KV blocks were not fetched in time (counted on prefill)",
    "connector",
)
ENGINE_KV_TRANSFER_LATE = _counter(
    _WORK,
    "poise_engine_kv_transfer_late_notifications_total",
    "Transfers reported done after their lease ended: the blocks may have been reused before",
    "connector",
)
ENGINE_KV_OFFLOAD_LOAD = _counter(_WORK, "poise_engine_kv_offload_load_bytes_total", "KV bytes loaded back from the offloading tier")
ENGINE_KV_OFFLOAD_STORE = _counter(_WORK, "poise_engine_kv_offload_store_bytes_total", "KV bytes stored to the offloading tier")
ENGINE_SPEC_DRAFTS = _counter(_WORK, "poise_engine_spec_decode_drafts_total", "Drafts of speculative decoding")
ENGINE_SPEC_DRAFT_TOKENS = _counter(_WORK, "poise_engine_spec_decode_draft_tokens_total", "Tokens proposed by speculative decoding")
ENGINE_SPEC_ACCEPTED = _counter(_WORK, "poise_engine_spec_decode_accepted_tokens_total", "Proposed tokens that were accepted")
ENGINE_CORRUPTED_REQUESTS = _counter(_WORK, "poise_engine_corrupted_requests_total", "Requests with NaN in their logits")

ENGINE_REQUESTS_RUNNING = _gauge(_WORK, "poise_engine_requests_running", "Requests in the batch now")
ENGINE_REQUESTS_WAITING = _gauge(_WORK, "poise_engine_requests_waiting", "Requests waiting now")
ENGINE_REQUESTS_WAITING_BY_REASON = _gauge(
    _WORK, "poise_engine_requests_waiting_by_reason", "Requests waiting now, by reason: capacity, deferred", "reason"
)
ENGINE_REQUESTS_KV_FETCH = _gauge(
    _WORK,
    "poise_engine_requests_kv_fetch",
    "Waiting requests that need KV from elsewhere, by stage: waiting_to_start, in_progress, completed_waiting",
    "stage",
)
ENGINE_KV_CACHE_USAGE = _gauge(_WORK, "poise_engine_kv_cache_usage_ratio", "Share of KV cache blocks in use")
ENGINE_KV_CACHE_CAPACITY = _gauge(_WORK, "poise_engine_kv_cache_capacity_tokens", "Tokens that the KV cache can hold")
ENGINE_SLEEPING = _gauge(_WORK, "poise_engine_sleeping", "1 while the engine sleeps at this level: weights_offloaded, discard_all", "level")

ENGINE_TTFT = _histogram("poise_engine_time_to_first_token_seconds", "Time from arrival to first token")
ENGINE_ITL = _histogram("poise_engine_inter_token_latency_seconds", "Time between two outputs of one request")
ENGINE_TPOT = _histogram("poise_engine_time_per_output_token_seconds", "Mean time per output token of a finished request")
ENGINE_E2E = _histogram("poise_engine_e2e_latency_seconds", "Time from arrival to the end of a request")
ENGINE_QUEUE_TIME = _histogram("poise_engine_queue_time_seconds", "Time that a request waited before it was scheduled")
ENGINE_PREFILL_TIME = _histogram("poise_engine_prefill_time_seconds", "Time that a request spent in prefill")
ENGINE_DECODE_TIME = _histogram("poise_engine_decode_time_seconds", "Time that a request spent in decode")
ENGINE_INFERENCE_TIME = _histogram("poise_engine_inference_time_seconds", "Time that a request spent running")
ENGINE_REQUEST_PROMPT_TOKENS = _histogram("poise_engine_request_prompt_tokens", "Prompt tokens of finished requests")
ENGINE_REQUEST_GENERATION_TOKENS = _histogram("poise_engine_request_generation_tokens", "Generated tokens of finished requests")
ENGINE_ITERATION_TOKENS = _histogram("poise_engine_iteration_tokens", "Tokens per engine step")
ENGINE_KV_TRANSFER_TIME = _histogram(
    "poise_engine_kv_transfer_seconds", "Duration of KV transfers; one per remote tensor-parallel rank", "connector"
)
ENGINE_KV_TRANSFER_BYTES = _histogram("poise_engine_kv_transfer_bytes", "Bytes of one KV transfer", "connector")

# ---------------------------------------------------------------------------------------------------------------- router
ROUTER_INFO = _gauge(
    _ROUTER, "poise_router_info", "A router before engines of this deployment: vllm-router, production-stack, toy-proxy; always 1", "kind"
)
ROUTER_UP = _gauge(_ROUTER, "poise_router_up", "1 if the router answered, 0 if it was seen and does not")
ROUTER_BACKEND_INFO = _gauge(
    _ROUTER,
    "poise_router_backend_info",
    'An engine that the router sends to, by its role there; healthy is "true", "false" or "" where the router does not tell; always 1',
    "engine",
    "role",
    "healthy",
)
ROUTER_REQUESTS = _counter(_ROUTER, "poise_router_requests_total", "Requests that engines of a role answered through the router", "role")
ROUTER_ERRORS = _counter(
    _ROUTER, "poise_router_errors_total", "Requests that failed at engines of a role, as the router counts them", "role"
)

ALL: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))

#: Series of prometheus_client's own collectors, which the page carries under their usual names.
LIBRARY_PREFIXES = ("process_", "python_")


def by_name() -> dict[str, Metric]:
    """Every name that can stand in a scrape or an expression, with its declaration."""
    return {name: metric for metric in ALL for name in metric.sample_names}
