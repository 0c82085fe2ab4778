"""Scenes of deployments that split prefill from decode: engines with what they have counted at a second of their life, and their router."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from poise.exporter import metrics as m
from poise.exporter.metrics import Metric
from poise.exporter.snapshot import (
    Engine,
    EngineConfig,
    EngineIdentity,
    EnginePage,
    Histogram,
    ModelShape,
    NodeSnapshot,
    ObservedEngine,
    Role,
    Router,
    RouterBackend,
    Work,
)

from tests.scenes import START, node

NIXL = "NixlConnector"


def pd_engine(
    role: Role,
    *,
    name: str = "",
    deployment: str = "qwen-pd",
    transfers: float = 0.0,
    megabytes: float = 8.0,
    sources: Mapping[str, float] | None = None,
    version: str = "0.32.0",
    cache: Mapping[str, str] | None = None,
    page: bool = True,
    process_up: bool | None = True,
    rtt: float | None = 0.0002,
    role_source: str = "argv",
    shape: ModelShape | None = None,
    config: Mapping[str, Any] | None = None,
    **counters: float,
) -> Engine:
    """An engine of one role. `counters` by short name: finished, generated, failed, expired, late; `sources`: prompt tokens by source."""
    short: dict[str, tuple[Metric, tuple[str, ...]]] = {
        "finished": (m.ENGINE_REQUESTS_FINISHED, ("length",)),
        "generated": (m.ENGINE_GENERATION_TOKENS, ()),
        "failed": (m.ENGINE_KV_TRANSFER_FAILURES, (NIXL,)),
        "expired": (m.ENGINE_KV_TRANSFER_EXPIRED, (NIXL,)),
        "late": (m.ENGINE_KV_TRANSFER_LATE, (NIXL,)),
    }
    readings: dict[Metric, dict[tuple[str, ...], float]] = {
        metric: {labels: counters.get(key, 0.0)} for key, (metric, labels) in short.items()
    }
    readings[m.ENGINE_PROMPT_TOKENS_BY_SOURCE] = {(source,): value for source, value in (sources or {}).items()}
    readings[m.ENGINE_PROMPT_TOKENS] = {(): sum((sources or {}).values())}
    histograms = {
        m.ENGINE_KV_TRANSFER_TIME: {(NIXL,): Histogram((("+Inf", transfers),), transfers * 0.01, transfers)},
        m.ENGINE_KV_TRANSFER_BYTES: {(NIXL,): Histogram((("+Inf", transfers),), transfers * megabytes * 2**20, transfers)},
    }
    work = Work("qwen-32b", "0", readings, histograms)
    kv_role = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}.get(role)
    told = {"model": "qwen-32b", "kv_connector": NIXL, "kv_role": kv_role, "environment_read": True, **(config or {})}
    engine = name or {Role.PREFILL: "n1:8100", Role.DECODE: "n1:8200"}.get(role, "n1:8300")
    observed = ObservedEngine(
        EngineIdentity(engine, deployment, role, role_source, "argv"),
        EngineConfig(**told),
        url=f"http://127.0.0.1:{engine.rpartition(':')[2]}",
        pid=4242,
        process_up=process_up,
        start_time=START - 3600,
        page=EnginePage(START, 0.01, version, (work,), cache_config=cache or {"block_size": "16", "cache_dtype": "auto"}) if page else None,
        page_error="" if page else "connection refused",
        last_page_at=START,
        rtt=rtt,
        model_shape=shape or ModelShape(32, 8, "bfloat16"),
    )
    return Engine(observed, (), frozenset(), 1, "processes")


def prefill(**more: Any) -> Engine:
    """An engine that prefills."""
    return pd_engine(Role.PREFILL, **more)


def decode(**more: Any) -> Engine:
    """An engine that decodes."""
    return pd_engine(Role.DECODE, **more)


def pd_router(
    backends: Sequence[tuple[str, Role, bool | None]] = (("n1:8100", Role.PREFILL, True), ("n1:8200", Role.DECODE, True)),
    *,
    disaggregated: bool = True,
    up: bool = True,
    requests: Mapping[str, float] | None = None,
    errors: Mapping[str, float] | None = None,
) -> Router:
    """A router before these engines: (engine, role, healthy); what it counted by role."""
    counted = {
        metric: {(role,): value for role, value in values.items()}
        for metric, values in ((m.ROUTER_REQUESTS, requests), (m.ROUTER_ERRORS, errors))
        if values
    }
    known = tuple(RouterBackend(f"http://{engine}", role, healthy, engine) for engine, role, healthy in backends)
    return Router("n1:8000", "qwen-pd", "vllm-router", "http://127.0.0.1:8000", 99, up, "", disaggregated, known, counted)


def pd_node(*engines: Engine, routers: Sequence[Router] = ()) -> NodeSnapshot:
    """A node with these engines and routers, without cards."""
    return dataclasses.replace(node([], engines, expected=0), routers=tuple(routers))
