"""A router and its engines, each in a container of real namespaces: asked at their own addresses, joined by them, grouped in one deployment."""

from __future__ import annotations

import os
import socket
import sys
import textwrap
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.container_node import TREE, Node, node
from tests.waiting import wait_until

pytestmark = pytest.mark.contract

NODE = socket.gethostname()
KV_BOTH = ("--port", "8001", "--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}')

#: As vllm-router is once it runs: a title in place of its command line, an API that knows its workers, metrics at another port.
ROUTER = """
    import contextlib, json, threading
    from tests.recorded import CAPTURES, PageServer, serve
    workers = [{"url": f"http://10.77.{n}.2:8001", "worker_type": kind, "is_healthy": True} for n, kind in ((1, "prefill"), (2, "decode"))]
    with contextlib.ExitStack() as stack:
        api = PageServer(b"", documents={"/workers": json.dumps({"workers": workers}).encode()})
        stack.enter_context(serve(api, 30000, host="0.0.0.0"))
        stack.enter_context(serve(PageServer(CAPTURES / "pd-router-during07.prom"), 29000, host="0.0.0.0"))
        print("serving", flush=True)
        threading.Event().wait()
"""


def start_router(made: Node) -> int:
    """A router in a network namespace of its own; its pid."""
    script, log = made.folder / "router.py", str(made.folder / "router.log")
    script.write_text(textwrap.dedent(ROUTER))
    become = f'exec -a vllm::router "{sys.executable}" <"{script}"'
    command = ["unshare", "--net", "bash", "-c", become]
    pid = int(made.ask("background", command=command, environment={"PYTHONPATH": str(TREE), "PATH": os.environ["PATH"]}, log=log))
    made.starting.append((pid, log))
    return pid


def series(page: str, name: str) -> list[dict[str, str]]:
    return [
        sample.labels
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name and sample.value
    ]


def test_a_router_in_a_container_groups_engines_in_containers(tmp_path: Path) -> None:
    with node(tmp_path) as made:
        pids = [
            made.start("prefill", *KV_BOTH, serve=("0.0.0.0:8001",)),
            made.start("decode", *KV_BOTH, serve=("0.0.0.0:8001",)),
            start_router(made),
        ]
        for number, pid in enumerate(pids, 1):
            made.connect(pid, f"10.77.{number}.2/24", node_side=(f"10.77.{number}.1/24",))
        made.settle()
        made.exporter(dict(os.environ))
        router, first, second = f"{NODE}:30000", f"{NODE}:8001", f"{NODE}:8001#2"
        wait_until(lambda: len(series(made.get("/metrics"), "poise_router_backend_info")) == 2, "the router has told its engines")
        wait_until(lambda: {item["deployment"] for item in series(made.get("/metrics"), "poise_engine_up")} == {router}, "they are grouped")
        page = made.get("/metrics")
        backends = {(item["engine"], item["role"]) for item in series(page, "poise_router_backend_info")}
        assert {engine for engine, _ in backends} == {first, second}
        assert backends == {(item["engine"], item["role"]) for item in series(page, "poise_engine_info")}
        assert {item["role_source"] for item in series(page, "poise_engine_info")} == {"router"}
        assert {item["role"] for item in series(page, "poise_router_requests_total")} == {"prefill", "decode"}
        assert "router_pages" in {item["collector"] for item in series(page, "poise_collector_success")}
