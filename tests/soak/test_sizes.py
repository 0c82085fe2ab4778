"""A split deployment in other sizes than it ships in: two prefill servers and one decode server, and what is left when one of the two dies."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from poise.testbed import shapes, status
from poise.testbed.deployment import Deployment
from poise.testbed.planning import Request, step_names
from poise.testbed.sizing import Sizes, resize

from tests.vllm.deploying import progress_of, request_for
from tests.vllm.watching import PATIENCE, drive, exporter_page, ours
from tests.waiting import wait_until

pytestmark = pytest.mark.soak

REQUESTS = 24


def finished(deployment: Deployment) -> dict[str, float]:
    """Engine's port → requests that it finished, as the exporter counts."""
    found: dict[str, float] = {}
    for labels, value in ours(deployment, exporter_page(deployment), "poise_engine_requests_finished_total"):
        port = labels["engine"].rpartition(":")[2]
        found[port] = found.get(port, 0.0) + value
    return found


def test_two_prefill_servers_share_the_requests_and_one_decode_server_pulls_from_both(tmp_path: Path) -> None:
    shape = resize(shapes.load("pd"), Sizes(prefill=2, decode=1))
    request = request_for("pd", tmp_path / "state")
    wanted = Request(shape, request.state_directory, request.cache_directory, any_ports=True)
    began = time.monotonic()
    with Deployment.up(wanted, progress_of(shape.title, step_names(wanted, simulated=True))) as deployment:
        print(f"ready after {time.monotonic() - began:.0f} s")
        ports = {engine.name: str(engine.port) for engine in deployment.plan.engines}
        assert list(ports) == ["prefill_1", "prefill_2", "decode"]
        result = drive(deployment, REQUESTS)
        assert (result.finished, result.failed) == (REQUESTS, 0)
        wait_until(lambda: finished(deployment).get(ports["decode"], 0) >= REQUESTS, "the exporter's count", PATIENCE)
        counted = finished(deployment)
        print({name: counted[port] for name, port in ports.items()})
        # One request more came with `up`; the router takes its prefill servers in turn.
        assert counted[ports["prefill_1"]] + counted[ports["prefill_2"]] == counted[ports["decode"]]
        assert abs(counted[ports["prefill_1"]] - counted[ports["prefill_2"]]) <= 2
        page = exporter_page(deployment)
        engines = [labels for labels, _ in ours(deployment, page, "poise_engine_info")]
        assert sorted(labels["role"] for labels in engines) == ["decode", "prefill", "prefill"]
        assert len({labels["deployment"] for labels in engines}) == 1
        cards = {(c["role"], c["gpu"]) for c, _ in ours(deployment, page, "poise_engine_gpu_info") if c["use"] == "own"}
        assert cards == {("prefill", "0"), ("prefill", "1"), ("decode", "2")}
        backends = {b["engine"]: b["healthy"] for b, _ in ours(deployment, page, "poise_router_backend_info")}
        assert list(backends.values()) == ["true"] * 3
        transfers = {labels["engine"]: value for labels, value in ours(deployment, page, "poise_engine_kv_transfer_seconds_count")}
        assert sorted(transfers.values()) == [0, 0, counted[ports["decode"]]]

        deployment.kill("prefill_1")
        print(status.text(status.look(deployment)))
        (router,) = [part for part in status.look(deployment).parts if part.role == "router"]
        assert (router.state, router.reason) == ("degraded", "backend prefill_1 is dead")
        # The router learns of it by asking now and then; from then on all goes to the other.
        wait_until(lambda: drive(deployment, 2).failed == 0, "requests through the prefill server that is left", PATIENCE)
        again = drive(deployment, REQUESTS)
        print(f"with prefill_1 dead: {again.finished} finished, {again.failed} failed")
        assert (again.finished, again.failed) == (REQUESTS, 0)
