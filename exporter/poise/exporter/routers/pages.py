"""Translates what routers tell into backends and counts: vllm-router's list of workers and its metrics, production-stack's metrics.

Each count keeps its series apart, by the labels that the router gives it; whoever adds them up decides what it means when one vanishes
(`counters.py`). Pure. Sources: vllm-router 0.1.17 (measured; src/metrics.rs, src/routers/http/{router,pd_router}.rs), production-stack
src/vllm_router/services/metrics_service and routers/metrics_router.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from poise.exporter import metrics as m
from poise.exporter.engines.page import Labels, PageError, Samples
from poise.exporter.metrics import Metric
from poise.exporter.routers.addresses import backend_url
from poise.exporter.routers.command_line import BACKENDS_LIMIT
from poise.exporter.snapshot import Role, RouterBackend

#: (metric, role) → the router's own series, by their labels as text → value.
Counts = Mapping[tuple[Metric, Role], Mapping[str, float]]

_WORKER_ROLES = {"prefill": Role.PREFILL, "decode": Role.DECODE, "regular": Role.MIXED}

#: What vllm-router counts. With prefill and decode apart it counts each step by worker, without by route. A request that failed stands under
#: errors only. `no_available_workers` is counted for each try of a request that then ends as one whose tries are used up.
_PREFILL_REQUESTS = "vllm_router_pd_prefill_requests_total"
_DECODE_REQUESTS = "vllm_router_pd_decode_requests_total"
_DISAGGREGATED: Mapping[str, tuple[Metric, Role]] = {
    _PREFILL_REQUESTS: (m.ROUTER_REQUESTS, Role.PREFILL),
    _DECODE_REQUESTS: (m.ROUTER_REQUESTS, Role.DECODE),
    "vllm_router_pd_prefill_errors_total": (m.ROUTER_ERRORS, Role.PREFILL),
    "vllm_router_pd_decode_errors_total": (m.ROUTER_ERRORS, Role.DECODE),
    "vllm_router_pd_stream_errors_total": (m.ROUTER_ERRORS, Role.DECODE),
}
_TOGETHER: Mapping[str, tuple[Metric, Role]] = {
    "vllm_router_requests_total": (m.ROUTER_REQUESTS, Role.MIXED),
    "vllm_router_retries_exhausted_total": (m.ROUTER_ERRORS, Role.MIXED),
    "vllm_router_request_errors_total": (m.ROUTER_ERRORS, Role.MIXED),
}
_ERROR_COUNTED_TWICE = ("error_type", "no_available_workers")
#: Counts of what came in; when these move and none of the above is there, this version has other names and nothing is known.
_CAME_IN = {True: "vllm_router_pd_requests_total", False: "vllm_router_processed_requests_total"}

_PS_HEALTHY = "vllm:healthy_pods_total"
_PS_ANSWERED = "vllm:request_latency_seconds_count"
_PS_INCOMING = "vllm:num_incoming_requests_total"
_PS_ERRORS = "vllm:request_errors_total"
#: Only production-stack's own page has this one.
_PS_MARK = "router_cpu_usage_percent"

_WANTED = frozenset({*_DISAGGREGATED, *_TOGETHER, *_CAME_IN.values(), _PS_HEALTHY, _PS_ANSWERED, _PS_INCOMING, _PS_ERRORS, _PS_MARK})


def wanted(name: str) -> bool:
    """Whether a sample of a router's page is read."""
    return name in _WANTED


@dataclass(frozen=True, slots=True)
class ProductionStackPage:
    """What production-stack's page tells: the engines that it knows with their health, and its counts."""

    backends: tuple[RouterBackend, ...]
    counts: Counts


def read_workers(body: bytes | bytearray) -> tuple[RouterBackend, ...]:
    """The backends of vllm-router's ``GET /workers``. Ranks of one engine are one backend, healthy when all are.

    Raises:
        PageError: it is no list of workers.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise PageError("the list of workers is no JSON") from None
    workers = document.get("workers") if isinstance(document, dict) else None
    if not isinstance(workers, list):
        raise PageError("the answer has no list of workers")
    found = []
    for worker in workers:
        url = worker.get("url") if isinstance(worker, dict) else None
        clean = backend_url(url) if isinstance(url, str) else None
        if clean is not None:
            kind, healthy = worker.get("worker_type"), worker.get("is_healthy")
            role = _WORKER_ROLES.get(kind, Role.UNKNOWN) if isinstance(kind, str) else Role.UNKNOWN
            found.append(RouterBackend(clean, role, healthy if isinstance(healthy, bool) else None))
    return merged(found)


def merged(backends: Iterable[RouterBackend]) -> tuple[RouterBackend, ...]:
    """Each URL and role once, in order; unhealthy when one of them is. At most `BACKENDS_LIMIT`."""
    health: dict[tuple[str, Role], list[bool | None]] = {}
    for backend in backends:
        key = (backend.url, backend.role)
        if key in health or len(health) < BACKENDS_LIMIT:
            health.setdefault(key, []).append(backend.healthy)
    return tuple(
        RouterBackend(url, role, False if False in told else True if True in told else None) for (url, role), told in health.items()
    )


def read_vllm_router(samples: Samples, *, disaggregated: bool) -> Counts:
    """The counts of vllm-router's page. A count whose series it has not made yet is 0: it makes one with the first event.

    Raises:
        PageError: requests came in and none of the names that count them is there.
    """
    names = _DISAGGREGATED if disaggregated else _TOGETHER
    counts: dict[tuple[Metric, Role], dict[str, float]] = {key: {} for key in names.values()}
    seen = False
    for name, key in names.items():
        for labels, value in samples.get(name, ()):
            seen = True
            if labels.get(_ERROR_COUNTED_TWICE[0]) != _ERROR_COUNTED_TWICE[1]:
                _add(counts[key], name, labels, value)
    if not seen and any(value > 0 for _, value in samples.get(_CAME_IN[disaggregated], ())):
        raise PageError("it counts requests under names that Poise does not know")
    return counts


def tells_disaggregated(samples: Samples) -> bool:
    """Whether vllm-router's page shows that it sends prefill and decode to different engines."""
    return any(name in samples for name in (*_DISAGGREGATED, _CAME_IN[True]))


def is_production_stack(samples: Samples) -> bool:
    """Whether this is production-stack's own page."""
    return _PS_MARK in samples


def read_production_stack(samples: Samples, told: Collection[RouterBackend], other_role: Role) -> ProductionStackPage:
    """Backends and counts of production-stack's page. `told`: backends with their roles from its command line; `other_role`: that of the others.

    Older versions count requests as they come in, by model; newer ones also by the engine that answered.
    """
    roles = {backend.url: backend.role for backend in told}
    found = []
    for labels, value in samples.get(_PS_HEALTHY, ()):
        url = backend_url(labels.get("server", ""))
        if url is not None:
            found.append(RouterBackend(url, roles.get(url, other_role), value > 0))
    counts: dict[tuple[Metric, Role], dict[str, float]] = {}
    answered = samples.get(_PS_ANSWERED, ())
    for metric, name in ((m.ROUTER_REQUESTS, _PS_ANSWERED), (m.ROUTER_ERRORS, _PS_ERRORS)):
        for labels, value in samples.get(name, ()):
            role = roles.get(backend_url(labels.get("server", "")) or "", other_role)
            _add(counts.setdefault((metric, role), {}), name, labels, value)
    if not answered and other_role is Role.MIXED:
        for labels, value in samples.get(_PS_INCOMING, ()):
            _add(counts.setdefault((m.ROUTER_REQUESTS, Role.MIXED), {}), _PS_INCOMING, labels, value)
    for metric, role in list(counts):
        if metric is m.ROUTER_REQUESTS:
            counts.setdefault((m.ROUTER_ERRORS, role), {})
    return ProductionStackPage(merged(found) or tuple(told), counts)


def _add(into: dict[str, float], name: str, labels: Labels, value: float) -> None:
    if math.isfinite(value) and value >= 0:
        key = name + "".join(f"\0{label}\0{text}" for label, text in sorted(labels.items()))
        into[key] = into.get(key, 0.0) + value
