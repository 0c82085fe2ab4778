"""Real deployments that split prefill from decode, behind a real vllm-router: what the exporter makes of them, healthy and with a part killed.

Its name sorts before the other files: it starts deployments of its own, and there is to be one at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from poise.testbed import faults, model, request, status
from poise.testbed.deployment import Deployment

from tests import fault_runs
from tests.fault_runs import Loaded
from tests.fault_watch import watching
from tests.vllm.deploying import bring_up, progress_of, read, total
from tests.vllm.watching import PATIENCE, SATURATING_CLIENTS, drive, exporter_page, ours, when
from tests.waiting import wait_until

#: Some more than the 20 that the check of the router wants to see before it says anything.
REQUESTS = 24
#: Tokens in a block of vLLM's KV cache on CPUs (0.32); the prompts here fill less than one, and NIXL moves whole blocks.
BLOCK_TOKENS = 128


def block_bytes(prefill_ranks: int) -> int:
    """The KV cache of one block of the tiny model in bfloat16: what decode pulls from each of so many prefill ranks."""
    shape = model.tiny_shape()
    heads = shape.num_key_value_heads // prefill_ranks
    return BLOCK_TOKENS * shape.num_hidden_layers * 2 * heads * (shape.hidden_size // shape.num_attention_heads) * shape.element_bytes


def by_role(deployment: Deployment, page: str, name: str, **labels: str) -> dict[str, float]:
    """Role → value, added up over what else tells the series apart."""
    found: dict[str, float] = {}
    for given, value in ours(deployment, page, name):
        if labels.items() <= given.items():
            found[given["role"]] = found.get(given["role"], 0.0) + value
    return found


def sent_on(deployment: Deployment) -> dict[str, float]:
    """Requests by role as the router's own page counts them."""
    assert deployment.plan.router is not None
    own = read(f"{deployment.plan.router.metrics_url}/metrics")
    return {role: total(own, f"vllm_router_pd_{role}_requests_total") for role in ("prefill", "decode")}


def settled(deployment: Deployment) -> str:
    """The exporter's page once it has counted everything that the own pages of engines and router count."""
    page = ""

    def counted() -> bool:
        nonlocal page
        page = exporter_page(deployment)
        finished = by_role(deployment, page, "poise_engine_requests_finished_total")
        if min(finished.values(), default=0) < REQUESTS:
            return False
        own = {engine.role: total(read(f"{engine.url}/metrics"), "vllm:request_success_total") for engine in deployment.plan.engines}
        return finished == own and by_role(deployment, page, "poise_router_requests_total") == sent_on(deployment)

    wait_until(counted, "the next poll of engines and router", PATIENCE)
    return page


def failing(deployment: Deployment, page: Mapping[str, Any]) -> list[str]:
    """Lines that fail, but for those of engines that are not ours."""
    ports = tuple(f":{engine.port}" for engine in deployment.plan.engines)
    return [line["line"] for line in page["checks"] if line["status"] == "fail" and (not line["engine"] or line["engine"].endswith(ports))]


def assert_one_deployment_of_two_roles(deployment: Deployment, page: str) -> None:
    """Roles by argv, one deployment of engines and router, the router's word on them, and as many requests on each side."""
    engines = [labels for labels, _ in ours(deployment, page, "poise_engine_info")]
    assert {(e["role"], e["role_source"], e["kv_connector"], e["discovered"]) for e in engines} == {
        ("prefill", "argv", "NixlConnector", "argv"),
        ("decode", "argv", "NixlConnector", "argv"),
    }
    ((router, up),) = ours(deployment, page, "poise_router_up")
    assert up == 1
    assert {engine["deployment"] for engine in engines} == {router["deployment"]}
    backends = [labels for labels, _ in ours(deployment, page, "poise_router_backend_info")]
    assert {(b["engine"], b["role"], b["healthy"]) for b in backends} == {(e["engine"], e["role"], "true") for e in engines}
    assert min(by_role(deployment, page, "poise_router_requests_total").values()) >= REQUESTS
    assert all(value > 0 for value in by_role(deployment, page, "poise_engine_rtt_seconds").values())


def assert_kv_cache_went_from_prefill_to_decode(deployment: Deployment, page: str, prefill_ranks: int) -> None:
    """Each request of decode pulled one block from each prefill rank, and decode computed no prompt itself."""
    finished = by_role(deployment, page, "poise_engine_requests_finished_total")["decode"]
    transfers = {"prefill": 0.0, "decode": finished * prefill_ranks}
    assert by_role(deployment, page, "poise_engine_kv_transfer_seconds_count") == transfers
    assert by_role(deployment, page, "poise_engine_kv_transfer_bytes_count") == transfers
    assert by_role(deployment, page, "poise_engine_kv_transfer_bytes_sum")["decode"] == transfers["decode"] * block_bytes(prefill_ranks)
    assert by_role(deployment, page, "poise_engine_kv_transfer_failures_total") == {"prefill": 0, "decode": 0}
    prompts = by_role(deployment, page, "poise_engine_prompt_tokens_total")["decode"]
    assert prompts > 0
    assert by_role(deployment, page, "poise_engine_external_cache_hits_tokens_total")["decode"] == prompts
    assert by_role(deployment, page, "poise_engine_prompt_tokens_by_source_total", source="external_kv_transfer") == {
        "prefill": 0,
        "decode": prompts,
    }
    assert by_role(deployment, page, "poise_engine_prompt_tokens_by_source_total", source="local_compute")["decode"] == 0


def cards_of(deployment: Deployment, page: str) -> set[tuple[str, str, str]]:
    """(role, card, tensor-parallel rank) of every card that an engine owns."""
    return {
        (card["role"], card["gpu"], card["tp_rank"]) for card, _ in ours(deployment, page, "poise_engine_gpu_info") if card["use"] == "own"
    }


@pytest.fixture(scope="module")
def pd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    before = set(os.listdir("/dev/shm"))
    with bring_up("pd", tmp_path_factory.mktemp("pd") / "state") as deployment:
        yield deployment
    assert set(os.listdir("/dev/shm")) <= before


def test_prefill_and_decode_behind_a_router_are_one_deployment_and_its_transfers_are_counted(pd: Deployment) -> None:
    found = status.look(pd)
    assert found.ready
    assert {(part.name, part.role, part.engine_role) for part in found.parts if part.url} == {
        ("prefill", "engine", "prefill"),
        ("decode", "engine", "decode"),
        ("router", "router", None),
        ("exporter", "exporter", None),
    }
    result = drive(pd, REQUESTS)
    assert (result.finished, result.failed) == (REQUESTS, 0)
    page = settled(pd)
    assert_one_deployment_of_two_roles(pd, page)
    assert_kv_cache_went_from_prefill_to_decode(pd, page, prefill_ranks=1)
    assert cards_of(pd, page) == {("prefill", "0", ""), ("decode", "1", "")}
    when(pd, lambda page: not failing(pd, page), "no failing check")


def test_what_decode_makes_of_the_transferred_cache_is_what_prefill_alone_would_answer(pd: Deployment) -> None:
    urls = (pd.plan.url, pd.engine("prefill").url)
    routed, direct = (request.complete(url, pd.plan.served_name, "server token queue", 16, 60, os.environ) for url in urls)
    assert routed["choices"][0]["text"] == direct["choices"][0]["text"] != ""  # type: ignore[index]  # as OpenAI's API has it


@pytest.mark.parametrize("name", ["prefill-direct", "kv-transfer-broken"])  # neighbours by different checks: lines stay for a minute
def test_a_fault_between_the_two_moves_its_series_is_named_and_undone(pd: Deployment, name: str) -> None:
    load = Loaded(pd, SATURATING_CLIENTS)
    with watching(pd) as watch:
        try:
            row = fault_runs.run(faults.find(name), pd, watch, load)
        finally:
            load.off()
        assert row.troubles + row.missing == []
    assert pd.plan.fault is None
    assert pd.plan.engines == pd.plan.healthy
    assert drive(pd, 4).failed == 0


def test_a_killed_router_and_a_killed_decode_are_named(pd: Deployment) -> None:
    faults.apply(pd, faults.find("kill-router"), progress_of("kill-router", []))
    wait_until(lambda: [value for _, value in ours(pd, exporter_page(pd), "poise_router_up")] == [0], "the router down", PATIENCE)
    when(pd, lambda page: any("so that no request reaches the engines" in line for line in failing(pd, page)), "the check of the router")
    assert faults.undo(pd, progress_of("undo", [])) == ["router"]
    wait_until(lambda: [value for _, value in ours(pd, exporter_page(pd), "poise_router_up")] == [1], "the router up", PATIENCE)
    faults.apply(pd, faults.find("kill-decode"), progress_of("kill-decode", []))
    line, _ = when(pd, lambda page: next((line for line in failing(pd, page) if "the engine's process went" in line), None), "decode's end")
    assert str(pd.engine("decode").port) in line
    assert by_role(pd, exporter_page(pd), "poise_engine_process_up") == {"prefill": 1, "decode": 0}

    def healthy() -> dict[str, str]:
        return {labels["role"]: labels["healthy"] for labels, _ in ours(pd, exporter_page(pd), "poise_router_backend_info")}

    wait_until(lambda: healthy() == {"prefill": "true", "decode": "false"}, "the router's word on decode", PATIENCE)


def test_with_two_prefill_ranks_each_request_makes_two_transfers_of_half_the_heads(pd: Deployment, tmp_path: Path) -> None:
    pd.down()
    with bring_up("hybrid", tmp_path / "state") as hybrid:
        result = drive(hybrid, REQUESTS)
        assert (result.finished, result.failed) == (REQUESTS, 0)
        page = settled(hybrid)
        assert_one_deployment_of_two_roles(hybrid, page)
        assert_kv_cache_went_from_prefill_to_decode(hybrid, page, prefill_ranks=2)
        assert cards_of(hybrid, page) == {("prefill", "0", "0"), ("prefill", "1", "1"), ("decode", "2", "")}
        when(hybrid, lambda page: not failing(hybrid, page), "no failing check")
