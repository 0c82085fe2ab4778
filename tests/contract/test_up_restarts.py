"""What a running `poise up` tells a real Alertmanager when it is killed and started again, when its clock jumps, when clients take its descriptors
and when the system gives it no thread: nothing ends, nothing begins anew. And a SIGHUP while it starts.
"""

from __future__ import annotations

import contextlib
import json
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests import poise_up
from tests.http_handler import answering
from tests.monitoring import Receiver, Server, alertmanager, receiving
from tests.needs import needs
from tests.poise_up import get, up

pytestmark = pytest.mark.contract

PATIENCE = 120.0
RULES = """groups:
- name: g
  interval: 1s
  rules:
  - {alert: Boom, expr: boom > 0, labels: {severity: critical}}
  - {alert: Recorded, expr: 'a:boom > 0', labels: {severity: critical}}
  - {alert: Slow, expr: boom > 0, for: 15m, labels: {severity: critical}}
  - {alert: Gone, expr: absent(boom), labels: {severity: critical}}
- name: records
  interval: 2s
  rules:
  - {record: 'a:boom', expr: boom}
"""
#: What fires from the first scrape on and must go on.
FIRING = {"Boom", "Recorded"}


@dataclass
class Page:
    """A target: one series, after `delay` seconds."""

    port: int = 0
    asked: int = 0
    delay: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextlib.contextmanager
def serving() -> Iterator[Page]:
    page = Page()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(page.delay)
            with page.lock:
                page.asked += 1
            body = b"boom 1\n"
            with contextlib.suppress(OSError):
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with answering(Handler) as page.port:
        yield page


@dataclass(frozen=True)
class World:
    """A target, an Alertmanager with its webhook, and the words and variables of a `poise up` over them."""

    folder: Path
    page: Page
    told: Receiver
    routed: Server
    words: tuple[str, ...]
    environment: dict[str, str]

    def ended(self) -> set[str]:
        return {alert.name for alert in self.told.alerts() if not alert.firing}

    def starts(self) -> dict[str, str]:
        """When each alert began, as Alertmanager has it."""
        return {alert["labels"]["alertname"]: alert["startsAt"] for alert in self.routed.get("/api/v2/alerts")}

    def until_told(self) -> None:
        for name in FIRING:
            self.told.wait_for(lambda alert, name=name: alert.name == name and alert.firing, PATIENCE)  # type: ignore[misc]  # name is bound


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with serving() as page, receiving() as told, alertmanager(tmp_path, told) as routed:
        yield World(
            tmp_path,
            page,
            told,
            routed,
            _words(tmp_path, [("gpu-1", f"http://127.0.0.1:{page.port}")], "30s", "20s", routed.url),
            _state(tmp_path),
        )


def _state(folder: Path) -> dict[str, str]:
    return {"POISE_STATE_DIR": str(folder / "state")}


def _words(folder: Path, targets: list[tuple[str, str]], interval: str, timeout: str, routed: str = "") -> tuple[str, ...]:
    """For targets that are given so long that a busy machine fails none."""
    (folder / "rules.yml").write_text(RULES)
    lines = [f'[[target]]\nname = "{name}"\nurl = "{url}"\ninterval = "{interval}"\ntimeout = "{timeout}"' for name, url in targets]
    lines += ['[alerts]\nrules = ["rules.yml"]'] + ([f'[[alertmanager]]\nurl = "{routed}"'] if routed else [])
    (folder / "poise.toml").write_text("\n".join([*lines, ""]))
    nobody = f"http://127.0.0.1:{poise_up.free_port()}"
    return ("--config", str(folder / "poise.toml"), "--no-exporter", "--exporter", nobody)


def wait_for(condition: Callable[[], object], what: str) -> None:
    poise_up.wait_for(condition, what, PATIENCE)


def evaluations(url: str) -> float:
    """Of the group of the alerts, when it was evaluated last."""
    found = re.findall(r'poise_evaluator_group_last_evaluation_timestamp_seconds\{group="g"\} (\S+)', get(f"{url}/metrics", timeout=30)[1])
    return float(found[0]) if found else 0.0


def changes(url: str) -> dict[str, list[str | None]]:
    """The states that each alert of the test has had."""
    found: dict[str, list[str | None]] = {}
    for change in json.loads(get(f"{url}/api/poise/v1/alerts/history?start=0", timeout=30)[1])["changes"]:
        if change["labels"]["alertname"] in {*FIRING, "Slow", "Gone"}:
            found.setdefault(change["labels"]["alertname"], []).append(change["after"])
    return found


def evaluated(url: str, seconds: float = 5.0) -> None:
    """Until rules have been evaluated for so long."""
    first = evaluations(url)
    wait_for(lambda: evaluations(url) >= max(first, 1.0) + seconds, "rules are evaluated again and again")


def test_a_kill_and_a_start_with_a_target_that_is_slow_to_answer_end_nothing_and_tell_nothing_twice(world: World) -> None:
    with up(*world.words, log=world.folder / "log", environment=world.environment) as (process, _):
        world.until_told()
        starts = world.starts()
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    world.page.delay = 3.0
    with up(*world.words, log=world.folder / "log2", environment=world.environment) as (_, url):
        wait_for(lambda: evaluations(url) > 0, "rules are evaluated")
        world.page.delay = 0.0
        evaluated(url)
        found = changes(url)
    assert world.ended() == set()
    assert {name: world.starts()[name] for name in FIRING} == {name: starts[name] for name in FIRING}
    assert found == {"Boom": ["firing"], "Recorded": ["firing"], "Slow": ["pending"]}
    assert all(len(world.told.alerts(alertname=name)) == 1 for name in FIRING)
    assert "Traceback" not in (world.folder / "log2").read_text()


def test_a_clock_that_jumps_by_twenty_minutes_ends_nothing_and_waits_on(world: World) -> None:
    found = subprocess.run(
        [needs("faketime"), "-f", "+0", "printenv", "LD_PRELOAD"], capture_output=True, text=True, check=True, timeout=60
    )
    setting = world.folder / "clock"
    setting.write_text("+0")
    words = _words(world.folder, [("gpu-1", f"http://127.0.0.1:{world.page.port}")], "6s", "6s", world.routed.url)
    environment = world.environment | {
        "LD_PRELOAD": found.stdout.strip(),
        "FAKETIME_TIMESTAMP_FILE": str(setting),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with up(*words, log=world.folder / "log", environment=environment) as (_, url):
        world.until_told()
        (world.folder / "next").write_text("+1200")
        (world.folder / "next").rename(setting)
        wait_for(lambda: evaluations(url) > time.time() + 1000, "rules are evaluated at the new time")
        evaluated(url)
        assert changes(url) == {"Boom": ["firing"], "Recorded": ["firing"], "Slow": ["pending"]}
    assert world.ended() == set()
    assert (world.folder / "log").read_text().count("nothing was evaluated for 12") == 1


def test_clients_that_take_all_connections_end_no_alert(world: World) -> None:
    words = _words(world.folder, [("gpu-1", f"http://127.0.0.1:{world.page.port}")], "3s", "3s", world.routed.url)
    with (
        up(*words, log=world.folder / "log", environment=world.environment, within=[needs("prlimit"), "--nofile=64"]) as (process, url),
        contextlib.ExitStack() as clients,
    ):
        world.until_told()
        asked, end = world.page.asked, time.monotonic() + 8
        port = int(url.rpartition(":")[2])
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                client = clients.enter_context(socket.create_connection(("127.0.0.1", port), timeout=1))
                client.sendall(b"GET /x HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            time.sleep(0.02)  # a stream of clients
        assert process.poll() is None
        assert world.page.asked - asked >= 2
        clients.close()
        wait_for(lambda: get(f"{url}/healthz")[0] == 200, "the page answers")
        assert changes(url) == {"Boom": ["firing"], "Recorded": ["firing"], "Slow": ["pending"]}
    assert world.ended() == set()


def test_a_process_that_gets_neither_thread_nor_memory_lives_and_ends_in_order(tmp_path: Path) -> None:
    with serving() as page:
        words = _words(tmp_path, [(f"gpu-{number}", f"http://localhost:{page.port}/{number}") for number in range(12)], "1s", "1s")
        with up(*words, log=tmp_path / "log", environment=_state(tmp_path) | {"MALLOC_ARENA_MAX": "1"}) as (process, url):
            wait_for(lambda: page.asked > 12, "targets are scraped")
            status = Path(f"/proc/{process.pid}/status").read_text()
            size = int(next(line for line in status.splitlines() if line.startswith("VmSize")).split()[1]) * 1024
            resource.prlimit(process.pid, resource.RLIMIT_AS, (size + 3_000_000, resource.RLIM_INFINITY))
            end = time.monotonic() + 6
            while time.monotonic() < end:
                assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
                get(f"{url}/api/v1/query?query=boom")
            resource.prlimit(process.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            asked = page.asked
            wait_for(lambda: page.asked > asked + 12, "and go on being scraped")
            resource.prlimit(process.pid, resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) in (0, 1)
    assert "can't start new thread" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    "words", [("up", "--listen=127.0.0.1:PORT", "--no-exporter"), ("exporter", "--listen=127.0.0.1:PORT", "--no-discover")]
)
def test_a_hangup_while_it_starts_is_carried_out_once_it_runs(words: tuple[str, ...], tmp_path: Path) -> None:
    port = poise_up.free_port()
    command = [sys.executable, "-m", "poise.cli", *(word.replace("PORT", str(port)) for word in words)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path, env={"PATH": "/usr/bin:/bin", **_state(tmp_path)})
    try:
        # From the first statement of ours on, which takes SIGTERM; imports of a second are still to come.
        wait_for(lambda: _catches(process.pid, signal.SIGTERM), "the command begins")
        process.send_signal(signal.SIGHUP)
        told = "read anew" if words[0] == "up" else "settings were read again"
        wait_for(lambda: told in (tmp_path / "log").read_text() or process.poll() is not None, "the settings are read again")
        assert process.poll() is None, (tmp_path / "log").read_text()
        wait_for(lambda: get(f"http://127.0.0.1:{port}/healthz")[0] == 200, "it serves")
    finally:
        process.terminate()
        process.wait(20)
    assert process.returncode == 0


def _catches(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
