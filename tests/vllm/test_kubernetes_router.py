"""The router's command line from the manifests, run by the real vllm-router: it finds the pods of each role through a Kubernetes API (a stand-in that lists the
manifests' own pods), sends prefill and decode what is theirs, and answers the probes.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from poise.testbed import environment, paths
from poise.testbed.manifests.files import Links, contents

from tests.kustomize import Object, build, containers_of
from tests.monitoring import free_port, started
from tests.waiting import wait_until

PATIENCE = 120.0
#: Pods have addresses of their own and one port.
ADDRESSES = {"prefill": "127.0.0.2", "decode": "127.0.0.3"}


def answer(handler: BaseHTTPRequestHandler, value: object) -> None:
    body = json.dumps(value).encode()
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


class Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def serving(handler: type[Quiet], address: str, port: int = 0) -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer((address, port), handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()


def pod_list(objects: list[Object]) -> dict[str, Any]:
    """The pods that the StatefulSets would have, running and ready."""
    items = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{each['metadata']['name']}-0",
                "namespace": each["metadata"]["namespace"],
                "uid": each["metadata"]["name"],
                "labels": each["spec"]["template"]["metadata"]["labels"],
            },
            "spec": {"containers": [{"name": "vllm"}]},
            "status": {
                "phase": "Running",
                "podIP": ADDRESSES[each["metadata"]["name"]],
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        for each in objects
        if each["kind"] == "StatefulSet"
    ]
    return {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}


def api(objects: list[Object], asked: list[str], over: threading.Event) -> type[Quiet]:
    class Api(Quiet):
        def do_GET(self) -> None:
            asked.append(urlsplit(self.path).path)
            if "watch" in parse_qs(urlsplit(self.path).query):
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                over.wait(PATIENCE)
                return
            answer(self, pod_list(objects))

    return Api


def engine(asked: list[tuple[str, dict[str, Any]]]) -> type[Quiet]:
    class Engine(Quiet):
        def do_GET(self) -> None:
            answer(self, {})

        def do_POST(self) -> None:
            asked.append((str(self.server.server_address[0]), json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            choice = {"index": 0, "text": "x", "finish_reason": "length"}
            transfer = {"do_remote_prefill": True, "remote_host": ADDRESSES["prefill"], "remote_port": 5600}
            answer(self, {"id": "x", "object": "text_completion", "choices": [choice], "kv_transfer_params": transfer})

    return Engine


def test_the_router_of_the_manifests_finds_both_roles_and_sends_each_what_is_its(tmp_path: Path) -> None:
    for name, text in contents("kubernetes", Links()).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    objects = build(tmp_path / "base")
    (router,) = [each for each in objects if each["kind"] == "Deployment"]
    container = containers_of(router)[0]
    made = environment.install("cpu", paths.cache_directory(os.environ), (), lambda *_, **__: None, os.environ)
    asked: list[str] = []
    requests: list[tuple[str, dict[str, Any]]] = []
    over = threading.Event()
    with contextlib.ExitStack() as stack:
        stack.callback(over.set)
        server = stack.enter_context(serving(api(objects, asked, over), "127.0.0.1"))
        first = stack.enter_context(serving(engine(requests), ADDRESSES["prefill"]))
        stack.enter_context(serving(engine(requests), ADDRESSES["decode"], first.server_port))
        port, metrics = free_port(), free_port()
        changed = {
            "--host": "127.0.0.1",
            "--port": str(port),
            "--prometheus-host": "127.0.0.1",
            "--prometheus-port": str(metrics),
            "--service-discovery-port": str(first.server_port),
            "--health-check-interval-secs": "1",
        }
        words = [f"{flag}={changed[flag]}" if (flag := word.partition("=")[0]) in changed else word for word in container["args"]]
        assert {word.partition("=")[0] for word in words} >= changed.keys()
        config = tmp_path / "kubeconfig"
        config.write_text(kubeconfig(f"http://127.0.0.1:{server.server_port}"))
        command = ["env", f"KUBECONFIG={config}", str(made.folder / "bin" / container["command"][0]), *words]
        url = f"http://127.0.0.1:{port}"
        probe = container["readinessProbe"]["httpGet"]["path"]
        found = stack.enter_context(started("vllm-router", command, url, probe, tmp_path / "router.log"))

        def workers() -> dict[str, str]:
            return {each["worker_type"]: urlsplit(each["url"]).hostname or "" for each in found.get("/workers")["workers"]}

        wait_until(lambda: workers() == ADDRESSES, "both servers", PATIENCE)
        with urllib.request.urlopen(f"{url}{container['livenessProbe']['httpGet']['path']}", timeout=PATIENCE) as response:
            assert response.status == 200
        assert set(asked) == {f"/api/v1/namespaces/{router['metadata']['namespace']}/pods"}, "what the Role allows, and nothing else"
        body = json.dumps({"model": "qwen-32b", "prompt": "hello", "max_tokens": 5}).encode()
        request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            assert response.status == 200
    (to_prefill, prefill), (to_decode, decode) = requests
    assert (to_prefill, to_decode) == (ADDRESSES["prefill"], ADDRESSES["decode"])
    assert (prefill["max_tokens"], decode["max_tokens"]) == (1, 5)
    assert decode["kv_transfer_params"]["remote_host"] == ADDRESSES["prefill"]


def kubeconfig(url: str) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
    )
