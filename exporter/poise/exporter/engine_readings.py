"""All server-level series of an engine, from what was observed of it and which cards it has. Pure."""

from __future__ import annotations

from poise.exporter import metrics as m
from poise.exporter.metrics import Metric
from poise.exporter.observed_role import observed_role
from poise.exporter.snapshot import Engine, EnginePage, Rank, Readings, Use


def engine_readings(engine: Engine, gpus_visible: int | None) -> Readings:
    """Server-level readings; a gone engine keeps its identity and says that it is down, nothing else.

    `gpus_visible`: number of cards that its environment lets it see, None when unknown.
    """
    observed, page = engine.observed, engine.observed.page
    readings: dict[Metric, dict[tuple[str, ...], float]] = {
        m.ENGINE_INFO: {_info(engine): 1.0},
    }

    def put(metric: Metric, value: float | None, *labels: str) -> None:
        if value is not None:
            readings.setdefault(metric, {})[labels] = float(value)

    if observed.url is not None or not observed.process_up:
        # A living engine without an address (a headless node, another network namespace) is not asked, so nothing says that it is down.
        put(m.ENGINE_UP, page is not None)
    put(m.ENGINE_PROCESS_UP, observed.process_up)
    put(m.ENGINE_RTT, observed.rtt)
    if page is not None:
        put(m.ENGINE_SCRAPE_DURATION, page.duration)
        for family in page.missing:
            put(m.ENGINE_MISSING_INFO, 1.0, family)
        for code, count in page.http_requests.items():
            put(m.ENGINE_HTTP_REQUESTS, count, code)
        contradicting = observed_role(page, observed.identity.role)
        if contradicting is not None:
            put(m.ENGINE_OBSERVED_ROLE_INFO, 1.0, contradicting)
    share = engine.config.gpu_memory_utilization if observed.process_up else None
    put(m.ENGINE_GPU_MEMORY_UTILIZATION, share if share is not None else _told_share(page))
    if observed.process_up:
        _put_process(engine, gpus_visible, readings)
    return readings


def _put_process(engine: Engine, gpus_visible: int | None, readings: dict[Metric, dict[tuple[str, ...], float]]) -> None:
    """What is known because the engine's process is here: its command line, its cards, its connections."""
    config = engine.config

    def put(metric: Metric, value: float | None, *labels: str) -> None:
        if value is not None:
            readings.setdefault(metric, {})[labels] = float(value)

    put(m.ENGINE_START_TIME, engine.observed.start_time)
    put(m.ENGINE_PARALLEL_SIZE, config.tensor_parallel_size, "tensor")
    put(m.ENGINE_PARALLEL_SIZE, config.pipeline_parallel_size, "pipeline")
    put(m.ENGINE_PARALLEL_SIZE, config.data_parallel_size, "data")
    put(m.ENGINE_WORLD_SIZE, config.world_size)
    put(m.ENGINE_LOCAL_WORLD_SIZE, engine.local_world_size)
    put(m.ENGINE_GPUS_VISIBLE, gpus_visible)
    put(m.ENGINE_GPUS_MEANT, engine.observed.gpus_meant)
    put(m.ENGINE_GPUS_USED, len(engine.used) if engine.used is not None else None)
    put(m.ENGINE_MAX_NUM_SEQS, config.max_num_seqs)
    put(m.ENGINE_MAX_NUM_BATCHED_TOKENS, config.max_num_batched_tokens)
    put(m.ENGINE_CLIENT_CONNECTIONS, engine.observed.client_connections)
    libraries = engine.observed.libraries
    if libraries is not None and (libraries.nccl or libraries.cuda_runtime):
        put(m.ENGINE_NCCL_INFO, 1.0, libraries.nccl, libraries.cuda_runtime)
    pod = engine.observed.pod
    if pod is not None:
        put(m.ENGINE_POD_INFO, 1.0, pod.namespace, pod.name, pod.container)
    for card in engine.visible or ():
        tensor, pipeline, data = _rank_labels(card.rank, card.use)
        cuda_index = "" if card.cuda_index is None else str(card.cuda_index)
        put(m.ENGINE_GPU_INFO, 1.0, str(card.index), card.uuid, cuda_index, tensor, pipeline, data, str(card.use))


def _rank_labels(rank: Rank | None, use: Use) -> tuple[str, str, str]:
    if rank is None or use is not Use.OWN:
        return "", "", ""
    numbers = (rank.tp_rank, rank.pp_rank, rank.dp_rank)
    tensor, pipeline, data = ("" if number is None else str(number) for number in numbers)
    return tensor, pipeline, data


def _info(engine: Engine) -> tuple[str, ...]:
    """The values of the labels of `poise_engine_info`; empty where nothing tells. The page stands in for what no flag says."""
    config, identity, page = engine.config, engine.identity, engine.observed.page
    cache = page.cache_config if page is not None else {}
    served = page.work[0].model if page is not None and page.work else ""

    def text(value: object, otherwise: str = "") -> str:
        return otherwise if value is None else str(value)

    return (
        page.version if page is not None else "",
        text(config.model, served),
        text(config.model_path),
        text(config.revision),
        text(config.dtype),
        text(config.quantization),
        text(config.kv_cache_dtype, cache.get("cache_dtype", "")),
        text(config.block_size, cache.get("block_size", "")),
        text(config.max_model_len),
        text(config.kv_connector),
        identity.role_source,
        identity.discovered,
    )


def _told_share(page: EnginePage | None) -> float | None:
    """gpu_memory_utilization as the page's cache_config_info tells it."""
    text = page.cache_config.get("gpu_memory_utilization", "") if page is not None else ""
    try:
        share = float(text)
    except ValueError:
        return None
    return share if 0 < share <= 1 else None
