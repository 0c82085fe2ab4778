"""The engine source end to end: real sockets under fake and real process tables; engines that come, go, hang and hide secrets."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from poise.exporter import metrics as m
from poise.exporter import this_node
from poise.exporter.access import Access
from poise.exporter.engine_specs import EngineSpec
from poise.exporter.engines import source as source_module
from poise.exporter.engines.page import Limits
from poise.exporter.engines.reach import MOST_PORTS
from poise.exporter.engines.source import DISCOVERY, PAGES, EnginesObserved, EngineSource
from poise.exporter.exposition import Build, Exposition
from poise.exporter.ownership import join
from poise.exporter.router_specs import RouterSpec
from poise.exporter.snapshot import CollectorStatus, ContainerCards, Gpu, GpuProcess, NodeSnapshot, ObservedEngine, Pod, Role
from poise.exporter.this_node import is_this_node

from tests import recorded
from tests.certificates import Authority
from tests.fake_proc import BOOT_TIME, FakeProc
from tests.recorded import CAPTURES, PageServer, serve

DEADLINE = 60.0
TP2 = CAPTURES / "tp2-server-after.prom"


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


@pytest.fixture
def server() -> Iterator[PageServer]:
    with serve(PageServer(TP2)) as running:
        yield running


@pytest.fixture
def sources() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "not reached in time"
        time.sleep(0.02)


def scan_until(source: EngineSource, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    source.scan_once()
    while not condition():
        assert time.monotonic() < deadline, "not reached in time"
        time.sleep(0.01)
        source.scan_once()


def watching(
    stack: ExitStack, fake: FakeProc | None, *specs: EngineSpec, interval: float = 0.1, limits: Limits | None = None
) -> EngineSource:
    """A source over a fake /proc (None: the real one) whose scans the test makes; pollers run."""
    root = fake.root if fake is not None else Path("/proc")
    source = EngineSource("node-a", specs, interval=interval, proc_root=root, limits=limits)
    stack.callback(source.stop)
    return source


def named(observed: EnginesObserved, name: str) -> ObservedEngine:
    return next(engine for engine in observed.engines if engine.identity.engine == name)


def status(observed: EnginesObserved, name: str) -> CollectorStatus:
    return next(collector for collector in observed.collectors if collector.name == name)


def add_tp2(fake: FakeProc, port: int, pid: int = 100, **environment: str) -> None:
    fake.add(pid, ["python3", "/usr/bin/vllm", "serve", "m", "--port", str(port), "-tp", "2"], environment=environment)
    fake.add(pid + 1, ["VLLM::EngineCore"], ppid=pid)
    fake.add(pid + 2, ["VLLM::Worker_TP0"], ppid=pid + 1)
    fake.add(pid + 3, ["VLLM::Worker_TP1"], ppid=pid + 1)


def test_an_engine_is_found_with_its_page(fake: FakeProc, server: PageServer, sources: ExitStack) -> None:
    add_tp2(fake, server.port, CUDA_VISIBLE_DEVICES="0,1")
    fake.sockets([(server.port, "0A", 5), (server.port, "01", 6), (server.port, "01", 7)])
    source = watching(sources, fake)
    assert source.latest().engines == ()
    source.scan_once()
    wait_for(lambda: source.latest().engines[0].page is not None)
    (engine,) = source.latest().engines
    assert (engine.identity.engine, engine.identity.role, engine.url) == (f"node-a:{server.port}", Role.MIXED, server.url)
    assert (engine.pid, engine.process_up, engine.start_time, engine.client_connections) == (100, True, BOOT_TIME + 10.0, 2)
    assert [(rank.pid, rank.tp_rank) for rank in engine.ranks] == [(102, 0), (103, 1)]
    assert (engine.config.cuda_visible_devices, engine.config.environment_read) == ("0,1", True)
    assert engine.rtt is not None
    assert engine.page is not None
    assert engine.page.work[0].value(m.ENGINE_GENERATION_TOKENS) == 8288
    observed = source.latest()
    assert status(observed, DISCOVERY).success
    assert status(observed, PAGES).success
    assert source.title_of(102) == "VLLM::Worker_TP0"


def test_a_vanished_engine_says_so_at_once_and_a_restarted_one_takes_over(fake: FakeProc, server: PageServer, sources: ExitStack) -> None:
    add_tp2(fake, server.port)
    source = watching(sources, fake)
    source.scan_once()
    wait_for(lambda: source.latest().engines[0].page is not None)
    for pid in (100, 101, 102, 103):
        fake.remove(pid)
    source.scan_once()
    (gone,) = source.latest().engines
    assert (gone.process_up, gone.page, gone.pid, gone.ranks, gone.page_error) == (False, None, None, (), "its process is gone")
    assert gone.gone_since is not None
    add_tp2(fake, server.port, pid=200)
    source.scan_once()
    wait_for(lambda: source.latest().engines[0].page is not None)
    (again,) = source.latest().engines
    assert (again.identity, again.process_up, again.pid, again.gone_since) == (gone.identity, True, 200, None)


def test_a_lost_rank_shows_at_the_next_scan(fake: FakeProc, server: PageServer, sources: ExitStack) -> None:
    add_tp2(fake, server.port)
    source = watching(sources, fake)
    source.scan_once()
    fake.add(103, b"", comm="VLLM::Worker_TP", ppid=101, state="Z")
    source.scan_once()
    assert [rank.tp_rank for rank in source.latest().engines[0].ranks] == [0]


def test_a_loading_engine_is_there_without_page_and_is_no_failure(fake: FakeProc, sources: ExitStack) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    add_tp2(fake, port)
    source = watching(sources, fake)
    source.scan_once()
    wait_for(lambda: "refused" in source.latest().engines[0].page_error)
    assert status(source.latest(), PAGES).success


def test_the_port_that_only_a_file_sets_is_the_one_that_answers_as_vllm(fake: FakeProc, server: PageServer, sources: ExitStack) -> None:
    with serve(PageServer(b"go_goroutines 1\n")) as other:
        fake.add(100, ["vllm", "serve", "--config", "/etc/v.yaml"], environment={}, inodes=(5, 6))
        fake.sockets([])
        source = watching(sources, fake)
        source.scan_once()
        assert source.latest().engines == ()  # no name before the port is known
        fake.sockets([(other.port, "0A", 5), (server.port, "0A", 6)])
        found = watching(sources, fake)
        scan_until(found, lambda: found.latest().engines)
        (engine,) = found.latest().engines
        assert engine.identity.engine == f"node-a:{server.port}"
        assert engine.notes == ("--config names a file, which Poise does not read: what only it sets is unknown",)


def test_a_process_that_listens_and_never_answers_does_not_hold_the_scan(
    fake: FakeProc, server: PageServer, sources: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    held = threading.Event()
    sources.callback(held.set)
    answers = EngineSource._answers_as_vllm

    def slow(self: EngineSource, url: str) -> bool:
        asked.append(url)
        held.wait()
        return answers(self, url)

    monkeypatch.setattr(EngineSource, "_answers_as_vllm", slow)
    inodes = tuple(range(1000, 1100))
    fake.add(100, ["vllm", "serve", "m", "--config", "v.yaml"], inodes=inodes)
    fake.sockets([(server.port if inode == 1000 else inode + 9000, "0A", inode) for inode in inodes])
    add_tp2(fake, server.port, pid=200)
    source = watching(sources, fake)
    source.scan_once()
    assert [engine.identity.engine for engine in source.latest().engines] == [f"node-a:{server.port}"]
    source.scan_once()
    wait_for(lambda: len(asked) == 1)
    held.set()
    wait_for(lambda: not any(thread.name == "poise-ports-100" for thread in threading.enumerate()))
    assert len(asked) <= MOST_PORTS


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("node-a", True),
        ("node-a.example.org", True),
        ("127.3.2.1", True),
        ("0.0.0.0", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.255.255.1", False),
        ("::ffff:10.255.255.1", False),
        ("2001:db8::1", False),
        ("fe80::1%lo", False),
        ("elsewhere", False),
        ("2130706433", False),
        ("a b", False),
    ],
)
def test_hosts_of_this_node(host: str, local: bool) -> None:
    assert is_this_node(host, "node-a") is local


def test_an_address_that_can_be_bound_here_is_not_yet_this_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    # The sysctl ip_nonlocal_bind, which fail-over of addresses needs, lets every address be bound.
    monkeypatch.setattr(this_node, "_can_be_bound", lambda host, address: True)
    assert not is_this_node("10.255.255.1", "node-a")


def test_where_the_kernel_tells_no_routes_an_address_of_this_node_is_one_that_can_be_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_node, "_is_delivered_here", lambda address: None)
    assert is_this_node("0.0.0.0", "node-a")
    assert not is_this_node("10.255.255.1", "node-a")
    assert not is_this_node("2001:db8::1", "node-a")


def test_a_name_like_this_nodes_that_leads_elsewhere_is_not_asked(
    fake: FakeProc, sources: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The name servers of whoever runs the process choose what its name means.
    asked: list[object] = []
    with serve(PageServer(TP2)) as server:
        leads_to = {"node-a.example.org": "198.51.100.7", "node-a": "127.0.0.1"}

        def resolve(host: str, port: int, *args: object, **options: object) -> list[object]:
            asked.append(host)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (leads_to.get(host, host), port))]

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        fake.add(100, ["vllm", "serve", "m", "--host", "node-a.example.org", "--port", "8001"])
        fake.add(200, ["vllm", "serve", "m", "--host", "node-a", "--port", str(server.port)])
        fake.add(300, ["vllm", "serve", "m", "--host", "198.51.100.8", "--port", "8003"])
        source = watching(sources, fake)
        source.scan_once()
        wait_for(lambda: named(source.latest(), f"node-a:{server.port}").page is not None)
        wait_for(lambda: named(source.latest(), "node-a:8001").page_error != "not asked yet")
    assert named(source.latest(), "node-a:8001").page_error == (
        "node-a.example.org is no address of this node, so nobody is asked there; a URL that was configured would be"
    )
    elsewhere = named(source.latest(), "node-a:8003")
    assert elsewhere.url is None
    assert elsewhere.page_error.startswith("its --host 198.51.100.8 is not this node's")
    assert not {"198.51.100.7", "198.51.100.8"} & set(asked), "neither was connected to"


def test_a_port_that_only_a_file_tells_is_looked_for_on_this_node_only(fake: FakeProc, server: PageServer, sources: ExitStack) -> None:
    fake.add(100, ["vllm", "serve", "m", "--config", "v.yaml", "--host", "node-b"], inodes=(6,))
    fake.sockets([(server.port, "0A", 6)])
    source = watching(sources, fake)
    source.scan_once()
    assert source.latest().engines == ()
    assert server.requests == []


def test_only_so_many_engines_are_watched_the_oldest_first(
    fake: FakeProc, sources: ExitStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(source_module, "MOST_ENGINES", 2)
    for number in range(4):
        fake.add(100 + number, ["vllm", "serve", "m", "--port", str(9000 + number)])
    source = watching(sources, fake)
    for _ in range(2):
        source.scan_once()
    assert [engine.identity.engine for engine in source.latest().engines] == ["node-a:9000", "node-a:9001"]
    found = status(source.latest(), DISCOVERY)
    assert (found.success, found.error) == (False, "4 vLLM servers run here; only the oldest 2 are watched")
    assert caplog.text.count("only the oldest 2 are watched") == 1
    for pid in (100, 101):
        fake.remove(pid)
    source.scan_once()
    up = [engine.identity.engine for engine in source.latest().engines if engine.process_up]
    assert up == ["node-a:9002", "node-a:9003"]
    assert status(source.latest(), DISCOVERY).success


def test_without_a_port_flag_vllms_default_is_asked(fake: FakeProc, sources: ExitStack) -> None:
    fake.add(100, ["vllm", "serve", "m"])
    source = watching(sources, fake)
    source.scan_once()
    (engine,) = source.latest().engines
    assert (engine.identity.engine, engine.url) == ("node-a:8000", "http://127.0.0.1:8000")
    assert not engine.config.environment_read
    assert "CAP_SYS_PTRACE" in engine.notes[0]


def put_in_container(fake: FakeProc, pid: int, *files: tuple[str, str]) -> None:
    """Gives a fake process its own root directory with files, and its own network namespace without sockets."""
    root = fake.root.parent / f"root-{pid}"
    for name, content in (("dev/null", ""), *files):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    for name, space in (("self", "node"), ("1", "node"), (str(pid), "container")):
        (fake.root / name / "ns").mkdir(parents=True, exist_ok=True)
        (fake.root / name / "ns" / "net").symlink_to(f"net:[{space}]")
        (fake.root / name / "root").symlink_to(root if space == "container" else fake.root.parent)


def test_a_container_says_which_cards_it_has_where_it_runs_and_why_it_cannot_be_asked(fake: FakeProc, sources: ExitStack) -> None:
    add_tp2(fake, 8000, CUDA_VISIBLE_DEVICES="0", NVIDIA_VISIBLE_DEVICES="2,3", HOSTNAME="vllm-0")
    put_in_container(fake, 100, ("var/run/secrets/kubernetes.io/serviceaccount/namespace", "chat"))
    uid, container = "6f0e1a0c-1f0b-4a57-9c43-0d6c2b1a9e11", "ab" * 32
    (fake.root / "100" / "cgroup").write_text(f"0::/kubepods/burstable/pod{uid}/{container}\n")
    source = watching(sources, fake)
    source.scan_once()
    (engine,) = source.latest().engines
    assert engine.config.environment_read
    assert (engine.config.cuda_visible_devices, engine.config.container) == ("0", ContainerCards(frozenset(), "2,3"))
    assert engine.pod == Pod("chat", "vllm-0", "ab" * 6)
    assert (engine.url, engine.page, engine.notes) == (None, None, ())
    assert engine.page_error == "it runs in another network namespace and does not listen there yet"


def test_a_configured_engine_behind_a_port_that_docker_publishes_is_its_process(
    fake: FakeProc, server: PageServer, sources: ExitStack
) -> None:
    add_tp2(fake, 8000)
    put_in_container(fake, 100)
    net = fake.root / "100" / "net"
    net.mkdir()
    net.joinpath("fib_trie").write_text("Local:\n  |-- 172.17.0.2\n     /32 host LOCAL\n")
    fake.sockets([(8000, "0A", 5), (8000, "01", 6)])
    (fake.root / "net" / "tcp").rename(net / "tcp")
    fake.sockets([])
    proxy = f"docker-proxy -proto tcp -host-ip 0.0.0.0 -host-port {server.port} -container-ip 172.17.0.2 -container-port 8000"
    fake.add(50, proxy.split())
    source = watching(sources, fake, EngineSpec("qwen", server.url))
    source.scan_once()
    wait_for(lambda: source.latest().engines[0].page is not None)
    (engine,) = source.latest().engines
    assert (engine.identity.engine, engine.pid, engine.url, engine.client_connections) == ("qwen", 100, server.url, 1)


def test_an_environment_that_could_not_be_read_when_the_server_started_is_read_again(fake: FakeProc, sources: ExitStack) -> None:
    fake.add(100, ["vllm", "serve", "m"], environment=b"")
    source = watching(sources, fake)
    source.scan_once()
    assert not source.latest().engines[0].config.environment_read
    fake.add(100, ["vllm", "serve", "m"], environment={"CUDA_VISIBLE_DEVICES": "1"})
    source.scan_once()
    assert source.latest().engines[0].config.cuda_visible_devices == "1"
    assert source.latest().engines[0].notes == ()


def test_a_configured_engine_needs_no_process(fake: FakeProc, server: PageServer, sources: ExitStack) -> None:
    source = watching(sources, fake, EngineSpec("qwen", server.url, "chat", Role.DECODE, 2))
    source.scan_once()
    wait_for(lambda: source.latest().engines[0].page is not None)
    (engine,) = source.latest().engines
    assert engine.gpus_meant == 2
    assert (engine.identity.engine, engine.identity.deployment, engine.process_up, engine.pid) == ("qwen", "chat", None, None)


def add_tls(fake: FakeProc, port: int) -> None:
    fake.add(100, ["vllm", "serve", "m", "--port", str(port), "--ssl-certfile", "/c.pem", "--ssl-keyfile", "/k.pem"])
    fake.sockets([(port, "0A", 5)])


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[PageServer]:
    pair = Authority.create(tmp_path).issue("server", "DNS:qwen.internal")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    with serve(PageServer(TP2), tls=context) as running:
        yield running


def test_a_found_engine_with_a_certificate_of_its_own_is_asked_by_https(fake: FakeProc, secured: PageServer, sources: ExitStack) -> None:
    add_tls(fake, secured.port)
    source = watching(sources, fake)
    source.scan_once()
    wait_for(lambda: source.latest().engines[0].page is not None)
    assert source.latest().engines[0].url == f"https://127.0.0.1:{secured.port}"


def test_a_configured_engine_is_verified_even_where_its_process_is_found(
    fake: FakeProc, secured: PageServer, sources: ExitStack, tmp_path: Path
) -> None:
    add_tls(fake, secured.port)
    url = f"https://localhost:{secured.port}"
    source = watching(sources, fake, EngineSpec("qwen", url))
    source.scan_once()
    wait_for(lambda: "cannot be verified" in source.latest().engines[0].page_error)
    assert source.latest().engines[0].pid == 100
    assert "ca_file=FILE" in status(source.latest(), PAGES).error
    known = Access(ca_file=str(tmp_path / "authority.pem"), server_name="qwen.internal")
    source = watching(sources, fake, EngineSpec("qwen", url, access=known))
    source.scan_once()
    wait_for(lambda: source.latest().engines[0].page is not None)


def test_a_secret_that_would_travel_unencrypted_is_warned_of_without_being_shown(
    fake: FakeProc, sources: ExitStack, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("sk-planted")
    locked = Access(bearer_token_file=str(tmp_path / "token"))
    source = watching(sources, fake, EngineSpec("far", "http://far.invalid:8000", access=locked), interval=3600.0)
    source.scan_once()
    assert "engine far: its token or password goes to http://far.invalid:8000 unencrypted" in caplog.text
    assert "sk-planted" not in caplog.text


def test_without_discovery_only_configured_engines_are_watched(server: PageServer, sources: ExitStack) -> None:
    source = EngineSource("node-a", [EngineSpec("qwen", server.url)], discover=False, interval=0.1)
    sources.callback(source.stop)
    source.scan_once()
    assert [engine.identity.engine for engine in source.latest().engines] == ["qwen"]


def test_one_broken_engine_costs_the_others_nothing_and_is_named(fake: FakeProc, server: PageServer, sources: ExitStack) -> None:
    with serve(PageServer(TP2)) as broken:
        broken.fault = recorded.huge(50_000_000, announced=True)
        specs = (EngineSpec("broken", broken.url), EngineSpec("good", server.url))
        source = watching(sources, fake, *specs, interval=5.0)
        source.scan_once()
        wait_for(lambda: named(source.latest(), "good").page is not None and "bytes" in named(source.latest(), "broken").page_error)
        observed = source.latest()
        assert named(observed, "broken").page is None
        pages = status(observed, PAGES)
        assert not pages.success
        assert pages.error == "broken: the answer has 50000000 bytes, more than 16777216"
        assert pages.failures >= 1


def test_failures_are_counted_beyond_the_life_of_an_engine(fake: FakeProc, server: PageServer, sources: ExitStack) -> None:
    server.fault = recorded.status(500)
    add_tp2(fake, server.port)
    source = watching(sources, fake)
    source.scan_once()
    wait_for(lambda: status(source.latest(), PAGES).failures >= 2)
    for pid in (100, 101, 102, 103):
        fake.remove(pid)
    before = status(source.latest(), PAGES).failures
    source.scan_once()
    assert status(source.latest(), PAGES).failures >= before


def test_a_scan_that_breaks_is_told_and_the_next_one_mends_it(
    fake: FakeProc, sources: ExitStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = EngineSource("node-a", scan_interval=0.02, proc_root=fake.root)
    sources.callback(source.stop)

    def broken() -> list[int]:
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(source._proc, "pids", broken)
        source.start()
        wait_for(lambda: status(source.latest(), DISCOVERY).failures >= 1)
        assert not status(source.latest(), DISCOVERY).success
        assert status(source.latest(), DISCOVERY).error == "RuntimeError"
    wait_for(lambda: status(source.latest(), DISCOVERY).success)
    assert "scanning for engines failed" in caplog.text


def test_a_scan_that_breaks_leaves_nothing_of_before(fake: FakeProc, sources: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    front = RouterSpec("front", "http://127.0.0.1:9", "mine")
    source = EngineSource("node-a", [EngineSpec("lab", front.url)], router_specs=[front], scan_interval=0.02, proc_root=fake.root)
    sources.callback(source.stop)
    source.start()
    wait_for(lambda: bool(source.latest().routers and source.latest().engines))

    def broken() -> list[int]:
        raise RuntimeError("planted")

    monkeypatch.setattr(source._proc, "pids", broken)
    wait_for(lambda: source.latest().routers == () == source.latest().engines)


def test_stopping_ends_every_thread_even_with_an_engine_that_hangs(fake: FakeProc, server: PageServer) -> None:
    server.fault = recorded.silence(server)
    source = EngineSource("node-a", [EngineSpec("slow", server.url)], proc_root=fake.root, interval=60.0)
    source.start()
    wait_for(lambda: bool(server.requests))
    poller = source._pollers["slow"][1]
    source.stop()
    wait_for(lambda: not source._thread.is_alive() and not poller.alive)
    source.scan_once()
    assert set(source._pollers) == {"slow"}  # nothing is started once it was stopped


# ------------------------------------------------------------------------------------------------------------ real processes
@pytest.fixture
def vllm_like(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a process that looks like `vllm serve` and serves a recorded page; its children have vLLM's titles."""
    script = tmp_path / "vllm"
    script.write_text(
        textwrap.dedent(f"""
            import subprocess, sys, threading
            sys.path.insert(0, {str(Path(recorded.__file__).parents[1])!r})
            from tests.recorded import CAPTURES, PageServer, serve
            for title in ("VLLM::EngineCore", "VLLM::Worker_TP0", "VLLM::Worker_TP1"):
                subprocess.Popen([title], executable="/bin/cat", stdin=subprocess.PIPE)
            with serve(PageServer(CAPTURES / "tp2-server-after.prom"), int(sys.argv[sys.argv.index("--port") + 1])):
                threading.Event().wait()
        """)
    )
    started: list[subprocess.Popen[bytes]] = []

    def start(port: int, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(script), "serve", "m", "--port", str(port), *arguments]
        started.append(subprocess.Popen(command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait(DEADLINE)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


SECRETS = {"VLLM_API_KEY": "sk-planted-environment", "HF_TOKEN": "hf_planted_environment"}


def test_a_real_process_is_found_read_lost_and_found_again_without_its_secrets(
    vllm_like: Callable[..., subprocess.Popen[bytes]], sources: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    port = free_port()
    source = EngineSource("node-a", interval=0.1, scan_interval=0.1)
    sources.callback(source.stop)
    name = f"node-a:{port}"

    def mine() -> ObservedEngine | None:
        return next((engine for engine in source.latest().engines if engine.identity.engine == name), None)

    def is_up() -> bool:
        engine = mine()
        return engine is not None and engine.page is not None and len(engine.ranks) == 2

    process = vllm_like(port, "-tp", "2", "--api-key", "sk-planted-argument", CUDA_VISIBLE_DEVICES="0,1", **SECRETS)
    source.start()
    wait_for(is_up)
    engine = mine()
    assert engine is not None
    assert (engine.pid, engine.config.cuda_visible_devices, engine.config.tensor_parallel_size) == (process.pid, "0,1", 2)
    assert [rank.title for rank in engine.ranks] == ["VLLM::Worker_TP0", "VLLM::Worker_TP1"]
    assert len(engine.pids) == 4
    gpus = [Gpu(rank.tp_rank or 0, f"GPU-{rank.tp_rank}", processes=(GpuProcess(rank.pid, 1),)) for rank in engine.ranks]
    joined = join([*gpus, Gpu(2, "GPU-2", processes=(GpuProcess(process.pid, 1), GpuProcess(os.getpid(), 1)))], [engine], source.title_of)
    assert [card.use for card in joined.engines[0].visible or ()] == ["own", "own"]
    snapshot = NodeSnapshot("node-a", time.time(), gpus=tuple(gpus), engines=joined.engines, gpu_process_readings=joined.gpu_readings)
    everything = "".join([repr(source.latest()), repr(joined), repr(source._table), repr(source._roster), rendered(snapshot), caplog.text])
    assert "VLLM::Worker_TP1" in everything
    assert "planted" not in everything

    process.kill()
    process.wait(DEADLINE)
    wait_for(lambda: (lost := mine()) is not None and lost.process_up is False)
    again = vllm_like(port, "-tp", "2")
    wait_for(lambda: is_up() and (back := mine()) is not None and back.pid == again.pid)


def rendered(snapshot: NodeSnapshot) -> str:
    return Exposition(Build("1", "3")).render(snapshot, (), time.time()).decode()


def test_another_list_of_engines_holds_from_the_next_scan_and_no_counter_falls(
    fake: FakeProc, server: PageServer, sources: ExitStack
) -> None:
    broken = EngineSpec("broken", "http://127.0.0.1:1/x")
    kept = EngineSpec("kept", server.url)
    source = watching(sources, fake, broken, kept)
    source.scan_once()
    wait_for(lambda: named(source.latest(), "kept").page is not None)
    failures = status(source.latest(), PAGES).failures
    source.replace_specs([kept, EngineSpec("new", "http://10.255.255.1:8000")], [])
    assert {engine.identity.engine for engine in source.latest().engines} == {"broken", "kept"}
    source.scan_once()
    observed = source.latest()
    assert {engine.identity.engine for engine in observed.engines} == {"kept", "new"}
    assert named(observed, "kept").page is not None, "its poller went on"
    assert status(observed, PAGES).failures >= failures
