"""Deployments that split prefill from decode, and routers, as constructed series on top of `tests/rule_scenes.py`: healthy unless told otherwise.

    node = scene.node()
    prefill(node, "p", card=0)
    decode(node, "d", card=1)
    router(node, "r", {"p": "prefill", "d": "decode"})

Knows the contract and no rule.
"""

from __future__ import annotations

from collections.abc import Mapping

from poise.exporter import metrics as m

from tests.rule_scenes import Node, Over, at

#: Requests per second of a deployment, prompt tokens and generated tokens of each.
REQUESTS, PROMPT, ANSWER = 2.0, 200.0, 60.0
BOUNDS = {m.ENGINE_TTFT.name: ("0.25", "2.5"), m.ENGINE_ITL.name: ("0.05", "0.1")}


def alive(up: Over, value: Over) -> Over:
    """The value while `up` is 1, nothing otherwise: what a page that does not answer gives."""
    return lambda t: at(value, t) if at(up, t) == 1 else None


def prefill(
    node: Node,
    name: str,
    *,
    card: int = 0,
    deployment: str = "chat",
    up: Over = 1.0,
    requests: Over = REQUESTS,
    tokens: Over = 1.0,
    waiting: Over = 0.0,
    kv: Over = 0.3,
    expired: Over = 0.0,
    late: Over = 0.0,
    aborts: Over = 0.0,
    **info: str,
) -> dict[str, str]:
    """A prefill engine on one card; `tokens` that it generates per request, `expired`, `late` and `aborts` per second."""
    own = _engine(node, name, "prefill", card, deployment, up, requests, waiting, kv, info)
    work = {**own, "model": "qwen", "dp_rank": "0"}
    node.counter(m.ENGINE_GENERATION_TOKENS, alive(up, _product(requests, tokens)), **work)
    _pages(node, work, up, requests, local=_product(requests, PROMPT), external=0.0, errors=0.0, aborts=aborts, gaps=0.0)
    for metric, rate in ((m.ENGINE_KV_TRANSFER_EXPIRED, expired), (m.ENGINE_KV_TRANSFER_LATE, late), (m.ENGINE_KV_TRANSFER_FAILURES, 0.0)):
        node.counter(metric, alive(up, rate), start=0, **work, connector="nixl")
    return own


def decode(
    node: Node,
    name: str,
    *,
    card: int = 1,
    deployment: str = "chat",
    up: Over = 1.0,
    requests: Over = REQUESTS,
    local: Over = 0.0,
    external: Over | None = None,
    waiting: Over = 0.0,
    kv: Over = 0.5,
    failed: Over = 0.0,
    errors: Over = 0.0,
    aborts: Over = 0.0,
    **info: str,
) -> dict[str, str]:
    """A decode engine on one card; prompt tokens per second that are `local` or `external`, `failed` transfers, `errors` and `aborts` per second."""
    own = _engine(node, name, "decode", card, deployment, up, requests, waiting, kv, info)
    work = {**own, "model": "qwen", "dp_rank": "0"}
    node.counter(m.ENGINE_GENERATION_TOKENS, alive(up, _product(requests, ANSWER)), **work)
    arriving = _product(requests, PROMPT) if external is None else external
    _pages(node, work, up, requests, local=local, external=arriving, errors=errors, aborts=aborts, gaps=_product(requests, ANSWER))
    node.counter(f"{m.ENGINE_KV_TRANSFER_TIME.name}_count", alive(up, _product(arriving, 1 / PROMPT)), **work, connector="nixl")
    node.counter(m.ENGINE_KV_TRANSFER_FAILURES, alive(up, failed), start=0, **work, connector="nixl")
    return own


def router(
    node: Node,
    name: str,
    backends: Mapping[str, str],
    *,
    deployment: str = "chat",
    up: Over = 1.0,
    requests: Over = REQUESTS,
    errors: Over = 0.0,
) -> None:
    """A router with its list (engine → role) and its counts: `requests` answered and `errors` per second at each role."""
    own = {"router": name, "deployment": deployment}
    node.gauge(m.ROUTER_INFO, 1, **own, kind="vllm-router")
    node.gauge(m.ROUTER_UP, up, **own)
    for engine, role in backends.items():
        node.gauge(m.ROUTER_BACKEND_INFO, alive(up, 1.0), **own, engine=engine, role=role, healthy="true")
    for role in sorted(set(backends.values())):
        node.counter(m.ROUTER_REQUESTS, alive(up, requests), **own, role=role)
        node.counter(m.ROUTER_ERRORS, alive(up, errors if role != "prefill" else 0.0), start=0, **own, role=role)


def _engine(
    node: Node, name: str, role: str, card: int, deployment: str, up: Over, requests: Over, waiting: Over, kv: Over, info: dict[str, str]
) -> dict[str, str]:
    """Identity, cards and queues; `info` replaces labels of poise_engine_info."""
    own = {"engine": name, "deployment": deployment, "role": role}
    told = {
        "version": "0.32.0",
        "model": "qwen",
        "model_path": "Qwen/Qwen2.5-7B",
        "kv_connector": "NixlConnector",
        "discovered": "argv",
    } | info
    node.gauge(m.ENGINE_INFO, 1, **own, **told)
    node.gauge(m.ENGINE_UP, up, **own)
    node.gauge(m.ENGINE_PROCESS_UP, up, **own)
    node.gauge(m.ENGINE_START_TIME, alive(up, -86_400.0), **own)
    for metric in (m.ENGINE_LOCAL_WORLD_SIZE, m.ENGINE_WORLD_SIZE, m.ENGINE_GPUS_USED, m.ENGINE_GPUS_VISIBLE):
        node.gauge(metric, alive(up, 1.0), **own)
    uuid = f"{node.instance.partition(':')[0]}-GPU-{card}"
    node.gauge(m.ENGINE_GPU_INFO, alive(up, 1.0), **own, gpu=str(card), uuid=uuid, cuda_index=str(card), use="own")
    work = {**own, "model": "qwen", "dp_rank": "0"}
    node.gauge(m.ENGINE_REQUESTS_RUNNING, alive(up, _product(requests, 2.0)), **work)
    node.gauge(m.ENGINE_REQUESTS_WAITING, alive(up, waiting), **work)
    node.gauge(m.ENGINE_KV_CACHE_USAGE, alive(up, kv), **work)
    return own


def _pages(
    node: Node, work: dict[str, str], up: Over, requests: Over, *, local: Over, external: Over, errors: Over, aborts: Over, gaps: Over
) -> None:
    """What vLLM counts of prompts, requests and latencies."""
    node.counter(m.ENGINE_PROMPT_TOKENS, alive(up, lambda t: (at(local, t) or 0.0) + (at(external, t) or 0.0)), **work)
    for source, rate in (("local_compute", local), ("local_cache_hit", 0.0), ("external_kv_transfer", external)):
        node.counter(m.ENGINE_PROMPT_TOKENS_BY_SOURCE, alive(up, rate), **work, source=source)
    for reason, rate in (("length", requests), ("error", errors), ("abort", aborts)):
        node.counter(m.ENGINE_REQUESTS_FINISHED, alive(up, rate), **work, reason=reason)
    for family, rate in ((m.ENGINE_TTFT.name, requests), (m.ENGINE_ITL.name, gaps)):
        for bound in (*BOUNDS[family], "+Inf"):
            node.counter(f"{family}_bucket", alive(up, rate), start=1e5, **work, le=bound)
        node.counter(f"{family}_count", alive(up, rate), start=1e5, **work)


def _product(left: Over, right: Over) -> Over:
    return lambda t: (at(left, t) or 0.0) * (at(right, t) or 0.0)
