"""Routers end to end: real sockets under a fake process table; routers that start late, hide their command line, break, and are killed."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from poise.exporter import metrics as m
from poise.exporter.engine_specs import EngineSpec
from poise.exporter.engines.page import Limits
from poise.exporter.engines.source import EngineSource
from poise.exporter.exposition import Build, Exposition
from poise.exporter.metrics import Metric
from poise.exporter.ownership import join
from poise.exporter.router_specs import RouterSpec
from poise.exporter.routers import watch
from poise.exporter.routers.roster import ROUTER_GRACE, RouterRoster
from poise.exporter.routers.watch import ROUTERS
from poise.exporter.snapshot import CollectorStatus, EngineIdentity, NodeSnapshot, ObservedEngine, Role, Router, RouterKind

from tests import recorded
from tests.fake_proc import FakeProc
from tests.recorded import CAPTURES, PageServer, serve

DEADLINE = 60.0
#: Long enough for an answer on a busy machine (a poll may take 0.8 of it), short enough to wait for the next.
INTERVAL = 0.5
BOTH = {("prefill",): 449.0, ("decode",): 449.0}
PREFILL, DECODE, ROUTER = 100, 200, 300
KV_BOTH = ["--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}']


class Clock:
    """Unix seconds that a test moves; pollers run on the real monotonic clock."""

    def __init__(self) -> None:
        self.value = 1_000.0

    def __call__(self) -> float:
        return self.value


class Deployment:
    """A prefill and a decode engine with recorded pages, and a router's API and metrics, each on a real port; processes are in a fake /proc."""

    def __init__(self, stack: ExitStack, root: Path) -> None:
        self.fake = FakeProc(root)
        self.clock = Clock()
        self._stack = stack
        self.prefill = stack.enter_context(serve(PageServer(CAPTURES / "pd-prefill-after.prom")))
        self.decode = stack.enter_context(serve(PageServer(CAPTURES / "pd-decode-after.prom")))
        self.api = stack.enter_context(serve(PageServer(b"")))
        self.metrics = stack.enter_context(serve(PageServer(CAPTURES / "pd-router-during07.prom")))
        self.api.documents["/workers"] = self.workers()

    def workers(self, *, healthy: bool = True) -> bytes:
        """What the router's API tells."""
        pairs = ((self.prefill, "prefill"), (self.decode, "decode"))
        return json.dumps({"workers": [{"url": server.url, "worker_type": kind, "is_healthy": healthy} for server, kind in pairs]}).encode()

    def start_engines(self, *flags: str) -> None:
        for pid, server in ((PREFILL, self.prefill), (DECODE, self.decode)):
            self.fake.add(pid, ["vllm", "serve", "m", "--port", str(server.port), *flags], environment={})

    def start_router(self, pid: int = ROUTER) -> None:
        """As it is once it runs: its command line is a title, its ports are known by its descriptors."""
        self.fake.add(pid, ["vllm::router"], inodes=(31, 32))
        self.fake.sockets([(self.metrics.port, "0A", 31), (self.api.port, "0A", 32)])

    def command_line(self) -> list[str]:
        """As it is before that."""
        line = f"python3 /bin/vllm-router --vllm-pd-disaggregation --prefill {self.prefill.url} --decode {self.decode.url}"
        return [*line.split(), "--port", str(self.api.port), "--prometheus-port", str(self.metrics.port)]

    def source(self, *routers: RouterSpec, engines: tuple[EngineSpec, ...] = (), limits: Limits | None = None) -> EngineSource:
        """A source over it whose scans the test makes; pollers run."""
        source = EngineSource(
            "node-a", engines, router_specs=routers, interval=INTERVAL, proc_root=self.fake.root, limits=limits, now=self.clock
        )
        self._stack.callback(source.stop)
        return source


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    with ExitStack() as stack:
        yield Deployment(stack, tmp_path / "proc")


def scan_until(source: EngineSource, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    source.scan_once()
    while not condition():
        assert time.monotonic() < deadline, "not reached in time"
        time.sleep(0.01)
        source.scan_once()


def identities(source: EngineSource) -> dict[str, EngineIdentity]:
    return {engine.identity.engine: engine.identity for engine in source.latest().engines}


def named(source: EngineSource, name: str) -> ObservedEngine:
    return next(engine for engine in source.latest().engines if engine.identity.engine == name)


def router(source: EngineSource) -> Router | None:
    found = source.latest().routers
    return found[0] if found else None


def is_up(source: EngineSource) -> bool:
    found = router(source)
    return found is not None and found.up


def is_down(source: EngineSource) -> bool:
    found = router(source)
    return found is not None and not found.up


def plain(found: Router | None, metric: Metric) -> Mapping[tuple[str, ...], float]:
    assert found is not None
    return found.readings.get(metric, {})


def requests(source: EngineSource) -> Mapping[tuple[str, ...], float]:
    found = router(source)
    return plain(found, m.ROUTER_REQUESTS) if found is not None else {}


def status(source: EngineSource) -> CollectorStatus:
    return next(collector for collector in source.latest().collectors if collector.name == ROUTERS)


def test_a_router_that_hides_its_command_line_is_found_by_its_ports(deployment: Deployment) -> None:
    deployment.start_engines(*KV_BOTH)
    deployment.start_router()
    source = deployment.source()
    scan_until(source, lambda: requests(source) == BOTH and len(identities(source)) == 2)
    name = f"node-a:{deployment.api.port}"
    found = router(source)
    assert found is not None
    assert (found.name, found.deployment, found.kind, found.pid) == (name, name, RouterKind.VLLM_ROUTER, ROUTER)
    prefill, decode = f"node-a:{deployment.prefill.port}", f"node-a:{deployment.decode.port}"
    assert plain(found, m.ROUTER_BACKEND_INFO) == {(prefill, "prefill", "true"): 1.0, (decode, "decode", "true"): 1.0}
    assert plain(found, m.ROUTER_ERRORS) == {("prefill",): 0.0, ("decode",): 0.0}
    assert identities(source) == {
        prefill: EngineIdentity(prefill, name, Role.PREFILL, "router", "argv"),
        decode: EngineIdentity(decode, name, Role.DECODE, "router", "argv"),
    }
    assert status(source).success


def test_engines_that_are_found_with_a_router_wait_for_it_and_never_have_other_labels(deployment: Deployment) -> None:
    deployment.start_engines(*KV_BOTH)
    deployment.start_router()
    source = deployment.source()
    seen: set[tuple[str, Role]] = set()

    def grouped() -> bool:
        seen.update((identity.deployment, identity.role) for identity in identities(source).values())
        return len(identities(source)) == 2

    scan_until(source, grouped)
    name = f"node-a:{deployment.api.port}"
    assert seen == {(name, Role.PREFILL), (name, Role.DECODE)}


def test_engines_do_not_wait_long_for_a_router_that_does_not_answer(deployment: Deployment, caplog: pytest.LogCaptureFixture) -> None:
    deployment.start_engines()
    deployment.start_router()
    deployment.api.documents.clear()
    source = deployment.source()
    with caplog.at_level(logging.WARNING):
        source.scan_once()
        assert identities(source) == {}
        deployment.clock.value += ROUTER_GRACE + 1
        source.scan_once()
    assert {identity.deployment for identity in identities(source).values()} == set(identities(source))
    assert router(source) is None
    assert f"process {ROUTER} is a router that is not shown yet" in caplog.text
    assert "is a vLLM server that is not shown" not in caplog.text


def test_a_router_that_starts_last_fills_the_deployment_once(deployment: Deployment) -> None:
    deployment.start_engines("--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}')
    source = deployment.source()
    source.scan_once()
    before = identities(source)
    assert all(identity.deployment == name and identity.role is Role.PREFILL for name, identity in before.items())
    deployment.start_router()
    scan_until(source, lambda: is_up(source))
    after = identities(source)
    name = f"node-a:{deployment.api.port}"
    assert {identity.deployment for identity in after.values()} == {name}
    # What the command line says of the role is not doubted by a router.
    assert {(identity.role, identity.role_source) for identity in after.values()} == {(Role.PREFILL, "argv")}
    deployment.fake.remove(ROUTER)
    deployment.start_router(pid=301)
    scan_until(source, lambda: (found := router(source)) is not None and found.pid == 301 and found.up)
    assert identities(source) == after


def test_counters_give_a_role_that_nothing_else_told(deployment: Deployment) -> None:
    deployment.start_engines("--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both"}')
    source = deployment.source()
    source.scan_once()
    assert {identity.role for identity in identities(source).values()} == {Role.UNKNOWN}
    scan_until(source, lambda: Role.UNKNOWN not in {identity.role for identity in identities(source).values()})
    after = identities(source)
    prefill, decode = (after[f"node-a:{server.port}"] for server in (deployment.prefill, deployment.decode))
    assert (prefill.role, decode.role) == (Role.PREFILL, Role.DECODE)
    assert {identity.role_source for identity in after.values()} == {"observed"}
    deployment.prefill.page = deployment.decode.body()  # it decodes now, which changes no label
    found = {engine.identity.engine: engine for engine in source.latest().engines}
    scan_until(source, lambda: (page := named(source, prefill.engine).page) is not None and page != found[prefill.engine].page)
    assert identities(source) == after
    (joined,) = join((), [named(source, prefill.engine)], lambda pid: "").engines
    assert joined.readings[m.ENGINE_OBSERVED_ROLE_INFO] == {("decode",): 1.0}


def test_a_restarted_engine_is_of_its_deployment_at_once_even_while_the_router_is_down(deployment: Deployment) -> None:
    deployment.start_engines(*KV_BOTH)
    deployment.start_router()
    source = deployment.source()
    scan_until(source, lambda: is_up(source) and len(identities(source)) == 2)
    before = identities(source)
    deployment.fake.remove(ROUTER)
    deployment.fake.remove(DECODE)
    source.scan_once()
    assert is_down(source)
    deployment.fake.add(DECODE + 1, ["vllm", "serve", "m", "--port", str(deployment.decode.port), *KV_BOTH], environment={})
    source.scan_once()
    assert identities(source) == before


def test_what_the_command_line_said_before_the_title_stays_known(deployment: Deployment) -> None:
    deployment.fake.add(ROUTER, deployment.command_line())
    deployment.start_engines(*KV_BOTH)
    source = deployment.source()
    source.scan_once()
    assert len(identities(source)) == 2  # the command line names the engines, so nobody waits
    assert {identity.role for identity in identities(source).values()} == {Role.PREFILL, Role.DECODE}
    deployment.fake.add(ROUTER, ["vllm::router"])
    scan_until(source, lambda: requests(source) == BOTH)


def test_the_toy_proxy_is_up_while_it_takes_connections(deployment: Deployment) -> None:
    deployment.start_engines()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        line = f"python3 toy_proxy_server.py --port {port} --prefiller-ports {deployment.prefill.port} --decoder-ports {deployment.decode.port}"
        deployment.fake.add(ROUTER, line.split())
        source = deployment.source()
        scan_until(source, lambda: is_up(source))
        found = router(source)
        assert found is not None
        assert (found.kind, found.disaggregated) == (RouterKind.TOY_PROXY, True)
        prefill, decode = f"node-a:{deployment.prefill.port}", f"node-a:{deployment.decode.port}"
        assert plain(found, m.ROUTER_BACKEND_INFO) == {(prefill, "prefill", ""): 1.0, (decode, "decode", ""): 1.0}
        assert plain(found, m.ROUTER_REQUESTS) == {}
        assert {identity.deployment for identity in identities(source).values()} == {f"node-a:{port}"}
    scan_until(source, lambda: is_down(source))
    assert status(source).success  # where nothing listens, nothing failed


def test_production_stack_tells_its_engines_on_its_page(deployment: Deployment) -> None:
    deployment.start_engines()
    pods = "".join(f'vllm:healthy_pods_total{{server="{server.url}"}} 1.0\n' for server in (deployment.prefill, deployment.decode))
    deployment.api.page = f'router_cpu_usage_percent 1.0\n{pods}vllm:num_incoming_requests_total{{model="m"}} 4.0\n'.encode()
    line = f"python3 -m vllm_router.app --port {deployment.api.port} --service-discovery k8s --routing-logic roundrobin"
    deployment.fake.add(ROUTER, line.split())
    source = deployment.source()
    scan_until(source, lambda: is_up(source) and len(identities(source)) == 2)
    found = router(source)
    assert found is not None
    assert (found.kind, found.disaggregated) == (RouterKind.PRODUCTION_STACK, False)
    assert requests(source) == {("mixed",): 4.0}
    assert {identity.deployment for identity in identities(source).values()} == {f"node-a:{deployment.api.port}"}


def test_a_named_router_tells_its_kind_by_its_answers(deployment: Deployment) -> None:
    deployment.start_engines(*KV_BOTH)
    source = deployment.source(RouterSpec("front", deployment.api.url, "chat", None, deployment.metrics.url))
    scan_until(source, lambda: requests(source) == BOTH and len(identities(source)) == 2)
    found = router(source)
    assert found is not None
    assert (found.name, found.deployment, found.kind) == ("front", "chat", RouterKind.VLLM_ROUTER)
    assert {identity.deployment for identity in identities(source).values()} == {"chat"}
    assert {path for path, _ in deployment.api.requests} == {"/workers"}  # whatever it does not know it would pass on to an engine


def test_a_named_router_of_no_known_kind_says_what_to_do(deployment: Deployment) -> None:
    source = deployment.source(RouterSpec("front", deployment.prefill.url))
    source.scan_once()
    deployment.clock.value += ROUTER_GRACE + 1
    scan_until(source, lambda: not status(source).success and is_down(source))
    found = router(source)
    assert found is not None
    assert "say which it is with kind=" in found.error
    assert "no router that Poise knows" in status(source).error


def test_engines_that_are_named_by_url_are_joined_too(deployment: Deployment) -> None:
    specs = (EngineSpec("p", deployment.prefill.url), EngineSpec("d", deployment.decode.url, deployment="mine", role=Role.MIXED))
    source = deployment.source(RouterSpec("front", deployment.api.url), engines=specs)
    scan_until(source, lambda: is_up(source))
    # One was told its deployment, so the router before both is of it, and so is the other.
    assert [(router_.name, router_.deployment) for router_ in source.latest().routers] == [("front", "mine")]
    assert {name: (identity.deployment, identity.role, identity.role_source) for name, identity in identities(source).items()} == {
        "p": ("mine", Role.PREFILL, "router"),
        "d": ("mine", Role.MIXED, "config"),
    }


def test_a_killed_router_is_down_at_once_and_its_engines_stay(deployment: Deployment) -> None:
    deployment.start_engines(*KV_BOTH)
    deployment.start_router()
    source = deployment.source()
    scan_until(source, lambda: is_up(source) and len(identities(source)) == 2)
    before = identities(source)
    deployment.fake.remove(ROUTER)
    source.scan_once()
    found = router(source)
    assert found is not None
    assert (found.up, found.pid, found.error, found.backends) == (False, None, "its process is gone", ())
    assert set(found.readings) == {m.ROUTER_INFO, m.ROUTER_UP}
    assert identities(source) == before


def test_unhealthy_engines_are_told_and_are_no_failure_of_the_router(deployment: Deployment) -> None:
    deployment.start_router()
    deployment.api.documents["/workers"] = deployment.workers(healthy=False)
    source = deployment.source()
    scan_until(source, lambda: is_up(source))
    assert {labels[2] for labels in plain(router(source), m.ROUTER_BACKEND_INFO)} == {"false"}
    assert status(source).success


FAULTS = {
    "error": (recorded.status(500), "HTTP 500"),
    "redirect": (recorded.redirect("http://127.0.0.1:1/"), "redirects"),
    "html": (recorded.html, "no metrics page"),
    "binary": (recorded.binary, "no"),
    "cut off": (recorded.cut_off(b"a 1\n" * 100), "cut off"),
    "huge": (recorded.huge(3_000_000, announced=True), "more than"),
    "endless": (recorded.huge(3_000_000, announced=False), "more than"),
    "line": (recorded.endless_line(500_000), "line"),
    "gzip": (recorded.gzip_bomb(1_000_000), "page"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_metrics_page_costs_the_counts_only(deployment: Deployment, name: str) -> None:
    deployment.metrics.fault, words = FAULTS[name]
    deployment.start_engines(*KV_BOTH)
    source = deployment.source(
        RouterSpec("front", deployment.api.url, "chat", None, deployment.metrics.url), limits=Limits(size=1_000_000, series=5_000)
    )
    scan_until(source, lambda: is_up(source) and not status(source).success and len(identities(source)) == 2)
    found = router(source)
    assert found is not None
    assert re.search(f"its metrics page: .*{words}", found.error)
    assert plain(found, m.ROUTER_REQUESTS) == {}
    assert len(found.backends) == 2
    assert not status(source).success
    assert {identity.deployment for identity in identities(source).values()} == {"chat"}
    assert all(engine.page is not None or engine.page_error == "not asked yet" for engine in source.latest().engines)


@pytest.mark.parametrize("fault", ["drip", "silence"])
def test_a_router_that_does_not_end_its_answer_holds_up_nobody(deployment: Deployment, fault: str) -> None:
    deployment.start_engines()
    server = deployment.api
    server.fault, server.fault_path = recorded.drip(server) if fault == "drip" else recorded.silence(server), "/workers"
    deployment.fake.add(ROUTER, deployment.command_line())
    source = deployment.source()
    scan_until(source, lambda: not status(source).success)
    assert is_down(source)
    assert "no answer within" in status(source).error
    assert len(identities(source)) == 2
    began = time.monotonic()
    source.stop()
    assert time.monotonic() - began < 5


def test_stopping_ends_the_threads_of_routers(deployment: Deployment) -> None:
    deployment.start_router()
    source = deployment.source()
    scan_until(source, lambda: is_up(source))
    source.stop()
    deadline = time.monotonic() + DEADLINE
    while any(thread.name.startswith("poise-router") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_router_that_lies_makes_no_line_that_is_none_and_few_series(deployment: Deployment) -> None:
    lies = [{"url": f'http://h{number}"\n:8000', "worker_type": "prefill"} for number in range(5)]
    lies += [{"url": f"http://h{number}:8000", "worker_type": "decode", "is_healthy": True} for number in range(5_000)]
    deployment.api.documents["/workers"] = json.dumps({"workers": lies}).encode()
    deployment.start_router()
    source = deployment.source()
    scan_until(source, lambda: is_up(source))
    snapshot = NodeSnapshot("node-a", 1.0, routers=source.latest().routers, collectors=source.latest().collectors)
    page = Exposition(Build("0", "3")).render(snapshot, (), 1.0).decode()
    assert page.count("poise_router_backend_info{") == 256
    assert 'h0"' not in page


@pytest.mark.parametrize("part", ["update", "group"])
def test_what_breaks_in_watching_routers_costs_no_engine_its_series(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    deployment.start_engines()
    deployment.start_router()
    source = deployment.source()
    scan_until(source, lambda: is_up(source) and len(identities(source)) == 2)
    before = identities(source)
    with monkeypatch.context() as broken:
        broken.setattr(RouterRoster, part, lambda *_: 1 / 0)
        source.scan_once()
    assert identities(source) == before
    assert source.latest().routers == ()
    assert (status(source).success, status(source).failures > 0, "ZeroDivisionError" in status(source).error) == (False, True, True)
    scan_until(source, lambda: is_up(source) and status(source).success)


def test_counters_go_on_when_a_worker_is_taken_out(deployment: Deployment) -> None:
    deployment.start_router()
    page = 'vllm_router_pd_decode_requests_total{worker="a"} 5\nvllm_router_pd_decode_requests_total{worker="b"} 7\n'
    deployment.metrics.page = page.encode()
    source = deployment.source()
    scan_until(source, lambda: requests(source).get(("decode",)) == 12.0)
    deployment.metrics.page = b'vllm_router_pd_decode_requests_total{worker="b"} 8\n'
    scan_until(source, lambda: requests(source).get(("decode",)) == 13.0)


def test_no_secret_of_a_router_reaches_a_log_or_a_page(deployment: Deployment, caplog: pytest.LogCaptureFixture) -> None:
    secret = "planted-password"
    line = [*deployment.command_line(), "--api-key", secret, "--worker-urls", f"http://u:{secret}@127.0.0.1:1/{secret}"]
    deployment.fake.add(ROUTER, line, environment={"OPENAI_API_KEY": secret})
    deployment.start_engines()
    source = deployment.source()
    with caplog.at_level(logging.DEBUG):
        scan_until(source, lambda: is_up(source))
    assert secret not in repr(source.latest())
    assert secret not in caplog.text


def test_a_routers_command_line_does_not_choose_which_other_machine_is_asked(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    connect = socket.create_connection

    def watched(address: tuple[str, int], timeout: float) -> socket.socket:
        asked.append(address[0])
        return connect(address, timeout)

    monkeypatch.setattr(socket, "create_connection", watched)
    line = deployment.command_line()
    deployment.fake.add(ROUTER, [*line, "--host", "198.51.100.7"])
    deployment.fake.add(ROUTER + 1, [*line, "--host", "127.0.0.1", "--prometheus-host", "198.51.100.8"])
    source = deployment.source()
    scan_until(source, lambda: any(router.up for router in source.latest().routers))
    assert set(asked) == {"127.0.0.1"}


def test_only_so_many_routers_are_watched(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MOST_ROUTERS", 1)
    deployment.fake.add(ROUTER, deployment.command_line())
    deployment.fake.add(ROUTER + 1, [*deployment.command_line(), "--port", "1"])
    source = deployment.source()
    scan_until(source, lambda: any(router.up for router in source.latest().routers))
    assert [router.pid for router in source.latest().routers] == [ROUTER]
    (status,) = [collector for collector in source.latest().collectors if collector.name == ROUTERS]
    assert status.error == "1 more routers run here; only the oldest 1 are watched"
